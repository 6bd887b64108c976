"""Runs that are asked to stop, and go on as if they had not been: minutes, not seconds."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from commands import DEEPSPEED, TRAIN, finish, flags, losses, run, start, write_files
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

pytestmark = pytest.mark.slow

TWO = (DEEPSPEED, "--num_accelerators", "2", TRAIN)
ONE = (sys.executable, TRAIN)
SETTINGS = ("--epochs", "30", "--set", "training.patience=0", "--set", "training.checkpoint_every_steps=50",
            "--set", "model.dropout=0.3", "--set", "training.log_every_steps=3",
            "--set", "deepspeed.gradient_accumulation_steps=2")  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def straight(files, tmp_path_factory):
    """Runs that nobody stopped, by how many processes they had."""
    folder = tmp_path_factory.mktemp("straight")
    results = {}
    for name, command in (("one", ONE), ("two", TWO)):
        result = run(*command, *flags(files, folder / name, *SETTINGS))
        assert result.code == 0, result.errors
        results[name] = folder / name
    return results


def wait_for_step(process: subprocess.Popen, folder, step):
    """Waits until a run has logged a step."""
    deadline = time.monotonic() + 120
    while last_step(folder) < step:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def last_step(folder):
    file = folder / "metrics.jsonl"
    return json.loads(file.read_text().splitlines()[-1])["step"] if file.exists() and file.read_text() else -1


def curves(folder):
    """Every value of every curve, by tag; a step must not have two."""
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    found = {}
    for tag in events.Tags()["scalars"]:
        if tag.startswith(("loss/", "optimizer/")):
            values = [(event.step, event.value) for event in events.Scalars(tag)]
            assert len({step for step, _ in values}) == len(values), tag
            found[tag] = values
    return found


def assert_same_run(folder, expected):
    """Losses, curves and weights, bit by bit."""
    for name in ("export/weights.safetensors", "best.safetensors"):
        assert (folder / name).read_bytes() == (expected / name).read_bytes(), name
    assert curves(folder) == curves(expected)
    lines = [(one / "metrics.jsonl").read_text().splitlines() for one in (folder, expected)]
    steps = [[json.loads(line)["step"] for line in some] for some in lines]
    assert steps[0] == steps[1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_the_run_goes_on(files, tmp_path, straight, number, code):
    output = tmp_path / "run"
    process = start(*ONE, *flags(files, output, *SETTINGS))
    for step in (9, 33):
        wait_for_step(process, output, step)
        process.send_signal(number)
        result = finish(process)
        assert result.code == code
        assert result.errors.count("\n") == 1, result.errors
        assert result.errors.startswith("stopped at step ")
        assert (
            f": {number.name}; everything is saved in '{output}/checkpoints', --resume auto goes on"
            in result.errors
        )
        process = start(*ONE, *flags(files, output, *SETTINGS, "--resume", "auto"))
    result = finish(process)
    assert result.code == 0, result.errors
    assert_same_run(output, straight["one"])


def test_a_time_limit_saves_and_the_run_goes_on(files, tmp_path, straight):
    """A second is over before the first update: each run does one."""
    output, more = tmp_path / "run", ()
    for step in (1, 2):
        result = run(*ONE, *flags(files, output, *SETTINGS, "--max-time", "1s", *more))
        assert result.code == 3
        assert result.errors == (
            f"stopped at step {step}: the time limit of 1.000 s is near; everything is saved in "
            f"'{output}/checkpoints', --resume auto goes on\n"
        )
        more = ("--resume", "auto")
    result = run(*ONE, *flags(files, output, *SETTINGS, *more))
    assert result.code == 0, result.errors
    assert_same_run(output, straight["one"])


@pytest.mark.parametrize("stage", ["1", "2"])
def test_a_signal_to_one_of_two_processes_stops_both(files, tmp_path, straight, stage):
    output, more = tmp_path / "run", ("--set", f"deepspeed.zero_optimization.stage={stage}")
    process = start(*TWO, *flags(files, output, *SETTINGS, *more))
    wait_for_step(process, output, 9)
    workers = subprocess.run(["pgrep", "-g", str(process.pid), "-f", f"{TRAIN} --local_rank=1"],
                             capture_output=True, text=True).stdout.split()  # fmt: skip
    os.kill(int(workers[-1]), signal.SIGTERM)
    result = finish(process)
    assert result.code == 143
    assert result.errors.count("stopped at step") == 1
    assert "Traceback" not in result.errors
    result = run(*TWO, *flags(files, output, *SETTINGS, *more, "--resume", "auto"))
    assert result.code == 0, result.errors
    if stage == "1":
        assert_same_run(output, straight["two"])


def test_ctrl_c_through_the_launcher_saves(files, tmp_path, straight):
    output = tmp_path / "run"
    process = start(*TWO, *flags(files, output, *SETTINGS))
    wait_for_step(process, output, 9)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    process.wait(timeout=60)
    deadline = time.monotonic() + 60
    while subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    errors = process.stderr.read()
    assert errors.count("stopped at step") == 1, errors
    result = run(*TWO, *flags(files, output, *SETTINGS, "--resume", "auto"))
    assert result.code == 0, result.errors
    assert_same_run(output, straight["two"])


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_dies_ends_the_run(files, tmp_path, victim):
    output = tmp_path / "run"
    process = start(*TWO, *flags(files, output, *SETTINGS))
    wait_for_step(process, output, 9)
    workers = subprocess.run(["pgrep", "-g", str(process.pid), "-f", f"{TRAIN} --local_rank={victim}"],
                             capture_output=True, text=True).stdout.split()  # fmt: skip
    killed = time.monotonic()
    os.kill(int(workers[-1]), signal.SIGKILL)
    result = finish(process, seconds=40)
    assert time.monotonic() - killed < 30
    assert result.code != 0


@pytest.mark.parametrize(("before", "after"), [(TWO, ONE), (ONE, TWO)])
@pytest.mark.parametrize("stage", ["0", "1", "2"])
def test_another_number_of_processes_goes_on(files, tmp_path, before, after, stage):
    """With micro-batches of one size: then a window has the same dropout in whichever process it is."""
    more = ("--set", f"deepspeed.zero_optimization.stage={stage}", "--set", "deepspeed.scheduler=null",
            "--set", "deepspeed.train_micro_batch_size_per_gpu=4", "--set", "model.dropout=0.3")  # fmt: skip
    for command, parts in ((before, ("1",)), (after, ("2",))):
        resume = ("--resume", "auto") if parts == ("2",) else ()
        result = run(*command, *flags(files, tmp_path / "parts", *more, "--epochs", *parts, *resume))
        assert result.code == 0, result.errors
    assert "processes: " in result.output
    result = run(*before, *flags(files, tmp_path / "straight", *more, "--epochs", "2"))
    assert result.code == 0, result.errors
    found, expected = losses(tmp_path / "parts"), losses(tmp_path / "straight")
    assert len(found) == 14
    assert found == pytest.approx(expected, abs=1e-5)


def test_two_runs_in_one_folder(files, tmp_path):
    output = tmp_path / "run"
    process = start(*ONE, *flags(files, output, *SETTINGS))
    wait_for_step(process, output, 3)
    second = run(*ONE, *flags(files, output, *SETTINGS, "--resume", "auto"))
    assert second.code == 2
    assert (
        f"error: --output-dir: '{output}' is in use, got a run of process {process.pid} on " in second.errors
    )
    process.kill()
    process.communicate()
