"""Signals and the time limit."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

from ds_tft.errors import Stopped
from ds_tft.training.interruption import SAME_REQUEST_SECONDS, Cause, Interruption

CPU = torch.device("cpu")


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_request_while_it_listens(number):
    with Interruption() as interruption, interruption.listening():
        assert interruption.requested(CPU) is Cause.NONE
        os.kill(os.getpid(), number)
        cause = interruption.requested(CPU)
    assert cause == number
    assert cause.exit_code == 128 + number
    assert interruption.describe(cause) == signal.Signals(number).name


def test_outside_of_training_a_signal_ends_the_run():
    with Interruption():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(
            Stopped, match="stopped by SIGTERM; a training run goes on with --resume auto"
        ) as caught:
            os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.exit_code == 143


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interruption():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_what_follows_at_once_is_the_same_request(clock):
    with Interruption(clock=clock) as interruption, interruption.listening():
        os.kill(os.getpid(), signal.SIGINT)
        clock.now += SAME_REQUEST_SECONDS / 2
        os.kill(os.getpid(), signal.SIGTERM)  # as the launcher does
        assert interruption.requested(CPU) is Cause.SIGINT


def test_a_second_signal_ends_the_process_at_once():
    script = f"""
        import os, signal, time
        from ds_tft.training.interruption import Interruption
        with Interruption() as interruption, interruption.listening():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep({SAME_REQUEST_SECONDS} + 0.1)
            os.kill(os.getpid(), signal.SIGTERM)
            print("still here")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert done.returncode == 143
    assert done.stdout == ""
    assert done.stderr == "stopped at once: --resume auto goes on from the last checkpoint\n"


def test_time_is_up_before_another_stretch_would_pass_it(clock):
    interruption = Interruption(60.0, clock=clock, started=990.0)  # 10 s for the start
    with interruption.listening():
        for passed, cause in ((10, Cause.NONE), (5, Cause.NONE), (15, Cause.NONE), (9, Cause.TIME)):
            clock.now += passed
            assert interruption.requested(CPU) is cause, clock.now
    assert Cause.TIME.exit_code == 3
    assert interruption.describe(Cause.TIME) == "the time limit of 1.000 min is near"


def test_without_a_limit_time_is_never_up(clock):
    interruption = Interruption(clock=clock, started=0.0)
    clock.now = 1e12
    assert interruption.requested(CPU) is Cause.NONE


def test_the_clock_starts_with_the_process():
    assert Interruption(1e-3).requested(CPU) is Cause.TIME
