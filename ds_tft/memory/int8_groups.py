"""Floating-point tensors as INT8 with a scale for every 32 values: 8.5 bits per value.

A group is 32 values that follow each other, the last dimension running fastest. Its scale s is its largest
magnitude / 127, and a value x is stored as round(x / s), ties to even: what comes back is off by at most about
s / 2, and zero is exact. On the inputs of the model's blocks this lost least among formats of its size
(docs/activation_checkpointing.md). Scales are bfloat16, which has the range of float32; codes are taken
against the scale as stored, so its rounding costs next to nothing.

A group that holds NaN or infinity comes back as NaN, so that loss scaling and the check of gradients see it.

Letters: N groups, G values of a group.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ds_tft.memory.host_buffers import Layout

GROUP = 32
LARGEST = 127
PIECE = 2**20
"""Values worked on at a time; a multiple of `GROUP`. It bounds the workspace, to about 12 MiB in float32."""


class Int8Groups(NamedTuple):
    """A tensor in groups; the last one is filled up with zeros."""

    codes: Tensor  # (N, G) int8
    scales: Tensor  # (N, 1) bfloat16

    @property
    def bytes(self) -> int:
        """What it takes."""
        return self.codes.nbytes + self.scales.nbytes


class Quantised(NamedTuple):
    """A tensor as INT8, and how far that is from it."""

    groups: Int8Groups
    squares: Tensor  # (2,) float32, on the device: of the errors and of the values, summed


def quantise(tensor: Tensor) -> Quantised:
    """Returns a floating-point tensor of at least one value as INT8. It draws no random number and waits for no GPU."""
    values = tensor.detach().reshape(-1)
    parts = [_quantise(F.pad(part, (0, -len(part) % GROUP)).view(-1, GROUP)) for part in values.split(PIECE)]
    groups, squares = zip(*parts, strict=True)
    codes, scales = zip(*groups, strict=True)
    return Quantised(Int8Groups(_joined(codes), _joined(scales)), torch.stack(squares).sum(0))


def dequantise(groups: Int8Groups, layout: Layout) -> Tensor:
    """Returns the tensor with the layout that it had."""
    values = _values(groups, layout.dtype).flatten()[: layout.shape.numel()].view(layout.shape)
    return values if values.stride() == layout.stride else layout.empty().copy_(values)


def _quantise(values: Tensor) -> Quantised:
    """Does it for values in groups, (N, G)."""
    exact = values.to(torch.promote_types(values.dtype, torch.float32))
    scales = (exact.abs().amax(1, keepdim=True) / LARGEST).to(torch.bfloat16)
    scales = scales.where(scales.isfinite(), torch.nan)
    # NaN is 0 / 0, or in a group that is not finite.
    codes = (exact / scales).nan_to_num_(nan=0.0).clamp_(-LARGEST, LARGEST).round_().to(torch.int8)
    groups = Int8Groups(codes, scales)
    errors = _values(groups, values.dtype) - exact
    return Quantised(groups, torch.stack([errors.square_().sum(), exact.square().sum()]).float())


def _values(groups: Int8Groups, dtype: torch.dtype) -> Tensor:
    """Returns what codes and scales stand for, (N, G)."""
    return groups.codes.to(dtype).mul_(groups.scales)


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    """Returns parts as one tensor, without a copy of a single one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
