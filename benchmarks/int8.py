"""What INT8 does to a model: errors, bytes, memory and time of training, latency, over several seeds.

    python benchmarks/int8.py --parquet-file F.parquet --config run.json

Each seed is trained with `launch/train.py --use-int8`, and quantised without fine-tuning by `launch/quantise.py`;
int8_forms.py fine-tunes in floating point as long, and measures all forms on the test period. The q-risks are means
over the seeds; differences are the mean ones and those of the seed with the largest one. Exit code 1: the fine-tuned
INT8 models are in the mean more than 0.5 % worse or better than floating point, or than their controls, at P50 or
P90. The runs are kept in --folder; a finished one is not made again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from int8_forms import FORMS_FILE
from machine import machine_lines
from tables import print_table, verdict

ROOT = Path(__file__).parents[1]
PLAIN, TUNED, CONTROL = "fp32", "INT8, fine-tuned", "fp32, folded and fine-tuned"
BOUND = 0.005
LEVELS = ("0.1", "0.5", "0.9")
BOUND_LEVELS = ("0.5", "0.9")


class Training(NamedTuple):
    """What a training took."""

    name: str
    kept_mib: float
    """Kept for backward in its second update."""
    peak_mib: float
    """Of live tensors in the same update, states included."""
    step_ms: float
    """Mean after the first log line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs everything and prints two tables."""
    parser = argparse.ArgumentParser(description="Compare INT8 with floating point on one task.")
    parser.add_argument("--parquet-file", required=True, help="the data")
    parser.add_argument("--config", required=True, help="run JSON of the task")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/int8"), help="of the runs (default: runs/int8)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default: 0 1 2")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="as of launch/train.py")
    parser.add_argument("--target", help="as of launch/train.py")
    parser.add_argument("--batch-size", type=int, help="as of launch/train.py")
    parser.add_argument("--epochs", type=int, help="as of launch/train.py")
    options = parser.parse_args(argv)
    print(*machine_lines(("torch", "deepspeed")), sep="\n", flush=True)
    runs = [_run(options, seed) for seed in options.seeds]
    forms = [json.loads((run / FORMS_FILE).read_text(encoding="utf-8")) for run in runs]
    print_table(
        ("form", *(f"P{float(level) * 100:.0f} q-risk" for level in LEVELS), "P50 vs fp32", "P90 vs fp32",
         "weights KiB", "ms per 32 windows"),
        [_form_row(name, forms) for name in forms[0]],
    )  # fmt: skip
    print_table(
        ("training", "kept for backward MiB", "peak of live tensors MiB", "ms per step"),
        [(one.name, f"{one.kept_mib:.2f}", f"{one.peak_mib:.1f}", f"{one.step_ms:.0f}") for one in _trainings(runs[0])],
    )  # fmt: skip
    missed = False
    for other in (PLAIN, CONTROL):
        for level in BOUND_LEVELS:
            differences = _differences(TUNED, other, level, forms)
            said = verdict(abs(mean(differences)), BOUND)
            missed |= said == "MISS"
            print(
                f"{TUNED} against {other}, P{float(level) * 100:.0f}: mean {mean(differences):+.3%}, "
                f"seeds {' '.join(f'{one:+.3%}' for one in differences)}, bound of the mean {BOUND:.1%}: {said}"
            )
    return int(missed)


def _run(options: argparse.Namespace, seed: int) -> Path:
    """Makes the runs of one seed; returns the folder."""
    run = options.folder / f"{Path(options.config).stem}-{Path(options.parquet_file).stem}-{seed}"
    ptq = run.with_name(f"{run.name}-ptq")
    data = ["--parquet-file", options.parquet_file]
    settings = ["--config", options.config, "--seed", str(seed)]
    for flag, value in {
        "--target": options.target,
        "--epochs": options.epochs,
        "--batch-size": options.batch_size,
    }.items():
        settings += [] if value is None else [flag, str(value)]
    settings += [part for override in options.overrides for part in ("--set", override)]
    if not (run / "evaluation_int8.json").exists():
        _call("launch/train.py", *data, *settings, "--use-int8", "--output-dir", str(run))
    if not (ptq / "evaluation_int8.json").exists():
        given = ("--model", str(run), *data, "--fine-tune-steps", "0", "--output-dir", str(ptq))
        _call("launch/quantise.py", *given)
    if not (run / FORMS_FILE).exists():
        _call("benchmarks/int8_forms.py", "--run", str(run), "--ptq", str(ptq), *data, *settings)
    return run


def _call(script: str, *arguments: str) -> None:
    """Runs a script; what it says is shown where it fails."""
    print(f"{script} {' '.join(arguments)}", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, str(ROOT / script), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{done.stderr}\n{script}: exit code {done.returncode}")


def _form_row(name: str, forms: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """One line of the first table."""
    means = [sum(seed[name]["q_risk"][level] for seed in forms) / len(forms) for level in LEVELS]
    differences = [_both(_differences(name, PLAIN, level, forms)) for level in BOUND_LEVELS]
    latency = sum(seed[name]["milliseconds"] for seed in forms) / len(forms)
    return (
        name,
        *(f"{mean:.5f}" for mean in means),
        *differences,
        f"{forms[0][name]['weight_bytes'] / 1024:.1f}",
        f"{latency:.1f}",
    )


def _differences(name: str, other: str, level: str, forms: Sequence[dict[str, Any]]) -> list[float]:
    """The relative difference of one level in each seed."""
    return [seed[name]["q_risk"][level] / seed[other]["q_risk"][level] - 1 for seed in forms]


def _both(differences: Sequence[float]) -> str:
    """The mean difference, and the largest one."""
    return f"{mean(differences):+.3%} ({max(differences, key=abs):+.3%})"


def _trainings(run: Path) -> list[Training]:
    """What the trainings in a run took."""
    folders = {
        "floating point": run,
        "quantisation-aware, folded": run / "int8",
        "the same in fp32": run / "control",
    }
    return [_training(name, folder) for name, folder in folders.items()]


def _training(name: str, folder: Path) -> Training:
    """Reads the records of one training."""
    trace = json.loads((folder / "traces" / "step-2.json").read_text(encoding="utf-8"))
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    times = [json.loads(line).get("throughput/seconds_per_step") for line in lines]
    later = [time for time in times if time is not None][1:] or [time for time in times if time is not None]
    return Training(
        name=name,
        kept_mib=trace["kept_for_backward_mib"],
        peak_mib=trace["peak_live_mib"],
        step_ms=1e3 * sum(later) / len(later),
    )


if __name__ == "__main__":
    sys.exit(main())
