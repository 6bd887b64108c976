"""Which windows make up which batch: a function of seed, epoch and position, whatever the number of ranks.

Batches are matrices of window numbers; -1 is an empty place, put in so that all batches have the same shape.

Letters: U updates, A micro-batches per update and rank, R ranks, B micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ds_tft.config.batch import BatchSizes

Numbers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochPlan:
    """The updates of every epoch."""

    num_windows: int
    global_batch: int
    windows_per_epoch: int | None = None
    """Windows drawn per epoch without replacement; None takes all."""
    seed: int = 0

    @property
    def windows_used(self) -> int:
        """Windows of one epoch."""
        return min(self.num_windows, self.windows_per_epoch or self.num_windows)

    @property
    def updates_per_epoch(self) -> int:
        """U; the last update may have empty places."""
        return -(-self.windows_used // self.global_batch)

    def updates(self, epoch: int) -> Numbers:
        """Window numbers of each update of an epoch, (U, global batch): shuffled, then padded with -1."""
        generator = np.random.default_rng(np.random.SeedSequence([self.seed, epoch]))
        order = generator.permutation(self.num_windows)[: self.windows_used]
        return _padded(order, self.updates_per_epoch * self.global_batch).reshape(-1, self.global_batch)

    def micro_batches(self, epoch: int, sizes: BatchSizes, rank: int) -> Numbers:
        """Window numbers of each micro-batch of one rank in an epoch, (U*A, B).

        Micro-batch m of update u is row u*A + m. Together the ranks see each update's windows once, so that
        neither their number nor the accumulation changes what an update learns from.

        Args:
            epoch: From 0.
            sizes: With the plan's global batch.
            rank: From 0.
        """
        assert sizes.global_batch == self.global_batch, "another global batch is another plan"
        shape = (-1, sizes.accumulation, sizes.world_size, sizes.micro_batch)
        return self.updates(epoch).reshape(shape)[:, :, rank].reshape(-1, sizes.micro_batch)

    def lines(self) -> list[str]:
        """Describes an epoch for the log."""
        empty = self.updates_per_epoch * self.global_batch - self.windows_used
        line = f"epoch: {self.windows_used} of {self.num_windows} windows in {self.updates_per_epoch} updates"
        lines = [f"{line}, {empty} places of the last one empty" if empty else line]
        if self.windows_per_epoch is not None and self.windows_per_epoch > self.num_windows:
            lines.append(f"windows_per_epoch ({self.windows_per_epoch}) is above what there is: all are used")
        return lines


def evaluation_batches(num_windows: int, batch: int, rank: int = 0, ranks: int = 1) -> Numbers:
    """Window numbers of each evaluation batch of one rank, (number of batches, batch).

    Every window occurs once over all ranks; all ranks have the same number of batches, so that they meet in
    collective operations. Empty places are -1. A batch is no larger than there are windows.
    """
    batch = min(batch, max(num_windows, 1))
    rounds = -(-num_windows // (batch * ranks))
    padded = _padded(np.arange(num_windows), rounds * batch * ranks)
    return padded.reshape(rounds, ranks, batch)[:, rank]


def _padded(numbers: Numbers, length: int) -> Numbers:
    """Fills up with -1."""
    return np.concatenate([numbers, np.full(length - len(numbers), -1)])
