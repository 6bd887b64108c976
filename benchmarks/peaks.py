"""Peak of live tensors beside the training state."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile


def peak_beside_states(
    step: Callable[[], object], parameters: Sequence[nn.Parameter], device: torch.device
) -> int:
    """Returns the highest sum of bytes of the device's live tensors while `step` runs, beyond those of the states.

    What was live before is left out: it is to hold weights and optimizer state, and no gradients. A gradient is
    left out from the moment it is allocated to the end. What worker threads allocate by themselves is not seen:
    results of single operations on a chunk.

    Args:
        step: What to measure, run once before. It leaves the gradients of the parameters behind.
        parameters: Of the model.
        device: Where the model is.
    """
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events = recorded.profiler.kineto_results.experimental_event_tree()
    changes = sorted(_allocations(events, device), key=lambda event: event.start_time_ns)
    # A gradient is what was allocated last at its address.
    last = {event.extra_fields.ptr: number for number, event in enumerate(changes)}
    gradients = [
        parameter.grad.untyped_storage().data_ptr() for parameter in parameters if parameter.grad is not None
    ]
    states = {last[address] for address in gradients}
    live = peak = 0
    for number, event in enumerate(changes):
        live += 0 if number in states else event.extra_fields.alloc_size
        peak = max(peak, live)
    return peak


def _allocations(events: Sequence[Any], device: torch.device) -> Iterator[Any]:
    """Yields what allocates or frees memory of a device, of a tree of events."""
    waiting = list(reversed(events))
    while waiting:
        event = waiting.pop()
        if event.tag.name == "Allocation" and event.extra_fields.device.type == device.type:
            yield event
        waiting.extend(reversed(event.children))
