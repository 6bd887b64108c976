"""Live bytes over the time of an update, cut into the stretches in which a phase or a block ran."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ds_tft.memory.trace.allocations import Allocations

FORWARD, BACKWARD, OPTIMIZER = PHASES = ("forward", "backward", "optimizer")
OUTSIDE = ""
"""Name of the phase, or block, where none runs."""


class Place(NamedTuple):
    """Where an update is."""

    phase: str = OUTSIDE
    block: str = OUTSIDE


class Stretch(NamedTuple):
    """Time in one place; bytes are those above what was live when the update began."""

    place: Place
    start: float
    """Seconds since the update began."""
    stop: float
    entry: int
    """Live bytes on arrival."""
    exit: int
    """Live bytes on departure."""
    peak: int
    """Highest live bytes in between, both ends included."""

    @property
    def workspace(self) -> int:
        """Bytes that were needed in between only: neither found on arrival nor left on departure."""
        return self.peak - max(self.entry, self.exit)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Live bytes above those when the update began, after each of n changes."""

    seconds: NDArray[np.float64]  # (n,) since the update began
    live: NDArray[np.int64]  # (n,)
    stretches: tuple[Stretch, ...]
    """In the order of time, without gaps."""

    @property
    def peak(self) -> int:
        """Highest live bytes."""
        return max((each.peak for each in self.stretches), default=0)

    def runs(self, key: Callable[[Place], Hashable]) -> tuple[Stretch, ...]:
        """Returns the stretches, neighbours with the same key joined; a place is that of the first."""
        return tuple(
            _joined(list(group)) for _, group in groupby(self.stretches, lambda each: key(each.place))
        )


def timeline_of(allocations: Allocations[Place]) -> Timeline:
    """Adds up what was recorded.

    Args:
        allocations: Their marks say where the update is from then on.
    """
    seconds = np.array([change.seconds for change in allocations.changes], dtype=np.float64)
    live = np.cumsum(np.array([change.bytes for change in allocations.changes], dtype=np.int64))
    starts = [(0.0, 0, Place()), *allocations.marks]
    ends = [*starts[1:], (allocations.seconds, len(live), Place())]
    stretches = [
        _stretch(live, place, (start, stop), (first, last))
        for (start, first, place), (stop, last, _) in zip(starts, ends, strict=True)
    ]
    return Timeline(seconds=seconds, live=live, stretches=tuple(stretches))


def _stretch(
    live: NDArray[np.int64], place: Place, times: tuple[float, float], span: tuple[int, int]
) -> Stretch:
    """Reads off the bytes of the changes `span[0] .. span[1] - 1`."""
    first, last = span
    entry = int(live[first - 1]) if first else 0
    exit_ = int(live[last - 1]) if last else 0
    return Stretch(place, *times, entry, exit_, max([entry, *live[first:last].tolist()]))


def _joined(stretches: Iterable[Stretch]) -> Stretch:
    """Returns neighbours as one."""
    stretches = list(stretches)
    first, last = stretches[0], stretches[-1]
    peak = max(each.peak for each in stretches)
    return Stretch(first.place, first.start, last.stop, first.entry, last.exit, peak)
