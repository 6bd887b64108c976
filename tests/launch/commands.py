"""Commands in processes of their own, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from datasets import ROLES, WINDOW, panel, write

REPOSITORY = Path(__file__).parents[2]
TRAIN = str(REPOSITORY / "launch" / "train.py")
DEEPSPEED = str(Path(sys.executable).parent / "deepspeed")
SECONDS = 240
CONFIG = {
    "data": ROLES,
    "window": WINDOW,
    "model": {"hidden_size": 8, "num_heads": 2},
    "training": {"epochs": 1, "log_every_steps": 1},
}


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a command."""

    code: int
    output: str
    errors: str


def environment(**more: str) -> dict[str, str]:
    """The environment with the package on the path and without what a process of a run would find there."""
    places = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "DS_ACCELERATOR",
    )
    kept = {name: value for name, value in os.environ.items() if name not in places}
    return kept | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"} | more


def start(*command: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts a command as the leader of a group of processes."""
    return subprocess.Popen(
        command,
        env=env or environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], seconds: float = SECONDS) -> Result:
    """Waits for a command; one that takes too long is ended with all that it started."""
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        raise AssertionError(f"still running after {seconds} s:\n{output}\n{errors}") from None
    return Result(process.returncode, output, errors)


def run(*command: str, env: dict[str, str] | None = None) -> Result:
    """Runs a command to its end."""
    return finish(start(*command, env=env))


def write_files(folder: Path) -> Path:
    """Writes a small panel and its run JSON into a folder."""
    write(folder / "panel.parquet", panel())
    (folder / "run.json").write_text(json.dumps(CONFIG))
    return folder


def flags(files: Path, output: Path, *more: str) -> list[str]:
    """Flags of `launch/train.py` for those files."""
    return [
        "--parquet-file", str(files / "panel.parquet"), "--config", str(files / "run.json"),
        "--batch-size", "16", "--output-dir", str(output), *more,
    ]  # fmt: skip


def losses(folder: Path) -> list[float]:
    """Training loss of each step, each of which has one record."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = [(record["step"], record["loss/train"]) for record in records if "loss/train" in record]
    assert [step for step, _ in found] == list(range(1, len(found) + 1))
    return [loss for _, loss in found]
