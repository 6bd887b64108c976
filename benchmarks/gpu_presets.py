"""Every file of ds_configs at work: `launch/train.py` on a small parquet file of 225 inputs, with capped memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
PRESETS = sorted((ROOT / "ds_configs").glob("*.json"))
SERIES, ROWS = 4, 400
STATIC, OBSERVED, KNOWN = 5, 209, 9  # the target's history and the relative time make it 225
SECONDS, TIMED_OUT = 120, 124
PEAKS = ("memory/cuda_reserved_peak_mib", "memory/cuda_allocated_peak_mib", "memory/host_rss_peak_mib")
"""Tags of a peak, the most telling first. A run on a CPU has the last one only."""


class PresetRun(NamedTuple):
    """What became of a run."""

    preset: str
    code: int
    """Exit code of the command."""
    peak_tag: str = ""
    peak_mib: float = float("nan")
    step_seconds: float = float("nan")
    traces: int = 0
    """Files in the run's `traces`."""
    memory_tags: int = 0
    """Memory tags in TensorBoard."""
    said: str = ""
    """Last line of the command, where it failed."""


def write_inputs(folder: Path) -> None:
    """Writes a parquet file, a random walk per column, and the run JSON that goes with it."""
    rng = np.random.default_rng(0)
    total = SERIES * ROWS
    columns = {
        "day": pa.array(np.tile(_days(), SERIES)),
        "shop": np.repeat([f"shop {number}" for number in range(SERIES)], ROWS).tolist(),
        "sales": _walks(rng),
    }
    static = {f"static_{number}": np.repeat(rng.normal(size=SERIES), ROWS) for number in range(STATIC)}
    observed = {f"observed_{number}": _walks(rng) for number in range(OBSERVED)}
    known = {f"known_{number}": rng.normal(size=total) for number in range(KNOWN)}
    pq.write_table(pa.table(columns | static | observed | known), folder / "shops.parquet")
    settings = {
        "data": {
            "time": "day",
            "series": ["shop"],
            "target": ["sales"],
            "static_reals": list(static),
            "observed_reals": list(observed),
            "known_reals": list(known),
            "calendar": "none",
        },
        "model": {"hidden_size": 128},
        "training": {"epochs": 1, "windows_per_epoch": 256, "validation_windows": 32, "log_every_steps": 1},
    }
    (folder / "run.json").write_text(json.dumps(settings))


def run_preset(preset: Path, folder: Path, cap_gib: float, extra: tuple[str, ...] = ()) -> PresetRun:
    """Trains with one DeepSpeed JSON.

    Args:
        preset: The file.
        folder: Where `write_inputs` has written; the run's folder is made there.
        cap_gib: GPU memory that the run may have.
        extra: Further flags.
    """
    output = folder / preset.stem
    command = [sys.executable, str(ROOT / "benchmarks" / "capped_train.py"), str(cap_gib)]
    command += ["--deepspeed_config", str(preset), "--config", str(folder / "run.json")]
    command += ["--parquet-file", str(folder / "shops.parquet"), "--output-dir", str(output), *extra]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return PresetRun(preset.stem, TIMED_OUT, said=f"no end after {SECONDS} s")
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        return PresetRun(preset.stem, done.returncode, said=lines[-1] if lines else "")
    return read_run(preset.stem, output)


def read_run(preset: str, folder: Path) -> PresetRun:
    """Reads what a run has left."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    tag = next(tag for tag in PEAKS if any(tag in record for record in records))
    seconds = [
        record["throughput/seconds_per_step"] for record in records if "throughput/seconds_per_step" in record
    ]
    return PresetRun(
        preset=preset,
        code=0,
        peak_tag=tag,
        peak_mib=max(record[tag] for record in records if tag in record),
        step_seconds=median(seconds),
        traces=len(list((folder / "traces").glob("*"))),
        memory_tags=sum(tag.startswith("memory/") for tag in _tensorboard_tags(folder)),
    )


def _tensorboard_tags(folder: Path) -> set[str]:
    """Returns the tags of all scalars below a folder."""
    tags: set[str] = set()
    for events in folder.rglob("events.out.tfevents*"):
        accumulator = EventAccumulator(str(events))
        accumulator.Reload()
        tags.update(accumulator.Tags()["scalars"])
    return tags


def _days() -> np.ndarray:
    """Consecutive days."""
    first = np.datetime64("2020-01-01")
    return (first + np.arange(ROWS)).astype("datetime64[us]")


def _walks(rng: np.random.Generator) -> np.ndarray:
    """A random walk per series, one after the other."""
    return rng.normal(size=(SERIES, ROWS)).cumsum(axis=1).ravel()
