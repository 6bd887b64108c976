import pytest

from ds_tft.cli import run_command
from ds_tft.errors import DataError


def fail():
    raise DataError("bars.parquet: column\n  missing")


def test_user_error_is_one_line_and_code_2(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    assert run_command(fail) == 2
    assert capsys.readouterr().err == "error: bars.parquet: column missing\n"


def test_other_processes_stay_silent(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert run_command(fail) == 2
    assert capsys.readouterr().err == ""


def test_bugs_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        run_command(lambda: 1 // 0)


def test_success_is_zero():
    assert run_command(lambda: None) == 0
