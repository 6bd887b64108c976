"""Masks of one bit per value, eight to a byte."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

BITS = 8


def pack(mask: Tensor) -> Tensor:
    """Returns a boolean tensor of any shape as bytes, uint8."""
    flat = mask.flatten()
    flat = F.pad(flat, (0, -len(flat) % BITS)).view(-1, BITS)
    return (flat * _places(mask.device)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, shape: torch.Size) -> Tensor:
    """Returns the boolean tensor of that shape again."""
    bits = packed.unsqueeze(1).bitwise_and(_places(packed.device)).ne(0)
    return bits.flatten()[: shape.numel()].view(shape)


def _places(device: torch.device) -> Tensor:
    """Returns the value of each bit of a byte."""
    return torch.tensor([1 << bit for bit in range(BITS)], dtype=torch.uint8, device=device)
