"""The largest batch that a GPU takes, and what a step takes there."""

from __future__ import annotations

import gc
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import torch
from workload import Trial, Workload

from ds_tft.memory.meter import MIB

SMALLEST_BATCH, LARGEST_BATCH = 4, 4096
WARM_UP, STEPS = 3, 10


class StepOnGpu(NamedTuple):
    """One form at work."""

    milliseconds: float
    peak_mib: float
    """Allocated, states included."""


def largest_batch(form: str, device: torch.device, workload: Workload, limit: int = LARGEST_BATCH) -> int:
    """Returns the largest power of two of windows whose step fits, 0 where not even a few do."""
    fitting, batch = 0, SMALLEST_BATCH
    while batch <= limit and _fits(form, device, replace(workload, batch=batch)):
        fitting, batch = batch, 2 * batch
    return fitting


def _fits(form: str, device: torch.device, workload: Workload) -> bool:
    """Says whether a batch fits."""
    try:
        _try_steps(form, device, workload)
    except torch.OutOfMemoryError:
        fits = False
    else:
        fits = True
    _release(device)
    return fits


def _try_steps(form: str, device: torch.device, workload: Workload) -> None:
    """Does two steps: the second one has the optimizer's state from the start."""
    trial = Trial(workload, form, device)
    trial.step()
    trial.step()


def time_steps(form: str, device: torch.device, workload: Workload) -> StepOnGpu:
    """Returns the median time of a step between CUDA events, and the peak."""
    trial = Trial(workload, form, device)
    for _ in range(WARM_UP):
        trial.step()
    torch.cuda.reset_peak_memory_stats(device)
    times = [_time_step(trial) for _ in range(STEPS)]
    peak = torch.cuda.max_memory_allocated(device) / MIB
    del trial
    _release(device)
    return StepOnGpu(median(times), peak)


def _time_step(trial: Trial) -> float:
    """Returns the milliseconds of one step."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    trial.step()
    end.record()
    torch.cuda.synchronize(trial.device)
    return start.elapsed_time(end)


def _release(device: torch.device) -> None:
    """Gives freed memory back, so that the next trial starts as the first one did."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
