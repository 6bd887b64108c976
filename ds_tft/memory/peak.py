"""Peak live bytes of a step: the highest sum of the bytes of live tensors, beyond those live before it."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from ds_tft.memory.trace.allocations import AllocationRecorder
from ds_tft.memory.trace.timeline import Place, timeline_of


def peak_live_bytes(step: Callable[[], object], device: torch.device) -> int:
    """Returns the highest sum of live tensor bytes while `step` runs, less what was live before.

    On CUDA it is read from the allocator, on a CPU from the record of every allocation, those of streaming's
    threads included: exact for tensors, without what math libraries take for themselves.

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
    recorder = AllocationRecorder[Place](device)
    recorder.start()
    try:
        step()
    finally:
        allocations = recorder.stop()
    return timeline_of(allocations).peak
