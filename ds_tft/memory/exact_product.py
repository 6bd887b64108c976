"""Products of whole numbers of 8 bits, exact in floating point.

float32 holds whole numbers up to 2**24 exactly, so a sum of products of 8-bit codes is exact, in whatever order it
is taken, as long as it has no more than `LONGEST_SUM` terms. Longer ones are cut into parts that are; where the whole
passes 2**24, adding a part rounds it, always in the same way. A matrix product in float32 is then INT8 arithmetic at
the speed of float32, also with the shortened mantissa of TF32, which holds codes exactly.

Letters: C variables of a chunk, R rows (batch x time), I input size, O output size.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST_CODE = 127
SMALLEST_CODE = -128
LONGEST_SUM = 2**24 // (-SMALLEST_CODE * LARGEST_CODE)


def exact_bmm(inputs: Tensor, weights: Tensor, out: Tensor) -> None:
    """Writes `inputs @ weights` to `out`.

    Args:
        inputs: Codes, shape (C, R, I) float32.
        weights: Codes, shape (C, I, O) float32.
        out: Shape (C, R, O) float32.
    """
    torch.bmm(inputs[..., :LONGEST_SUM], weights[:, :LONGEST_SUM], out=out)
    for start in range(LONGEST_SUM, inputs.shape[-1], LONGEST_SUM):
        part = slice(start, start + LONGEST_SUM)
        out.add_(torch.bmm(inputs[..., part], weights[:, part]))


def exact_mm(inputs: Tensor, weights: Tensor) -> Tensor:
    """Returns `inputs @ weights.t()`.

    Args:
        inputs: Codes, shape (R, I) float32.
        weights: Codes, shape (O, I) float32.
    """
    with torch.autocast(inputs.device.type, enabled=False):  # half precision does not hold the sums
        total = inputs[:, :LONGEST_SUM] @ weights[:, :LONGEST_SUM].t()
        for start in range(LONGEST_SUM, inputs.shape[-1], LONGEST_SUM):
            part = slice(start, start + LONGEST_SUM)
            total += inputs[:, part] @ weights[:, part].t()
    return total
