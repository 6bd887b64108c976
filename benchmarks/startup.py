"""How long it takes from the command to the first optimizer step, and where the time goes.

    python benchmarks/startup.py

Trains a small model on a file of 300 bars, as `python launch/train.py` and through DeepSpeed's launcher. CPU
seconds are those of all processes of the command; wall seconds depend on what else the machine does. Prints
medians, and fails where plain python takes more than `--most-cpu-seconds`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from data_loading import write_bars
from machine import machine_lines

REPOSITORY = Path(__file__).resolve().parents[1]
TRAIN = str(REPOSITORY / "launch" / "train.py")
DEEPSPEED = str(Path(sys.executable).parent / "deepspeed")
FIRST_STEP = '"loss/train"'
"""What the metrics file holds once an optimizer step is done."""
IMPORTS = (
    "numpy, pyarrow.parquet, pydantic, rich.console, psutil",
    "torch",
    "talib, ds_tft.data.prepare",
    "deepspeed",
    "ds_tft.training.run",
)
SETTINGS = (
    "data.features=ohlcv", "window.encoder_length=20", "window.horizon=5", "model.hidden_size=16",
    "training.log_every_steps=1", "training.windows_per_epoch=64", "training.epochs=1",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds until something happened."""

    wall: float
    cpu: float


def main() -> int:
    """Measures and prints; returns 1 where the start takes too long."""
    parser = argparse.ArgumentParser(description="Measure the way to the first optimizer step.")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each kind (default: 3)")
    parser.add_argument("--most-cpu-seconds", type=float, default=10.0, help="allowed (default: 10)")
    options = parser.parse_args()
    print(*machine_lines(), sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        bars = write_bars(Path(folder) / "bars.parquet", series=1, rows=300)
        plain, launched = [], []
        for number in range(options.rounds):
            plain.append(first_step([sys.executable, TRAIN], bars, Path(folder) / f"plain{number}"))
            launched.append(first_step([DEEPSPEED, TRAIN], bars, Path(folder) / f"launched{number}"))
        imports = [import_cost() for _ in range(options.rounds)]
    _print_results(plain, launched, imports)
    return 0 if median(cost.cpu for cost in plain) <= options.most_cpu_seconds else 1


def first_step(command: Sequence[str], bars: str, output: Path) -> Cost:
    """Starts a training run and waits for its first optimizer step; the run is left to end."""
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    start = time.perf_counter()
    with subprocess.Popen(
        [*command, "--parquet-file", bars, "--output-dir", str(output), *settings],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL,
    ) as process:
        metrics = output / "metrics.jsonl"
        while not (metrics.exists() and FIRST_STEP in metrics.read_text(encoding="utf-8")):
            if process.poll() is not None:
                raise RuntimeError(f"{command[0]} ended with code {process.returncode} before its first step")
            time.sleep(0.01)
        cost = Cost(time.perf_counter() - start, _cpu_seconds(psutil.Process(process.pid)))
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with code {process.returncode}")
    return cost


def import_cost() -> list[float]:
    """Returns CPU seconds of a bare interpreter, then of each group of imports, in one process."""
    script = ["import time", "from ds_tft.training.environment import prepare_environment"]
    script += ["print(time.process_time())", "prepare_environment()"]
    for names in IMPORTS:
        script += [f"import {names}", "print(time.process_time())"]
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(script)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    times = [0.0, *(float(line) for line in result.stdout.split())]
    return [after - before for before, after in zip(times, times[1:], strict=False)]


def _cpu_seconds(process: psutil.Process) -> float:
    """User and system seconds of a process and of all that it started, ended ones included."""
    own = process.cpu_times()
    ended = own.children_user + own.children_system
    return own.user + own.system + ended + sum(_cpu_seconds(child) for child in process.children())


def _print_results(plain: list[Cost], launched: list[Cost], imports: list[list[float]]) -> None:
    """Two tables: to the first step, and the imports within it."""
    print("\n| from the command to the first optimizer step | wall s | CPU s |")
    print("|-----------------------------------------------|--------|-------|")
    wall, cpu = (median(getattr(cost, name) for cost in plain) for name in ("wall", "cpu"))
    more_wall, more_cpu = (median(getattr(cost, name) for cost in launched) for name in ("wall", "cpu"))
    for name, *values in (
        ("python launch/train.py", wall, cpu),
        ("deepspeed launch/train.py", more_wall, more_cpu),
        ("the launcher's share", more_wall - wall, more_cpu - cpu),
    ):
        print(f"| {name:45} | {values[0]:6.1f} | {values[1]:5.1f} |")
    print("\n| of python launch/train.py                     | CPU s |")
    print("|-----------------------------------------------|-------|")
    medians = [median(times) for times in zip(*imports, strict=True)]
    names = ("interpreter", *(f"import {names}" for names in IMPORTS))
    for name, seconds in (
        *zip(names, medians, strict=True),
        ("data, engine, first step", cpu - sum(medians)),
    ):
        print(f"| {name:45.45} | {seconds:5.1f} |")


if __name__ == "__main__":
    sys.exit(main())
