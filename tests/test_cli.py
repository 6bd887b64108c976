import pytest

from ds_tft.cli import run_command
from ds_tft.errors import DataError


def fail():
    raise DataError("bars.parquet: column\n  missing")


def test_user_error_is_one_line_and_code_2(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    assert run_command(fail) == 2
    assert capsys.readouterr().err == "error: bars.parquet: column missing\n"


def test_other_processes_leave_it_to_the_first_and_speak_when_they_are_left_alone(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    waited = []
    monkeypatch.setattr("time.sleep", lambda seconds: waited.append((seconds, capsys.readouterr().err)))
    assert run_command(fail, grace_seconds=7.0) == 2
    assert waited == [(7.0, "")], "silent until then"
    assert capsys.readouterr().err == "error in process 1: bars.parquet: column missing\n"


def interrupt():
    raise KeyboardInterrupt


def test_an_interrupt_is_one_line(capsys):
    assert run_command(interrupt) == 130
    assert capsys.readouterr().err == "interrupted; a training run goes on with --resume auto\n"


def test_bugs_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        run_command(lambda: 1 // 0)


def test_success_is_zero():
    assert run_command(lambda: None) == 0


class OutOfMemoryError(RuntimeError):
    """Named as torch's for a GPU."""


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore"),
        MemoryError("Unable to allocate 7.28 TiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_memory_that_ran_out_is_one_line(error, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")

    def fail_to_allocate():
        raise error

    assert run_command(fail_to_allocate) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: memory: there is not enough, got ")
    assert printed.count("\n") == 1
    assert "train_micro_batch_size_per_gpu" in printed


def test_control_characters_of_the_data_are_not_sent_to_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")

    def fail_with_escape():
        raise DataError("series 'a\x1b[31m\udcffb': wrong")

    assert run_command(fail_with_escape) == 2
    assert capsys.readouterr().err == "error: series 'a\\x1b[31m\\udcffb': wrong\n"
