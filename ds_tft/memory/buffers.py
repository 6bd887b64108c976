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
    """Views of the buffers in the size of one chunk; those behind `centred` are for backward only."""

    hidden: Tensor  # (C, R, H) first layer, after ELU
    output: Tensor  # (C, R, H) second layer, after dropout
    mask: Tensor  # (C, R, H) of the dropout, 0 or 1
    gate: Tensor  # (C, R, 2H) gate layer
    value: Tensor  # (C, R, H) first half of it
    opened: Tensor  # (C, R, H) second half, after the sigmoid
    centred: Tensor  # (C, R, H) sum of skip connection and gated values, less its mean
    centred_grad: Tensor  # (C, R, H)
    gate_grad: Tensor  # (C, R, 2H) of the gate layer, before the sigmoid
    value_grad: Tensor  # (C, R, H) first half of it
    opening_grad: Tensor  # (C, R, H) second half
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
        self._views: dict[ChunkSize, ChunkBuffers] = {}
        values = size.variables * size.rows * hidden_size

        def allocate(width: int, dtype: torch.dtype, needed: bool = True) -> Tensor:
            return torch.empty(values * width if needed else 0, dtype=dtype, device=device)

        products, sums = precision
        self._hidden, self._output, self._mask = (allocate(1, products) for _ in range(3))
        self._gate, self._gate_grad = allocate(2, products), allocate(2, products, backward)
        self._centred, self._centred_grad = allocate(1, sums), allocate(1, sums, backward)
        self._output_grad, self._hidden_grad = self._centred, self._centred_grad
        if products != sums:
            self._output_grad, self._hidden_grad = (allocate(1, products, backward) for _ in range(2))

    def chunk(self, size: ChunkSize) -> ChunkBuffers:
        """Returns contiguous views for a chunk of this size; empty ones where nothing was allocated."""
        if size not in self._views:  # most chunks are of one size
            self._views[size] = self._view(size)
        return self._views[size]

    def _view(self, size: ChunkSize) -> ChunkBuffers:
        """Cuts the buffers to size."""

        def view(flat: Tensor, width: int = 1) -> Tensor:
            count = size.variables * size.rows * width * self._hidden_size
            shape = (*size, width * self._hidden_size)
            return flat[:count].view(shape) if len(flat) else flat.view(0, 0, 2)

        gate, gate_grad = view(self._gate, 2), view(self._gate_grad, 2)
        value, opened = gate.chunk(2, -1)
        value_grad, opening_grad = gate_grad.chunk(2, -1)
        return ChunkBuffers(
            hidden=view(self._hidden),
            output=view(self._output),
            mask=view(self._mask),
            gate=gate,
            value=value,
            opened=opened,
            centred=view(self._centred),
            centred_grad=view(self._centred_grad),
            gate_grad=gate_grad,
            value_grad=value_grad,
            opening_grad=opening_grad,
            output_grad=view(self._output_grad),
            hidden_grad=view(self._hidden_grad),
        )
