"""Checkpoints as folders on disk: how one becomes whole, and how damage is noticed.

A checkpoint is written under another name. Its files are brought to the disk, their checksums are written last, and
then it is renamed: whatever ends the process, and whenever, what has the name of a checkpoint is whole, and the one
before it is still there. What happens to the files afterwards shows in the checksums.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path

TAG = re.compile(r"step-(\d+)")
UNFINISHED = "unfinished-"
"""Before the name of one that is being written."""
REPLACED = "replaced-"
"""Before the name of one while another of the same step takes its place."""
SUMS = "SHA256SUMS"
"""Checksums of all other files, as `sha256sum --check` reads them."""
LATEST = "latest"
"""File with the name of the newest checkpoint, which DeepSpeed's own tools look for."""


def list_checkpoints(folder: Path) -> list[Path]:
    """Returns the finished checkpoints of a run, oldest first.

    Args:
        folder: The folder `checkpoints` of a run; it need not exist.
    """
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if TAG.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def start_draft(folder: Path, tag: str) -> Path:
    """Makes an empty folder for a checkpoint, and removes what killed processes have left.

    Args:
        folder: The folder `checkpoints`.
        tag: Name of the checkpoint.

    Raises:
        OSError: It cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    put_back(folder)
    for leftover in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(leftover)
    draft = folder / f"{UNFINISHED}{tag}"
    draft.mkdir()
    return draft


def finish_draft(folder: Path, tag: str, keep: int) -> Path:
    """Gives a checkpoint that is written its name, and removes the oldest ones.

    Args:
        folder: The folder `checkpoints`.
        tag: Name of the checkpoint.
        keep: How many to leave.

    Returns:
        The checkpoint.

    Raises:
        OSError: The disk is full, or does not take it for another reason.
    """
    draft, final, replaced = folder / f"{UNFINISHED}{tag}", folder / tag, folder / f"{REPLACED}{tag}"
    _write_sums(draft)
    if final.exists():
        final.rename(replaced)
    draft.rename(final)
    _sync(folder)
    _point_to(folder, tag)
    shutil.rmtree(replaced, ignore_errors=True)
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def drop_draft(folder: Path, tag: str) -> None:
    """Removes a checkpoint that could not be written."""
    shutil.rmtree(folder / f"{UNFINISHED}{tag}", ignore_errors=True)


def put_back(folder: Path) -> None:
    """Gives checkpoints their names back that a killed process was about to replace."""
    for replaced in folder.glob(f"{REPLACED}*"):
        final = folder / replaced.name.removeprefix(REPLACED)
        if final.exists():
            shutil.rmtree(replaced)
        else:
            replaced.rename(final)


def damage(checkpoint: Path) -> str | None:
    """Says what is wrong with the files of a checkpoint; None where nothing is."""
    try:
        lines = (checkpoint / SUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return f"{SUMS} is not readable"
    expected = {name: found for found, _, name in (line.partition("  ") for line in lines)}
    for name in sorted(expected.keys() | set(_files(checkpoint))):
        try:
            found = _sum(checkpoint / name)
        except OSError as error:
            return f"{name}: {error.strerror}"
        if found != expected.get(name):
            return f"{name} is not what was written"
    return None


def _files(folder: Path) -> list[str]:
    """Returns the names of all files but the checksums, in order."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if name != SUMS)


def _write_sums(folder: Path) -> None:
    """Brings all files to the disk, and writes their checksums."""
    names = _files(folder)
    for name in names:
        _sync(folder / name)
    sums = folder / SUMS
    sums.write_text("".join(f"{_sum(folder / name)}  {name}\n" for name in names), encoding="utf-8")
    _sync(sums)
    _sync(folder)


def _point_to(folder: Path, tag: str) -> None:
    """Moves the pointer to a checkpoint."""
    unfinished = folder / f".{LATEST}"
    unfinished.write_text(tag, encoding="utf-8")
    _sync(unfinished)
    os.replace(unfinished, folder / LATEST)
    _sync(folder)


def _sum(path: Path) -> str:
    """Returns the checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
