"""The buffers in which one chunk of variables is worked on, allocated once and used by every chunk.

Letters: C variables of the chunk, R its rows (batch x time), H hidden size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ds_tft.memory.chunks import ChunkSize


class Precision(NamedTuple):
    """Types of the arithmetic."""

    products: torch.dtype
    """Of matrix products and what goes into them."""
    sums: torch.dtype
    """Of the skip connection, the layer norm and the mix: float32 where products are in half precision."""


class ChunkBuffers(NamedTuple):
    """Views of the buffers in the size of one chunk."""

    hidden: Tensor  # (C, R, H) first layer, after ELU
    output: Tensor  # (C, R, H) second layer, after dropout
    mask: Tensor  # (C, R, H) of the dropout, 0 or 1
    gate: Tensor  # (C, R, 2H) gate layer: values, then what opens the gate
    centred: Tensor  # (C, R, H) sum of skip connection and gated values, less its mean
    centred_grad: Tensor  # (C, R, H) this and what follows is for backward only
    gate_grad: Tensor  # (C, R, 2H)
    output_grad: Tensor  # (C, R, H) may share the memory of `centred`
    hidden_grad: Tensor  # (C, R, H) may share the memory of `centred_grad`


class Workspace:
    """Allocates the buffers.

    Args:
        size: The largest chunk.
        hidden_size: H.
        precision: Types of the buffers.
        device: Where they are.
        backward: Whether those for backward are needed, too.
    """

    def __init__(
        self, size: ChunkSize, hidden_size: int, precision: Precision, device: torch.device, *, backward: bool
    ) -> None:
        self._hidden_size = hidden_size
        values = size.variables * size.rows * hidden_size

        def allocate(width: int, dtype: torch.dtype, needed: bool = True) -> tuple[Tensor, int]:
            return torch.empty(values * width if needed else 0, dtype=dtype, device=device), width

        products, sums = precision
        centred = allocate(1, sums)
        centred_grad = allocate(1, sums, backward)
        self._flat = [  # in the order of `ChunkBuffers`
            allocate(1, products),
            allocate(1, products),
            allocate(1, products),
            allocate(2, products),
            centred,
            centred_grad,
            allocate(2, products, backward),
            centred if products == sums else allocate(1, products, backward),
            centred_grad if products == sums else allocate(1, products, backward),
        ]

    def chunk(self, variables: int, rows: int) -> ChunkBuffers:
        """Returns contiguous views for a chunk of this size; empty ones where nothing was allocated."""
        values = variables * rows * self._hidden_size
        return ChunkBuffers(
            *(
                flat[: values * width].view(variables, rows, width * self._hidden_size) if len(flat) else flat
                for flat, width in self._flat
            )
        )
