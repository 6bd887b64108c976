"""What has to be seen on a CUDA machine: parity, peaks under a cap, largest batches, step times, traces.

    benchmarks/gpu_check.sh

Takes less than 5 minutes. Parity compares loss and gradients of every form with the plain one on the CPU, without
dropout, and those of recomputing forms with streaming on the GPU, with dropout. Every DeepSpeed JSON of
ds_configs trains on 225 inputs, hidden size 128, batch 32, with `--cap-gib` of the card. So do the forms of
workload.py, with more and more windows, for the largest batch. Step times are medians between CUDA events.
Exit code 0: all passed. 1: something failed. 2: there is no CUDA.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch
from capped_train import cap_memory
from gpu_fit import largest_batch, time_steps
from gpu_parity import distance_to_cpu, distance_to_streaming
from gpu_presets import PRESETS, PresetRun, run_preset, write_inputs
from machine import machine_lines
from tables import print_table
from workload import FORMS, Workload, find_device

NO_CUDA = 2
RECOMPUTING = ("checkpointing", "offload")
TO_CPU = 1e-4  # fp32, another order of additions
TO_STREAMING = 1e-5  # the same operations; cuDNN may add up in varying order
LEAST_BATCH = {"plain": 0, "streaming": 32, "checkpointing": 32, "offload": 32}


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    value: str
    bound: str = ""
    passed: bool | None = None
    """`None` where nothing is asked of the value."""


def main(argv: Sequence[str] | None = None) -> int:
    """Checks and prints a table."""
    parser = argparse.ArgumentParser(description="Check training on a GPU.")
    parser.add_argument("--cap-gib", type=float, default=4.0, help="memory of the card to use (default: 4)")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print(
            f"gpu_check: needs a CUDA GPU and a CUDA build of torch, got torch {torch.__version__}; nothing checked"
        )
        return NO_CUDA
    started = perf_counter()
    device = find_device()
    print(*machine_lines(("torch", "deepspeed")), sep="\n")
    checks = [*check_parity(device), *check_presets(options.cap_gib)]
    cap_memory(options.cap_gib)
    checks += [*check_batches(device), *check_times(device)]
    print_table(["check", "value", "bound", ""], map(_row, checks))
    failed = [check.name for check in checks if check.passed is False]
    print(f"{'FAIL: ' + ', '.join(failed) if failed else 'PASS'}; {perf_counter() - started:.0f} s")
    return int(bool(failed))


def check_parity(device: torch.device) -> Iterator[Check]:
    """Compares losses and gradients."""
    for form in FORMS:
        distance = distance_to_cpu(form, device)
        yield Check(f"{form}: distance to the CPU", f"{distance:.1e}", f"{TO_CPU:.0e}", distance <= TO_CPU)
    for form in RECOMPUTING:
        distance = distance_to_streaming(form, device)
        passed = distance <= TO_STREAMING
        yield Check(f"{form}: distance to streaming", f"{distance:.1e}", f"{TO_STREAMING:.0e}", passed)


def check_presets(cap_gib: float) -> Iterator[Check]:
    """Trains with every DeepSpeed JSON."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        for preset in PRESETS:
            yield from _preset_checks(run_preset(preset, folder, cap_gib), cap_gib)


def _preset_checks(run: PresetRun, cap_gib: float) -> Iterator[Check]:
    """Says how a run went."""
    if run.code:
        yield Check(f"{run.preset}: trains", run.said, "", False)
        return
    within = run.peak_mib <= cap_gib * 1024
    yield Check(f"{run.preset}: peak, {run.peak_tag}", f"{run.peak_mib:,.0f} MiB", f"{cap_gib:g} GiB", within)
    yield Check(f"{run.preset}: step", f"{1000 * run.step_seconds:.0f} ms")
    traces = f"{run.memory_tags} memory tags, {run.traces} files"
    yield Check(f"{run.preset}: traces", traces, "some of each", bool(run.memory_tags and run.traces))


def check_batches(device: torch.device) -> Iterator[Check]:
    """Looks for the largest batch of every form under the cap."""
    for form in FORMS:
        batch, least = largest_batch(form, device, Workload()), LEAST_BATCH[form]
        yield Check(f"{form}: largest batch", f"{batch} windows", f"{least} or more", batch >= least)


def check_times(device: torch.device) -> Iterator[Check]:
    """Times a step of every form, where it fits."""
    for form in FORMS:
        try:
            step = time_steps(form, device, Workload())
        except torch.OutOfMemoryError:
            yield Check(f"{form}: step, batch {Workload().batch}", "out of memory")
            continue
        yield Check(
            f"{form}: step, batch {Workload().batch}", f"{step.milliseconds:.1f} ms, {step.peak_mib:,.0f} MiB"
        )


def _row(check: Check) -> tuple[str, str, str, str]:
    """Cells of a check."""
    verdict = "" if check.passed is None else "PASS" if check.passed else "FAIL"
    return check.name, check.value, check.bound, verdict


if __name__ == "__main__":
    sys.exit(main())
