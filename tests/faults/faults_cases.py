"""Runs in forked processes, which are there within a second, and what became of them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from datasets import ROLES, WINDOW, panel, write

from ds_tft.cli import run_command
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.environment import ProcessPlace

SETTINGS = {
    "data": ROLES,
    "window": WINDOW,
    "model": {"hidden_size": 8, "num_heads": 2, "dropout": 0.2},
    "training": {
        "epochs": 12,
        "log_every_steps": 1,
        "checkpoint_every_steps": 2,
        "keep_checkpoints": 2,
        "patience": 0,
    },
}


@dataclass(slots=True)
class FaultTable:
    """Faults by kind: how many were tried, survived, and the updates that had to be done again."""

    lost: dict[str, list[int]] = field(default_factory=dict)

    def survived(self, kind: str, lost: int) -> None:
        """Notes a fault after which everything went on."""
        self.lost.setdefault(kind, []).append(lost)

    def lines(self) -> list[str]:
        """The table."""
        rows = [("fault", "survived", "updates done again: mean", "most")]
        for kind, lost in self.lost.items():
            rows.append((kind, str(len(lost)), f"{sum(lost) / len(lost):.1f}", str(max(lost))))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]


def write_files(folder: Path) -> Path:
    """Writes a small panel and its run JSON into a folder."""
    write(folder / "panel.parquet", panel())
    (folder / "run.json").write_text(json.dumps(SETTINGS))
    return folder


def arguments(files: Path, output: Path, *, resume: bool, overrides: tuple[str, ...] = ()) -> TrainArguments:
    """What the command line would say."""
    return TrainArguments(
        parquet=str(files / "panel.parquet"),
        config=str(files / "run.json"),
        batch_size=16,
        output_dir=str(output),
        resume="auto" if resume else None,
        overrides=overrides,
    )


class Forked:
    """A run in a forked process; what it prints is in a file.

    Args:
        given: Its command line.
        log: The file.
        before: What the process does first, such as setting a limit.
    """

    def __init__(self, given: TrainArguments, log: Path, before: Callable[[], None] | None = None) -> None:
        self.log = log
        self.pid = os.fork()
        self._code: int | None = None
        if self.pid == 0:
            _run(given, log, before)

    def kill(self) -> None:
        """Ends it without warning."""
        os.kill(self.pid, signal.SIGKILL)

    def is_over(self) -> bool:
        """Whether it has ended."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is not None

    def wait(self, seconds: float = 120) -> int:
        """Waits for its end, and returns its exit code."""
        deadline = time.monotonic() + seconds
        while not self.is_over():
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"still running after {seconds} s:\n{self.said()}")
            time.sleep(0.005)
        assert self._code is not None
        return self._code

    def said(self) -> str:
        """What it printed."""
        return self.log.read_text(errors="replace")


def _run(given: TrainArguments, log: Path, before: Callable[[], None] | None) -> None:
    """Trains, and leaves without what Python would do at the end."""
    code = 1
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        if before is not None:
            before()
        from ds_tft.training.run import train

        code = run_command(lambda: train(given, ProcessPlace(0, 0, 1)))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def last_step(folder: Path) -> int:
    """The last update that is on record."""
    file = folder / "metrics.jsonl"
    steps = [0]
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            steps.append(json.loads(line)["step"])
        except ValueError:
            continue  # a line that a kill has cut
    return max(steps)


def resumed_step(said: str) -> int | None:
    """The update that a run went on from, by its own words."""
    for line in said.splitlines():
        if line.startswith("resumed from "):
            return int(line.rpartition(": step ")[2].partition(",")[0])
    return None


def results(folder: Path) -> dict[str, bytes]:
    """What a run leaves, as bytes."""
    kept = ("export/weights.safetensors", "best.safetensors", "evaluation.json")
    found = {name: (folder / name).read_bytes() for name in kept}
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    losses = [
        (one["step"], one.get("loss/train"), one.get("loss/validation")) for one in map(json.loads, lines)
    ]
    return found | {"losses": json.dumps(losses).encode()}
