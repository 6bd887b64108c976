"""Dropout that can be drawn a second time: masks that follow from a seed, in the order of asking.

Drawing random numbers one by one costs a CPU more than the matrix products around them, so 64 random bits are
drawn at a time and read as four 16-bit numbers, each of which decides on one value. A value is therefore kept
with a probability of k/65536 exactly, k the whole number nearest to (1 - p) * 65536, and scaled by 65536/k.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LEVELS = 2**16
LANES = 4  # 16-bit numbers in 64 bits


class SeededDropout:
    """Masks of zeros and ones. Two instances with one seed, asked for the same shapes, give the same masks.

    On a CPU a mask of shape (C, ...) equals C masks of shape (1, ...) drawn one after the other; a CUDA
    generator does not promise that.

    Args:
        probability: Share of values to drop, above 0 and below 1.
        seed: Where the generator starts.
        device: Where the masks are needed.
    """

    def __init__(self, probability: float, seed: int, device: torch.device) -> None:
        self._kept_levels = min(max(round((1 - probability) * LEVELS), 1), LEVELS - 1)
        self._generator = torch.Generator(device).manual_seed(seed)

    @property
    def keep_probability(self) -> float:
        """Probability with which a value is kept, exactly."""
        return self._kept_levels / LEVELS

    @property
    def scale(self) -> float:
        """What a kept value is multiplied by, so that its expectation stays the same."""
        return LEVELS / self._kept_levels

    def draw(self, out: Tensor) -> Tensor:
        """Fills `out` (C, ...), of any floating-point type, with the next mask and returns it."""
        count = out.shape[0]
        values = out[0].numel()  # per mask of the first dimension: each starts with fresh bits
        bits = torch.empty(count, math.ceil(values / LANES), dtype=torch.int64, device=out.device)
        bits.random_(-(2**63), None, generator=self._generator)  # all 64 bits
        numbers = bits.view(torch.int16)  # -32768 .. 32767
        # 0 below the threshold and 1 from there on, by arithmetic that runs at the speed of memory.
        threshold = LEVELS // 2 - self._kept_levels
        numbers.clamp_(threshold - 1, threshold).sub_(threshold - 1)
        return out.copy_(numbers[:, :values].view(out.shape))


def draw_seed() -> int:
    """Takes a seed from torch's global CPU generator, so that `torch.manual_seed` governs it."""
    return int(torch.randint(2**63 - 1, (), dtype=torch.int64, device="cpu"))
