"""Where streamed variable selection meets its inputs: first layer and embedding of a chunk of variables.

Both come from the lines (real variables) and tables (categorical ones) of `collapse.py`, and their gradients
go back there.

Letters: V variables of a kind, C variables and R rows of a chunk, N rows of the tables, H hidden size.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from ds_tft.memory.chunks import Span


class ChunkPlace(NamedTuple):
    """Which variables, counted within their kind, and which rows of the batch a chunk covers."""

    variables: Span
    rows: Span

    @property
    def begins(self) -> bool:
        """Whether these are the first rows: the gradients of the variables' parameters are not yet begun."""
        return self.rows.start == 0


class Variables(Protocol):
    """Variables of one kind."""

    def first_layer(self, place: ChunkPlace, out: Tensor) -> None:
        """Writes the first layer, before its activation, to `out` (C, R, H)."""

    def embedding_plus(self, place: ChunkPlace, value: Tensor, opened: Tensor, out: Tensor) -> None:
        """Writes the embedding plus `value * opened` to `out`, all (C, R, H)."""

    def first_layer_backward(self, place: ChunkPlace, grad: Tensor) -> None:
        """Adds what follows from the gradient of the first layer (C, R, H)."""

    def embedding_backward(self, place: ChunkPlace, grad: Tensor) -> None:
        """Adds what follows from the gradient of the embedding (C, R, H)."""


class RealVariables:
    """Real variables: `x * slope + offset`.

    Args:
        reals: Shape (rows of the batch, V).
        lines: Embeddings, shape (V, 2, H): slope and offset.
        hidden_lines: The same after the first layer.
        dtype: Type of the arithmetic.
        backward: Whether gradients will be added.
        input_grad: Whether that of `reals` is wanted, too.
    """

    def __init__(
        self,
        reals: Tensor,
        lines: Tensor,
        hidden_lines: Tensor,
        dtype: torch.dtype,
        *,
        backward: bool = False,
        input_grad: bool = False,
    ) -> None:
        # Values, then ones: the contraction with a gradient yields that of slope and offset at once.
        self._values = torch.ones(reals.shape[1], 2, len(reals), dtype=dtype, device=reals.device)
        self._values[:, 0] = reals.t()
        self._lines, self._hidden_lines = lines.to(dtype), hidden_lines.to(dtype)
        self.lines_grad = torch.zeros_like(self._lines[: None if backward else 0])
        self.hidden_lines_grad = torch.zeros_like(self.lines_grad)
        self.values_grad = torch.zeros_like(self._values[:, 0]) if input_grad else None  # (V, rows)

    def first_layer(self, place: ChunkPlace, out: Tensor) -> None:
        """Writes the first layer, before its activation."""
        values, slope, offset = self._operands(place, self._hidden_lines)
        torch.addcmul(offset, values, slope, out=out)

    def embedding_plus(self, place: ChunkPlace, value: Tensor, opened: Tensor, out: Tensor) -> None:
        """Writes the embedding plus `value * opened`."""
        values, slope, offset = self._operands(place, self._lines)
        torch.addcmul(offset, value, opened, out=out).addcmul_(values, slope)

    def first_layer_backward(self, place: ChunkPlace, grad: Tensor) -> None:
        """Adds the gradients of lines and values."""
        self._backward(place, grad, self._hidden_lines, self.hidden_lines_grad)

    def embedding_backward(self, place: ChunkPlace, grad: Tensor) -> None:
        """Adds the gradients of lines and values."""
        self._backward(place, grad, self._lines, self.lines_grad)

    def _operands(self, place: ChunkPlace, lines: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns values (C, R, 1), slopes (C, 1, H) and offsets (C, 1, H)."""
        variables, rows = place.variables.slice, place.rows.slice
        return self._values[variables, 0, rows].unsqueeze(-1), lines[variables, :1], lines[variables, 1:]

    def _backward(self, place: ChunkPlace, grad: Tensor, lines: Tensor, lines_grad: Tensor) -> None:
        """Contracts the gradient with the values, and where wanted with the slopes."""
        variables, rows = place.variables.slice, place.rows.slice
        grad = grad.to(lines.dtype)
        lines_grad[variables].baddbmm_(self._values[variables, :, rows], grad)
        if self.values_grad is not None:
            slopes = lines[variables, :1].transpose(1, 2)  # (C, H, 1)
            self.values_grad[variables, rows] += torch.bmm(grad, slopes).squeeze(-1)


class CategoricalVariables:
    """Categorical variables: rows of a table.

    Args:
        rows: Row of the table for each row of the batch and variable, shape (rows of the batch, V).
        table_bounds: Row of the table at which each variable begins, and in the end that behind the last one.
        table: Embeddings, shape (N, H).
        hidden_table: The same after the first layer.
        dtype: Type of the arithmetic.
        backward: Whether gradients will be added.
    """

    def __init__(
        self,
        rows: Tensor,
        table_bounds: tuple[int, ...],
        table: Tensor,
        hidden_table: Tensor,
        dtype: torch.dtype,
        *,
        backward: bool = False,
    ) -> None:
        self._rows = rows.t().contiguous()  # (V, rows of the batch)
        self._table_bounds = table_bounds
        self._table, self._hidden_table = table.to(dtype), hidden_table.to(dtype)
        self.table_grad = torch.zeros_like(self._table[: None if backward else 0])
        self.hidden_table_grad = torch.zeros_like(self.table_grad)

    def first_layer(self, place: ChunkPlace, out: Tensor) -> None:
        """Writes the first layer, before its activation."""
        out.copy_(F.embedding(self._rows[place.variables.slice, place.rows.slice], self._hidden_table))

    def embedding_plus(self, place: ChunkPlace, value: Tensor, opened: Tensor, out: Tensor) -> None:
        """Writes the embedding plus `value * opened`."""
        embedding = F.embedding(self._rows[place.variables.slice, place.rows.slice], self._table)
        torch.addcmul(embedding, value, opened, out=out)

    def first_layer_backward(self, place: ChunkPlace, grad: Tensor) -> None:
        """Adds the gradient of the table."""
        self._backward(place, grad, self.hidden_table_grad)

    def embedding_backward(self, place: ChunkPlace, grad: Tensor) -> None:
        """Adds the gradient of the table."""
        self._backward(place, grad, self.table_grad)

    def _backward(self, place: ChunkPlace, grad: Tensor, table_grad: Tensor) -> None:
        """Adds the gradients to rows of the table, within the part that the chunk's variables own."""
        variables, rows = place
        first, behind = self._table_bounds[variables.start], self._table_bounds[variables.stop]
        numbers = self._rows[variables.slice, rows.slice] - first
        table_grad[first:behind] += torch.ops.aten.embedding_dense_backward(
            grad.to(table_grad.dtype), numbers, behind - first, -1, False
        )
