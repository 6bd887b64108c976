from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from ds_tft.console import make_console
from ds_tft.training.log import RunLog

SCALARS = {"loss/train": 0.123456, "optimizer/learning_rate": 1e-3, "throughput/windows_per_second": 83.35}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def plain_console() -> Console:
    return Console(file=io.StringIO(), width=40, color_system=None, force_terminal=False)


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120, color_system="standard", _environ={})


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_plain_progress_is_one_line_with_rate_and_time_left(tmp_path):
    console, clock = plain_console(), Clock()
    with RunLog(tmp_path, console=console, clock=clock) as log:
        log.start(5000, step=100)
        clock.now += 40
        log.advance(110)
        log.progress(120, 1, SCALARS, 0.3839)
    assert console.file.getvalue() == (
        "step 120/5,000  epoch 1  loss 0.1235  83.35 windows/s  383.9 ms/step  2.711 h left\n"
    )
    assert records(tmp_path) == [{"step": 120, "epoch": 1, **SCALARS, "throughput/seconds_per_step": 0.3839}]


def test_progress_before_start_has_no_total(tmp_path):
    console = plain_console()
    with RunLog(tmp_path, console=console) as log:
        log.progress(3, 0, {}, 2.0)
    assert console.file.getvalue() == "step 3  epoch 0  2.000 s/step\n"


def test_validation_line_and_record(tmp_path):
    console = plain_console()
    losses = {"loss/validation": 0.25, "loss/validation_p10": 0.1, "loss/validation_p50": float("nan")}
    with RunLog(tmp_path, console=console) as log:
        log.start(10)
        log.validation(5, 0, losses, best=True)
        log.validation(6, 0, losses, best=False)
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "step 5/10  validation loss 0.2500  p10 0.1000  p50 n/a  (best so far)"
    assert "best" not in lines[1]
    assert records(tmp_path)[0] == {
        "step": 5,
        "epoch": 0,
        **losses,
        "loss/validation_p50": None,
        "best": True,
        "nonfinite": ["loss/validation_p50"],
    }


def test_messages_are_not_broken_and_not_markup(tmp_path):
    console = plain_console()
    log = RunLog(tmp_path, console=console)
    message = "runs/[bold]x " + "word " * 20
    log.say(message)
    log.warn("update left out")
    assert console.file.getvalue() == f"{message}\nwarning: update left out\n"


def test_other_processes_write_nothing(tmp_path, capsys):
    with RunLog(tmp_path, enabled=False, console=plain_console()) as log:
        log.start(10)
        log.say("a")
        log.warn("b")
        log.advance(1)
        log.progress(1, 0, SCALARS, 1.0)
        log.validation(1, 0, {"loss/validation": 1.0}, best=True)
        log.rewind(0)
        log.console.print("c")
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_a_resumed_run_writes_each_step_once_and_says_what_it_removed(tmp_path):
    with RunLog(tmp_path, console=plain_console()) as log:
        for step in (10, 20, 30):
            log.progress(step, 0, {"loss/train": 1.0}, 1.0)
    console = plain_console()
    with RunLog(tmp_path, console=console) as log:
        log.rewind(20)
        log.progress(30, 0, {"loss/train": 2.0}, 1.0)
    assert [(record["step"], record["loss/train"]) for record in records(tmp_path)] == [
        (10, 1),
        (20, 1),
        (30, 2),
    ]
    assert "removed 1 records of steps after 20" in console.file.getvalue()


HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def test_a_terminal_gets_a_bar_and_keeps_messages(tmp_path):
    console = terminal()
    with RunLog(tmp_path, console=console, clock=Clock()) as log:
        log.start(50, step=10)
        log.progress(20, 1, SCALARS, 0.5)
        log.advance(21)
        log.validation(21, 1, {"loss/validation": 0.5}, best=True)
        shown = console.file.getvalue()
    assert HIDE_CURSOR in shown
    assert "20/50" in shown
    assert "21/50" in shown
    assert "loss 0.1235" in shown
    assert "validation loss 0.5000" in shown


def test_the_terminal_is_restored_after_an_error(tmp_path):
    console = terminal()

    def run():
        with RunLog(tmp_path, console=console) as log:
            log.start(50)
            log.progress(1, 0, SCALARS, 0.5)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    shown = console.file.getvalue()
    assert shown.rindex(SHOW_CURSOR) > shown.rindex(HIDE_CURSOR)


def test_no_thread_is_left_running(tmp_path):
    import threading

    before = threading.active_count()
    with RunLog(tmp_path, console=terminal()) as log:
        log.start(50)
        assert threading.active_count() == before


def test_the_default_console_is_plain_text_of_100_columns_in_a_pipe(capsys, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    console = make_console()
    assert console.width == 100
    console.print("loss 0.5", style="bold red")
    assert capsys.readouterr().out == "loss 0.5\n"


def test_records_may_follow_the_end_of_the_bar(tmp_path):
    log = RunLog(tmp_path, console=terminal())
    log.start(2)
    log.progress(2, 0, SCALARS, 0.5)
    log.close()
    log.validation(2, 0, {"loss/validation": 0.5}, best=True)
    log.close()
    assert [record["step"] for record in records(tmp_path)] == [2, 2]
