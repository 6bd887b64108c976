"""Products of 8-bit codes by the integer instructions of a GPU.

`torch._int_mm` adds up in 32-bit whole numbers. What it asks for on CUDA: int8, the first matrix row by row and the
second one column by column, more than `FEW_ROWS` rows, and multiples of 8 for the other two sizes. Here these are
padded with zeros to multiples of 16, so that every row begins where the tensor cores load from.

Letters: R rows (batch x time), I input size, O output size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

FEW_ROWS = 16
MULTIPLE = 16
CAPABILITY = (8, 0)  # of the oldest GPUs on which torch tests its integer products


def takes_integers(inputs: Tensor) -> bool:
    """Says whether integer instructions are there for these inputs, (R, I)."""
    return len(inputs) > FEW_ROWS and inputs.shape[1] > 0 and _has_instructions(inputs.device)


def integer_mm(inputs: Tensor, weights: Tensor) -> Tensor:
    """Returns `inputs @ weights.t()`, (R, O) int32.

    Args:
        inputs: Codes, shape (R, I) of any type.
        weights: Codes, shape (O, I) of any type.
    """
    rows, outputs = _padded(inputs), _padded(weights, rows=MULTIPLE)
    return torch._int_mm(rows, outputs.t())[:, : len(weights)]


def _padded(codes: Tensor, rows: int = 1) -> Tensor:
    """Returns codes (R, I) as int8, row by row, with zeros up to multiples of `rows` and of `MULTIPLE`."""
    missing = (-len(codes) % rows, -codes.shape[1] % MULTIPLE)
    whole = codes.to(torch.int8)
    return F.pad(whole, (0, missing[1], 0, missing[0])) if any(missing) else whole.contiguous()


def _has_instructions(device: torch.device) -> bool:
    """Says whether a device is a GPU of NVIDIA that has them."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device) >= CAPABILITY
