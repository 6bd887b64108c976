"""What training keeps and what it peaks at, beside the bounds.

    python benchmarks/memory.py

The workload is that of workload.py; the bounds are meant for its sizes. Kept for backward is what autograd holds on
the device once the forward is done, without weights and batch. The peak is that of a whole step, less the states:
weights, gradients and optimizer state. Each thread of a CPU has a chunk of variables of its own at work. The growth of
that peak is the mean from the batch to one 8 times as large; the plain form, which would need a dozen GiB
there, is measured from a quarter of the batch. Exit code 1: a bound is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from machine import machine_lines
from tables import print_table, verdict
from workload import FORMS, Trial, Workload, find_device

from ds_tft.memory.meter import MIB

LARGER = 8  # batch 32 to 256
KEPT, HOST, PEAK = "kept for backward", "moved to host memory", "peak live less states"
GROWTH = "growth of that peak per window"
BOUNDS_MIB = {
    (KEPT, "streaming"): 60.0,
    (KEPT, "checkpointing"): 20.0,
    (KEPT, "offload"): 8.0,
    (PEAK, "checkpointing"): 100.0,
    (GROWTH, "checkpointing"): 1.2,
}
TRACED = ("plain", "streaming", "checkpointing")
"""Forms whose peak is measured. On a CPU offload moves nothing out of it."""


class Figure(NamedTuple):
    """What was measured."""

    name: str
    form: str
    mib: float


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description="Measure what training keeps and peaks at.")
    parser.add_argument("--hidden-size", type=int, default=128, help="default: 128")
    parser.add_argument("--batch", type=int, default=32, help="windows per step (default: 32)")
    parser.add_argument("--variables", type=int, default=225, help="inputs of the model (default: 225)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="torch threads (default: 1 2)")
    options = parser.parse_args(argv)
    workload = Workload(hidden_size=options.hidden_size, batch=options.batch, variables=options.variables)
    device = find_device()
    print(*machine_lines(("torch", "deepspeed")), sep="\n")
    columns = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        columns.append(list(measure(workload, device)))
    return print_figures(columns, options.threads)


def measure(workload: Workload, device: torch.device) -> Iterator[Figure]:
    """Measures one form after the other."""
    for form in FORMS:
        trial = Trial(workload, form, device)
        yield Figure(KEPT, form, trial.kept_bytes() / MIB)
        if form == "offload":
            yield Figure(HOST, form, trial.host_bytes() / MIB)
        if form in TRACED:
            peak = trial.peak_bytes() / MIB
            yield Figure(PEAK, form, peak)
            del trial
            yield Figure(GROWTH, form, measure_growth(workload, form, peak, device))


def measure_growth(workload: Workload, form: str, peak: float, device: torch.device) -> float:
    """Returns how much the peak grows with every window more, from its value at the workload's batch."""
    batch = workload.batch
    other = max(1, batch // 4) if form == "plain" else LARGER * batch
    other_peak = Trial(replace(workload, batch=other), form, device).peak_bytes() / MIB
    return (other_peak - peak) / (other - batch)


def print_figures(columns: Sequence[Sequence[Figure]], threads: Sequence[int]) -> int:
    """Prints a row for each figure; returns 1 where a bound is missed."""
    headings = ["MiB", "form", "at most"]
    for count in threads:
        headings += [f"{count} thread{'s' if count > 1 else ''}", ""]
    rows = []
    for measured in sorted(
        zip(*columns, strict=True), key=lambda row: (KEPT, HOST, PEAK, GROWTH).index(row[0].name)
    ):
        name, form, _ = measured[0]
        bound = BOUNDS_MIB.get((name, form))
        row = [name, form, "" if bound is None else f"{bound:g}"]
        for figure in measured:
            row += [f"{figure.mib:,.2f}", verdict(figure.mib, bound)]
        rows.append(row)
    print_table(headings, rows)
    return int(any("MISS" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
