"""How kept memory, peak and step time grow with the number of variables and with the batch.

    python benchmarks/growth.py

The workload is that of workload.py, on one thread, with 25 to 900 variables at batch 32, and with batches of 32 to 512
at 225 variables. Kept and peak are those of memory.py; the time is that of the shorter one of two steps, in processor
time (on a GPU, wall time). The plain form is left out where it would take more than `--limit-gib`.

Every point is added to `--results`; what is in there already is not measured again. The table and the plot show all
that is in there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from growth_plot import Point, save_plot
from machine import machine_lines
from tables import print_table
from workload import Trial, Workload, find_device

from ds_tft.memory.meter import MIB

FORMS = ("plain", "streaming", "checkpointing")
VARIABLES = (25, 100, 225, 450, 900)
BATCHES = (32, 64, 128, 256, 512)
STANDARD = Workload()
Wanted = tuple[str, Workload]
"""A form and its sizes."""
PLAIN_MIB_PER_CELL = 0.35
"""Peak of the plain form per variable and window at hidden size 128, in MiB; rounded up."""


def main(argv: Sequence[str] | None = None) -> None:
    """Measures what is missing, prints a table and draws a plot."""
    parser = argparse.ArgumentParser(description="Measure how cost grows.")
    parser.add_argument("--hidden-size", type=int, default=128, help="default: 128")
    parser.add_argument("--variables", type=int, nargs="+", default=list(VARIABLES), help="at batch 32")
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES), help="at 225 variables")
    parser.add_argument("--limit-gib", type=float, default=8.0, help="memory for the plain form (default: 8)")
    parser.add_argument("--results", type=Path, default=Path("growth.jsonl"), help="default: growth.jsonl")
    parser.add_argument(
        "--plot", type=Path, default=Path("docs/images/growth.png"), help="where the plot goes"
    )
    options = parser.parse_args(argv)
    device = find_device()
    torch.set_num_threads(STANDARD.threads)
    print(*machine_lines(("torch", "deepspeed")), sep="\n")
    sizes = [(variables, STANDARD.batch) for variables in options.variables]
    sizes += [(STANDARD.variables, batch) for batch in options.batches]
    wanted = list(_wanted(dict.fromkeys(sizes), options.hidden_size, options.limit_gib))
    points = measure_missing(wanted, options.results, device)
    print_table(["form", "variables", "batch", "kept MiB", "peak MiB", "step s"], map(_row, points))
    save_plot(points, options.plot)
    print(f"plot: {options.plot}")


def _wanted(sizes: Iterable[tuple[int, int]], hidden_size: int, limit_gib: float) -> Iterator[Wanted]:
    """Yields forms and sizes that fit in memory."""
    for form in FORMS:
        for variables, batch in sizes:
            expected_gib = PLAIN_MIB_PER_CELL * hidden_size / STANDARD.hidden_size * variables * batch / 1024
            if form != "plain" or expected_gib <= limit_gib:
                yield form, Workload(hidden_size=hidden_size, variables=variables, batch=batch)


def measure_missing(wanted: Sequence[Wanted], results: Path, device: torch.device) -> list[Point]:
    """Returns the points of a file, with those that it lacks measured and added."""
    points = (
        [Point(**json.loads(line)) for line in results.read_text().splitlines()] if results.exists() else []
    )
    done = {(point.form, point.hidden_size, point.variables, point.batch) for point in points}
    for form, workload in wanted:
        if (form, workload.hidden_size, workload.variables, workload.batch) in done:
            continue
        point = measure(form, workload, device)
        points.append(point)
        with results.open("a") as file:
            file.write(json.dumps(asdict(point)) + "\n")
    return points


def measure(form: str, workload: Workload, device: torch.device) -> Point:
    """Measures one form at one size."""
    trial = Trial(workload, form, device)
    kept, peak = trial.kept_bytes() / MIB, trial.peak_bytes() / MIB
    steps = [trial.step_seconds().step for _ in range(2)]
    seconds = min(step.wall if device.type == "cuda" else step.cpu for step in steps)
    return Point(
        form=form,
        hidden_size=workload.hidden_size,
        variables=workload.variables,
        batch=workload.batch,
        kept_mib=kept,
        peak_mib=peak,
        step_seconds=seconds,
    )


def _row(point: Point) -> list[str]:
    """Cells of a point."""
    figures = (f"{point.kept_mib:,.1f}", f"{point.peak_mib:,.1f}", f"{point.step_seconds:.2f}")
    return [point.form, str(point.variables), str(point.batch), *figures]


if __name__ == "__main__":
    main()
