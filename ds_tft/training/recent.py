"""Loss and time of the updates since the last log line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed


@dataclass(frozen=True, slots=True)
class Timing:
    """Time spent in updates; validations and saves are not in it."""

    seconds: float = 0.0
    updates: int = 0
    windows: int = 0

    @property
    def seconds_per_step(self) -> float:
        """Mean seconds of an update."""
        return self.seconds / max(self.updates, 1)

    @property
    def windows_per_second(self) -> float:
        """Windows trained on per second, over all processes."""
        return self.windows / self.seconds if self.seconds else 0.0

    def __add__(self, other: Timing) -> Timing:
        return Timing(
            self.seconds + other.seconds, self.updates + other.updates, self.windows + other.windows
        )


class Recent:
    """What happened since the last log line. Losses stay on the device until they are asked for.

    Args:
        losses: Those before a resumed run was left, over all processes.
    """

    def __init__(self, losses: Sequence[float] = ()) -> None:
        self.timing = Timing()
        self._known = list(losses)  # over all processes
        self._own: list[torch.Tensor] = []  # of this process, later than those
        self._since = perf_counter()

    def add(self, loss: torch.Tensor, windows: int) -> None:
        """Takes in one update: this process's part of its loss, and the windows of all processes."""
        self._own.append(loss)
        now = perf_counter()
        self.timing = self.timing + Timing(now - self._since, 1, windows)
        self._since = now

    def restart_clock(self) -> None:
        """Leaves out the time since the last update (validation, saving)."""
        self._since = perf_counter()

    def losses(self) -> list[float]:
        """Returns the loss of each update over all processes, oldest first. All processes must call this."""
        if self._own:
            own = torch.stack(self._own)
            torch.distributed.all_reduce(own)
            self._known += own.tolist()
            self._own = []
        return list(self._known)
