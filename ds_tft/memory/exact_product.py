"""Products of whole numbers of 8 bits, exact, whatever they run on.

float32 holds whole numbers up to 2**24 exactly, so a sum of products of 8-bit codes is exact, in whatever order it
is taken, as long as it has no more than `LONGEST_SUM` terms. Longer ones are cut into parts that are; where the whole
passes 2**24, adding a part rounds it, always in the same way. A matrix product in float32 is then INT8 arithmetic at
the speed of float32. On a GPU that has them, integer instructions take products of single matrices
(`integer_product.py`), with the same result; a stack of matrices they would take one by one, each with a launch and
a pass over its sums of its own, so it stays in float32. TF32 is off meanwhile: its mantissa holds codes exactly, but
how its sums are rounded is not documented.

Letters: C variables of a chunk, R rows (batch x time), I input size, O output size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ds_tft.memory.integer_product import integer_mm, takes_integers

LARGEST_CODE = 127
SMALLEST_CODE = -128
LONGEST_SUM = 2**24 // (-SMALLEST_CODE * LARGEST_CODE)
WIDENED_BYTES = 512 * 2**10
"""Largest part of a stack of stored codes that a CPU widens to float32 at once: it stays in the second-level cache
until it is multiplied."""


def exact_bmm(inputs: Tensor, weights: Tensor, out: Tensor) -> None:
    """Writes `inputs @ weights` to `out`.

    Args:
        inputs: Codes, shape (C, R, I) float32.
        weights: Codes, shape (C, I, O), float32 or, as they are stored, int8.
        out: Shape (C, R, O) float32.
    """
    with _full_precision(inputs.device):
        for part in _widened_at_once(weights, inputs.dtype):
            _floating_bmm(inputs[part], weights[part].to(inputs.dtype), out[part])


def exact_mm(inputs: Tensor, weights: Tensor) -> Tensor:
    """Returns `inputs @ weights.t()`, (R, O) float32.

    Args:
        inputs: Codes, shape (R, I) float32.
        weights: Codes, shape (O, I), float32 or int8.
    """
    product = integer_mm if takes_integers(inputs) else _floating_mm
    with torch.autocast(inputs.device.type, enabled=False):  # half precision does not hold the sums
        total = product(inputs[:, :LONGEST_SUM], weights[:, :LONGEST_SUM]).to(inputs.dtype)
        for start in range(LONGEST_SUM, inputs.shape[-1], LONGEST_SUM):
            part = slice(start, start + LONGEST_SUM)
            total += product(inputs[:, part], weights[:, part])
    return total


def _floating_bmm(inputs: Tensor, weights: Tensor, out: Tensor) -> None:
    """Does what `exact_bmm` does, with weights in float32."""
    torch.bmm(inputs[..., :LONGEST_SUM], weights[:, :LONGEST_SUM], out=out)
    for start in range(LONGEST_SUM, inputs.shape[-1], LONGEST_SUM):
        part = slice(start, start + LONGEST_SUM)
        out.add_(torch.bmm(inputs[..., part], weights[:, part]))


def _floating_mm(inputs: Tensor, weights: Tensor) -> Tensor:
    """Does what `exact_mm` does, in float32, up to the longest sum."""
    with _full_precision(inputs.device):
        return inputs @ weights.to(inputs.dtype).t()


def _widened_at_once(weights: Tensor, dtype: torch.dtype) -> Iterator[slice]:
    """Cuts a stack into the parts whose codes are widened at once."""
    count, size = len(weights), WIDENED_BYTES // max(1, weights[:1].numel() * dtype.itemsize)
    if weights.dtype == dtype or weights.device.type != "cpu":
        size = count  # nothing to widen, or no such cache
    for start in range(0, count, max(1, size)):
        yield slice(start, start + max(1, size))


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """Keeps products in float32 on a GPU from being taken in TF32."""
    if device.type != "cuda" or not _takes_tf32():
        yield
        return
    matmul = torch.backends.cuda.matmul
    name, on, off = (
        ("fp32_precision", "tf32", "ieee") if _is_set_by_newer_name() else ("allow_tf32", True, False)
    )
    setattr(matmul, name, off)
    try:
        yield
    finally:
        setattr(matmul, name, on)


def _takes_tf32() -> bool:
    """Whether a GPU takes products in TF32 at the moment."""
    return _is_set_by_newer_name() or torch.backends.cuda.matmul.allow_tf32


def _is_set_by_newer_name() -> bool:
    """Whether TF32 is on by the name of torch 2.9: torch then refuses to answer to the older one."""
    try:
        _ = torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:
        return True
    return False
