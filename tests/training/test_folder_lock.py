"""One run at a time in a folder."""

import errno
import os
import subprocess
import sys

import pytest

from ds_tft.errors import ConfigError
from ds_tft.training.folder_lock import LOCK, FolderLock

HOLD = """
import sys
from pathlib import Path
from ds_tft.training.folder_lock import FolderLock
with FolderLock(Path(sys.argv[1]), print):
    print("held", flush=True)
    sys.stdin.read()
"""


def unwanted(line):
    raise AssertionError(line)


def test_a_second_run_is_refused_until_the_first_ends(tmp_path):
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    (folder / "settings.json").write_text("{}")
    message = rf"--output-dir: '.*run' is in use, got a run of process {process.pid} on .*; wait until it ends, or give"
    with pytest.raises(ConfigError, match=message), FolderLock(folder, unwanted):
        pass
    process.kill()  # the system lets go of it
    process.communicate()
    with FolderLock(folder, unwanted):
        assert (folder / LOCK).read_text().startswith(f"process {os.getpid()} on ")
    assert (folder / "settings.json").exists()


def test_a_folder_with_nothing_else_is_removed(tmp_path):
    with FolderLock(tmp_path / "a" / "run", unwanted):
        assert (tmp_path / "a" / "run").is_dir()
    assert not (tmp_path / "a" / "run").exists()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(
            ConfigError, match=r"--output-dir: cannot write to '.*file/run', got Not a directory; give"
        ),
        FolderLock(tmp_path / "file" / "run", unwanted),
    ):
        pass


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
    def refuse(handle, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("ds_tft.training.folder_lock.fcntl.flock", refuse)
    lines = []
    with FolderLock(tmp_path, lines.append):
        pass
    assert lines == [
        f"'{tmp_path / LOCK}': no lock here (No locks available), a second run in the folder would not be noticed"
    ]
