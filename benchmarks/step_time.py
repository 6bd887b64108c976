"""How long a step takes, beside the bounds, and how many windows are evaluated per second.

    python benchmarks/step_time.py
    python benchmarks/step_time.py --profile streaming

The workload is that of workload.py; the bounds are meant for its sizes. Each form has a process, and their steps take
turns; a ratio is the median over turns of the ratio within a turn. Processor time is that of all threads: other
work on the machine disturbs it least. On a GPU it is the host's share, and only the wall time counts.
Exit code 1: a bound is missed.

On a CPU the plain form spends much of its time on fresh pages for its large tensors. `--malloc keep` tells glibc to
keep freed memory, as the allocator of a GPU does, and spares all forms that.

`--profile` shows where the processor time of a step in one form goes, by operation.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import torch
from machine import machine_lines
from processes import form_processes
from tables import print_table, verdict
from torch.profiler import ProfilerActivity, profile
from workload import FORMS, Seconds, StepSeconds, Trial, Workload, find_device

KEEP_FREED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(2**26)}
BOUNDS = {("streaming", "plain"): 0.7, ("checkpointing", "streaming"): 1.2, ("offload", "checkpointing"): 1.1}
ROWS_OF_PROFILE = 25


class Turn(NamedTuple):
    """What one form did while it had its turn."""

    step: StepSeconds
    evaluation: Seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints tables."""
    parser = argparse.ArgumentParser(description="Measure how long a step takes.")
    parser.add_argument("--hidden-size", type=int, default=128, help="default: 128")
    parser.add_argument("--batch", type=int, default=32, help="windows per step (default: 32)")
    parser.add_argument("--variables", type=int, default=225, help="inputs of the model (default: 225)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="torch threads (default: 1 2)")
    parser.add_argument("--rounds", type=int, default=7, help="steps of each form (default: 7)")
    parser.add_argument(
        "--malloc", choices=["default", "keep"], default="default", help="freed memory on a CPU"
    )
    parser.add_argument("--profile", choices=FORMS, help="show where the time of this form goes, and no more")
    options = parser.parse_args(argv)
    workload = Workload(hidden_size=options.hidden_size, batch=options.batch, variables=options.variables)
    device = find_device()
    print(*machine_lines(("torch", "deepspeed")), sep="\n")
    if options.profile:
        torch.set_num_threads(options.threads[0])
        print(profile_step(workload, options.profile, device))
        return 0
    if options.malloc == "keep":
        os.environ.update(KEEP_FREED)  # for the processes that are started from here
    met = True
    for threads in options.threads:
        turns = take_turns(replace(workload, threads=threads), options.rounds)
        print(f"{threads} torch thread{'s' if threads > 1 else ''}, malloc {options.malloc}")
        _print_forms(turns, options.batch)
        met = print_ratios(turns, on_gpu=device.type == "cuda") and met
    return int(not met)


def take_turns(workload: Workload, rounds: int) -> dict[str, list[Turn]]:
    """Lets the forms take turns, and returns what each of them did."""
    turns: dict[str, list[Turn]] = {form: [] for form in FORMS}
    with form_processes(workload, tuple(FORMS)) as processes:
        for number in range(rounds + 1):
            # The order turns around, so that none is always behind the same other one.
            for form in tuple(FORMS)[:: 1 if number % 2 else -1]:
                process = processes[form]
                turns[form].append(Turn(process.ask("step_seconds"), process.ask("evaluation_seconds")))
    return {form: done[1:] for form, done in turns.items()}  # the first round warms up


def profile_step(workload: Workload, form: str, device: torch.device) -> str:
    """Returns the operations that a step spends most time in."""
    trial = Trial(workload, form, device)
    trial.step()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as recorded:
        trial.step()
    order = f"self_{device.type}_time_total"
    table: str = recorded.key_averages().table(
        sort_by=order, row_limit=ROWS_OF_PROFILE, max_name_column_width=40
    )
    return table


def _print_forms(turns: dict[str, list[Turn]], batch: int) -> None:
    """Prints the medians of each form."""
    headings = [
        "form",
        "step s, wall",
        "step s, CPU",
        "forward",
        "backward",
        "update",
        "evaluation windows/s",
    ]
    print_table(headings, (_form_row(form, done, batch) for form, done in turns.items()))


def _form_row(form: str, done: Sequence[Turn], batch: int) -> list[str]:
    """Cells of a form; parts of a step are in CPU seconds."""
    steps = [turn.step for turn in done]
    seconds = [median(step.step.wall for step in steps), median(step.step.cpu for step in steps)]
    seconds += [median(getattr(step, part).cpu for step in steps) for part in StepSeconds._fields]
    speed = batch / median(turn.evaluation.wall for turn in done)
    return [form, *(f"{each:.3f}" for each in seconds), f"{speed:.1f}"]


def print_ratios(turns: dict[str, list[Turn]], *, on_gpu: bool) -> bool:
    """Prints the ratios; returns whether all bounds are met, in CPU time or, on a GPU, in wall time."""
    rows = []
    for (form, other), bound in BOUNDS.items():
        pairs = [(a.step.step, b.step.step) for a, b in zip(turns[form], turns[other], strict=True)]
        wall = median(a.wall / b.wall for a, b in pairs)
        cpu = median(a.cpu / b.cpu for a, b in pairs)
        said = verdict(wall if on_gpu else cpu, bound)
        rows.append([f"{form} / {other}", f"{bound:g}", f"{cpu:.2f}", f"{wall:.2f}", said])
    print_table(["step time", "at most", "CPU", "wall", ""], rows)
    return all(row[-1] == "pass" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
