"""Runs that are killed again and again, and end as if they had not been."""

import os
import random
import shutil
import subprocess
import time

import pytest
from faults_cases import Forked, arguments, last_step, results, resumed_step, write_files

from ds_tft.training.checkpoint_files import damage, list_checkpoints

pytestmark = pytest.mark.faults

KILLS = 50
LONGEST_LEG = 2.5
"""Seconds after the first checkpoint that a run is left at most."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def straight(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    run = Forked(arguments(files, folder / "run", resume=False), folder / "log")
    assert run.wait() == 0, run.said()
    return folder / "run"


def wait_until(run, condition, seconds=60):
    """Waits for something, or for the run's end; returns whether it came."""
    deadline = time.monotonic() + seconds
    while not condition():
        if run.is_over():
            return False
        assert time.monotonic() < deadline, run.said()
        time.sleep(0.0005)
    return True


RANDOM, SAVING = "killed at a random moment", "killed while a checkpoint is written"


def strike(run, folder, kind, chance):
    """Kills a run that has saved something new; returns whether it was not over before."""
    known = {path.name for path in list_checkpoints(folder)}
    if not wait_until(run, lambda: {path.name for path in list_checkpoints(folder)} - known):
        return False
    time.sleep(chance.uniform(0, 0.3 if kind == SAVING else LONGEST_LEG))
    if kind == SAVING:
        wait_until(run, lambda: any(folder.glob("unfinished-*")))
        time.sleep(chance.uniform(0, 0.02))
    if run.is_over():
        return False
    run.kill()
    run.wait()
    return True


def test_killed_at_random_moments(files, straight, tmp_path, fault_table):
    """Every second kill comes while a checkpoint is being written; a run that has come to its end is compared."""
    chance, compared, fault = random.Random(0), 0, None
    for number in range(KILLS + 1):
        output = tmp_path / f"run-{compared}"
        before = last_step(output)
        run = Forked(arguments(files, output, resume=fault is not None), tmp_path / "log")
        kind = (RANDOM, SAVING)[number % 2]
        is_killed = number < KILLS and strike(run, output / "checkpoints", kind, chance)
        if not is_killed:
            assert run.wait() == 0, run.said()
            assert results(output) == results(straight)
            compared += 1
        if fault is not None:
            step = resumed_step(run.said())
            assert step is not None, run.said()
            assert 0 <= before - step <= 2, "a checkpoint every second update"
            fault_table.survived(fault, before - step)
        fault = kind if is_killed else None
    assert compared > 1


DAMAGES = {
    "removed": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "one bit flipped": lambda path: path.write_bytes(flipped(path.read_bytes())),
}


def flipped(content):
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :] if content else b"?"


@pytest.fixture(scope="module")
def stopped(files, tmp_path_factory):
    """A run with two checkpoints, killed in the middle."""
    folder = tmp_path_factory.mktemp("stopped")
    run = Forked(arguments(files, folder / "run", resume=False), folder / "log")
    assert wait_until(run, lambda: (folder / "run" / "checkpoints" / "step-24").exists())
    run.kill()
    run.wait()
    return folder / "run"


def test_any_file_of_the_newest_checkpoint_damaged(files, straight, stopped, tmp_path, fault_table):
    *_, older, newest = list_checkpoints(stopped / "checkpoints")
    tried = 0
    for name in sorted(path.name for path in newest.iterdir()):
        for kind, spoil in DAMAGES.items():
            output = shutil.copytree(stopped, tmp_path / "run")
            spoil(output / "checkpoints" / newest.name / name)
            assert damage(output / "checkpoints" / newest.name) is not None
            run = Forked(arguments(files, output, resume=True), tmp_path / "log")
            assert run.wait() == 0, run.said()
            assert f"warning: --resume auto: {newest.name} is damaged (" in run.said()
            step = resumed_step(run.said())
            assert step == int(older.name.removeprefix("step-"))
            assert results(output) == results(straight), (name, kind)
            fault_table.survived(f"a file of the newest checkpoint {kind}", last_step(stopped) - step)
            shutil.rmtree(output)
            tried += 1
    assert tried >= 4 * 4


def test_any_other_file_of_the_run_damaged(files, straight, stopped, tmp_path, fault_table):
    """What the run needs is missed in one line; everything else is made again."""
    names = sorted(
        path.relative_to(stopped).as_posix()
        for path in stopped.rglob("*")
        if path.is_file() and "step-" not in path.as_posix().partition("checkpoints/")[2]
    )
    assert {"settings.json", "metrics.jsonl", "best.safetensors", "checkpoints/latest"} <= set(names)
    for name in names:
        for kind, spoil in DAMAGES.items():
            output = shutil.copytree(stopped, tmp_path / "run")
            spoil(output / name)
            run = Forked(arguments(files, output, resume=True), tmp_path / "log")
            code = run.wait()
            if name == "settings.json" and code == 2:
                assert [line.startswith("error: --resume: ") for line in run.said().splitlines()[-1:]] == [
                    True
                ]
            else:
                assert code == 0, run.said()
                for file in ("export/weights.safetensors", "evaluation.json"):
                    assert (output / file).read_bytes() == (straight / file).read_bytes(), (name, kind, file)
            fault_table.survived(f"another file of the run {kind}", 0)
            shutil.rmtree(output)


def test_a_full_disk(files, straight, tmp_path, fault_table):
    """A file system of its own, which fills up at various points, and then gets room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or mount(disk, "1m"):
        pytest.skip("needs the right to mount a tmpfs")
    try:
        whole = sum(path.stat().st_size for path in straight.rglob("*") if path.is_file())
        for share in (0.02, 0.2, 0.4, 0.6, 0.8):
            remount(disk, int(whole * share))
            output = disk / "run"
            run = Forked(arguments(files, output, resume=False), tmp_path / "log")
            code, said, before = run.wait(), run.said(), last_step(output)
            assert code == 2, said
            last = said.splitlines()[-1]
            assert last.startswith("error: "), said
            assert "make room" in last, said
            assert "Traceback" not in said
            saved = list_checkpoints(output / "checkpoints")
            assert all(damage(path) is None for path in saved)
            remount(disk, 4 * whole)
            if not saved:
                shutil.rmtree(output, ignore_errors=True)
            again = Forked(arguments(files, output, resume=bool(saved)), tmp_path / "log")
            assert again.wait() == 0, again.said()
            assert results(output) == results(straight)
            fault_table.survived("disk full", before - (resumed_step(again.said()) or 0))
            shutil.rmtree(output)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def mount(folder, size):
    """Mounts a file system in memory; returns whether that failed."""
    return subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]).returncode


def remount(folder, size):
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)
