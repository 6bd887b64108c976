"""Dropout that can be drawn a second time: masks that follow from a seed, the variable and the order of rows.

Drawing random numbers one by one costs a CPU more than the matrix products around them, so 64 random bits are
drawn at a time and read as four 16-bit numbers, each of which decides on one value. A value is therefore kept
with a probability of k/65536 exactly, k the whole number nearest to (1 - p) * 65536, and scaled by 65536/k.

Letters: C variables, R rows (batch x time), H hidden size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LEVELS = 2**16
LANES = 4  # 16-bit numbers in 64 bits


class SeededDropout:
    """Masks of zeros and ones. Two instances with one seed, asked for the same, give the same.

    On a CPU each variable's mask depends on nothing but the seed and its number, as long as rows come in
    order and, where they come in several calls, H is a multiple of four. On CUDA, where a kernel per variable
    takes too long to launch, it depends on which variables are asked for together.

    Args:
        probability: Share of values to drop, above 0 and below 1.
        seed: What all masks follow from.
        device: Where the masks are needed.
    """

    def __init__(self, probability: float, seed: int, device: torch.device) -> None:
        self._kept_levels = min(max(round((1 - probability) * LEVELS), 1), LEVELS - 1)
        self._seed = seed
        self._generator = torch.Generator(device)

    @property
    def keep_probability(self) -> float:
        """Probability with which a value is kept, exactly."""
        return self._kept_levels / LEVELS

    @property
    def scale(self) -> float:
        """What a kept value is multiplied by, so that its expectation stays the same."""
        return LEVELS / self._kept_levels

    def draw(self, first_variable: int, out: Tensor, *, begin: bool = True) -> Tensor:
        """Fills `out` with the masks of some variables and returns it.

        Args:
            first_variable: Number of the first one.
            out: Shape (C, R, H), of any floating-point type.
            begin: Start with the first rows, or else go on after those of the last call, of one variable.
        """
        values = out.shape[1] * out.shape[2]  # of a variable; each starts with fresh bits
        bits = torch.empty(len(out), math.ceil(values / LANES), dtype=torch.int64, device=out.device)
        for variable, part in enumerate(bits.unbind() if bits.device.type == "cpu" else [bits]):
            if begin:
                self._generator.manual_seed((self._seed + first_variable + variable) % 2**63)
            part.random_(-(2**63), None, generator=self._generator)  # all 64 bits
        numbers = bits.view(torch.int16)  # -32768 .. 32767
        # 0 below the threshold and 1 from there on, by arithmetic that runs at the speed of memory.
        threshold = LEVELS // 2 - self._kept_levels
        numbers.clamp_(threshold - 1, threshold).sub_(threshold - 1)
        return out.copy_(numbers[:, :values].view(out.shape))


def draw_seed() -> int:
    """Takes a seed from torch's global CPU generator, so that `torch.manual_seed` governs it."""
    return int(torch.randint(2**63 - 1, (), dtype=torch.int64, device="cpu"))
