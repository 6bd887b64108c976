"""What is known when an update has run out of memory."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

from torch import nn

from ds_tft.memory.meter import MIB, MemoryReading


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfMemory:
    """Where an update ran out of memory; names are empty where they are not known."""

    step: int
    phase: str
    """Phase in which it failed, empty between phases."""
    block: str
    """Block that was entered last."""
    message: str
    """First line of the error."""
    reading: MemoryReading
    """Memory in use at that time."""
    live: int | None
    """Bytes of live tensors at that time; `None` if the update was not recorded on a CPU."""

    def line(self) -> str:
        """Says it in one line."""
        block = f", in or after block {self.block}" if self.block else ""
        return f"step {self.step}: out of memory in {self.phase or 'between phases'}{block}: {self.message}"

    def record(self) -> dict[str, Any]:
        """Returns it for a JSON file; memory in MiB, `null` where it is not known."""
        cuda = self.reading.cuda
        found: dict[str, Any] = {
            "step": self.step,
            "phase": self.phase or None,
            "last_block": self.block or None,
            "message": self.message,
            "live_mib": None if self.live is None else self.live / MIB,
            "host_rss_mib": self.reading.host_rss / MIB,
            "host_rss_peak_mib": self.reading.host_rss_peak / MIB,
        }
        if cuda is not None:
            found |= {
                "cuda_allocated_mib": cuda.allocated / MIB,
                "cuda_allocated_peak_mib": cuda.allocated_peak / MIB,
                "cuda_reserved_mib": cuda.reserved / MIB,
                "cuda_device_used_mib": cuda.used / MIB,
                "cuda_device_total_mib": cuda.total / MIB,
            }
        return found


def first_line(error: BaseException) -> str:
    """Returns the first line of what an error says."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def failing_block(error: BaseException, model: nn.Module) -> str:
    """Returns the block that an error came from, as far as its traceback tells; otherwise nothing."""
    names = {id(block): name for name, block in model.named_children()}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if id(value) in names:
                return names[id(value)]
    return ""


def drop_locals(error: BaseException) -> None:
    """Lets go of what the calls that failed held, so that there is memory to write with."""
    traceback.clear_frames(error.__traceback__)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        _ = frame.f_locals  # in Python 3.11 and 3.12, reading them also empties the copy that was read before
