"""How a checkpoint becomes whole, and how damage shows."""

import shutil
import subprocess

import pytest
from checkpoint_cases import make_checkpoint

from ds_tft.training.checkpoint_files import (
    SUMS,
    damage,
    drop_draft,
    list_checkpoints,
    put_back,
    start_draft,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_finished_ones_in_order_of_steps(tmp_path):
    for step in (5, 100, 20):
        make_checkpoint(tmp_path, step)
    start_draft(tmp_path, "step-200")
    (tmp_path / "step-300").write_text("a file, not a checkpoint")
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-5", "step-20", "step-100"]
    assert list_checkpoints(tmp_path / "none") == []


def test_the_oldest_go(tmp_path):
    for step in (1, 2, 3):
        make_checkpoint(tmp_path, step, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-2", "step-3"]


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
def test_the_checksums_are_those_of_sha256sum(tmp_path):
    checkpoint = make_checkpoint(tmp_path, 1)
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", SUMS], cwd=checkpoint, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "model.pt: OK\nstates.pt: OK\n")


def test_any_damage_to_any_file_shows(tmp_path):
    checkpoint = make_checkpoint(tmp_path, 1)
    assert damage(checkpoint) is None
    for path in sorted(checkpoint.iterdir()):
        content = path.read_bytes()
        flipped = bytes([content[0] ^ 1]) + content[1:]
        for broken in (content[: len(content) // 2], b"", flipped, content + b"x", None):
            path.unlink()
            if broken is not None:
                path.write_bytes(broken)
            assert damage(checkpoint) is not None, (path, broken)
            path.write_bytes(content)
    assert damage(checkpoint) is None


def test_another_of_the_same_step_takes_its_place(tmp_path):
    first = make_checkpoint(tmp_path, 1)
    (first / "more.pt").write_bytes(b"")
    second = make_checkpoint(tmp_path, 1)
    assert first == second
    assert names(second) == [SUMS, "model.pt", "states.pt"]
    assert names(tmp_path) == ["latest", "step-1"]


def test_whenever_it_is_killed_one_is_whole(tmp_path, monkeypatch):
    """Every call that changes names fails once, as if the process ended there."""
    import ds_tft.training.checkpoint_files as module

    class Killed(Exception):  # noqa: N818
        pass

    make_checkpoint(tmp_path / "start", 1)
    survived = 0
    for calls in range(1, 60):
        folder = shutil.copytree(tmp_path / "start", tmp_path / f"killed-{calls}")
        left = [calls]

        def count(real, left=left):
            def call(*arguments, **named):
                left[0] -= 1
                if left[0] == 0:
                    raise Killed
                return real(*arguments, **named)

            return call

        with monkeypatch.context() as patch:
            calls_of = {module.os: ("fsync", "replace"), module.shutil: ("rmtree",),
                        module.Path: ("rename", "write_text", "mkdir")}  # fmt: skip
            for owner, name in ((owner, name) for owner, some in calls_of.items() for name in some):
                patch.setattr(owner, name, count(getattr(owner, name)))
            try:
                make_checkpoint(folder, 1)
            except Killed:
                survived += 1
            else:
                break
        put_back(folder)
        (whole,) = list_checkpoints(folder)
        assert damage(whole) is None
        make_checkpoint(folder, 2)
        assert [path.name for path in list_checkpoints(folder)] == ["step-1", "step-2"]
    assert 10 < survived < 50


def test_a_draft_is_dropped(tmp_path):
    make_checkpoint(tmp_path, 1)
    start_draft(tmp_path, "step-2")
    drop_draft(tmp_path, "step-2")
    drop_draft(tmp_path, "step-3")
    assert names(tmp_path) == ["latest", "step-1"]
