"""Peak live bytes of a step: the highest sum of the bytes of live tensors, beyond those live before it."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def peak_live_bytes(step: Callable[[], object], device: torch.device) -> int:
    """Returns the highest sum of live tensor bytes while `step` runs, less what was live before.

    On CUDA it is read from the allocator, on a CPU from the profiler's record of this thread's allocations:
    exact for tensors, without what math libraries take for themselves.

    Args:
        step: What to measure; run it once before, so that first-time allocations do not count.
        device: Where it runs.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events = recorded.profiler.kineto_results.events()
    # Events of one nanosecond keep the order in which they were recorded.
    changes = sorted(
        (event.start_ns(), number, event.nbytes())
        for number, event in enumerate(events)
        if event.name() == "[memory]"
    )
    live = peak = 0
    for _, _, change in changes:
        live += change
        peak = max(peak, live)
    return peak
