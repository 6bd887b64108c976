"""Products of weights with embeddings, taken before the inputs are known.

A real variable's embedding is a line in its value, `x w + b`, a categorical one's a row of a table. A linear
layer maps a line to a line and a table to a table. So it is applied to lines and tables, once per forward,
and what is left to do per row of the batch is `x a + c`, or a look-up. Gradients flow through these products
into the parameters of the paper.

Letters: V variables, Vr real and Vc categorical ones, N rows of the tables of all categorical variables,
H hidden size, O output size, R rows (batch x time).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from ds_tft.memory.chunks import spans
from ds_tft.memory.quantiser import effective
from ds_tft.model.embedding import VariableEmbedding

PART_BYTES = 2**20


class Embeddings(NamedTuple):
    """The embeddings of all groups of a selection, in the order of its variables."""

    lines: Tensor  # (Vr, 2, H) slope and offset
    table: Tensor  # (N, H) one categorical variable's rows after the other's
    first_rows: Tensor  # (Vc,) int64, row of the table at which each categorical variable begins
    cardinalities: tuple[int, ...]  # rows of each categorical variable

    @property
    def table_bounds(self) -> tuple[int, ...]:
        """Row of the table at which each categorical variable begins, and in the end that behind the last."""
        return tuple(accumulate(self.cardinalities, initial=0))

    @property
    def num_reals(self) -> int:
        """Number of real variables, Vr."""
        return self.lines.shape[0]


class WideProduct(NamedTuple):
    """A linear layer of all embeddings side by side: `reals @ slopes + constant + sum of looked-up rows`."""

    slopes: Tensor  # (Vr, O)
    constant: Tensor  # (O,)
    table: Tensor  # (N, O)


def gather_embeddings(groups: Sequence[VariableEmbedding], like: Tensor) -> Embeddings:
    """Puts the parameters of all groups together: real variables of all groups, then categorical ones.

    Args:
        groups: The embedding of each group.
        like: A parameter, for the type and device of what is empty.
    """
    hidden_size = groups[0].hidden_size
    lines = [
        torch.stack([group.weight, group.bias], 1)
        for group in groups
        if group.weight is not None and group.bias is not None
    ]
    tables = [effective(group, "table") for group in groups if group.table is not None]
    sizes = [0 if group.table is None else len(group.table) for group in groups]
    first_rows = [
        group.first_rows + start for group, start in zip(groups, accumulate(sizes, initial=0), strict=False)
    ]
    return Embeddings(
        lines=_concatenate(lines, like.new_empty(0, 2, hidden_size)),
        table=_concatenate(tables, like.new_empty(0, hidden_size)),
        first_rows=torch.cat(first_rows),
        cardinalities=tuple(size for group in groups for size in group.cardinalities),
    )


def collapse_stacked(embeddings: Embeddings, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Applies one linear layer per variable to its own embedding.

    Args:
        embeddings: All V variables.
        weight: Shape (V, H, O).
        bias: Shape (V, O).

    Returns:
        The lines (Vr, 2, O) and the table (N, O) after the layer.
    """
    counts = [embeddings.num_reals, len(embeddings.cardinalities)]
    real_weight, category_weight = weight.split(counts) if all(counts) else _all_or_nothing(weight, counts)
    real_bias, category_bias = bias.split(counts) if all(counts) else _all_or_nothing(bias, counts)
    lines = torch.bmm(embeddings.lines, real_weight)  # (Vr, 2, O)
    lines = lines + torch.stack([torch.zeros_like(real_bias), real_bias], 1)
    tables = [
        torch.addmm(*operands)
        for operands in zip(
            category_bias.unbind(),
            embeddings.table.split(embeddings.cardinalities),
            category_weight.unbind(),
            strict=True,
        )
    ]
    return lines, _concatenate(tables, weight.new_empty(0, weight.shape[-1]))


def collapse_wide(embeddings: Embeddings, weight: Tensor, bias: Tensor) -> WideProduct:
    """Applies one linear layer to the embeddings of all variables side by side.

    Args:
        embeddings: All V variables.
        weight: Shape (O, V*H), as in `nn.Linear`.
        bias: Shape (O,).
    """
    slopes, constant, table = _CollapseWide.apply(
        embeddings.cardinalities, weight, embeddings.lines, embeddings.table
    )
    return WideProduct(slopes, constant + bias, table)


class _CollapseWide(torch.autograd.Function):
    """The product. Its backward writes the gradient of the (O, V*H) weight once, in its own layout."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, cardinalities: tuple[int, ...], weight: Tensor, lines: Tensor, table: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.cardinalities = cardinalities  # type: ignore[attr-defined]
        ctx.save_for_backward(weight, lines, table)
        num_reals, _, hidden_size = lines.shape
        blocks = weight.view(len(weight), -1, hidden_size)  # (O, V, H)
        products = lines.new_empty(num_reals, 2, len(weight))  # (Vr, 2, O)
        for part in _parts(num_reals, weight):  # the product takes a copy of what it multiplies with
            torch.bmm(lines[part], blocks[:, part].permute(1, 2, 0), out=products[part])
        parts = [
            rows @ block.t()
            for rows, block in zip(table.split(cardinalities), blocks[:, num_reals:].unbind(1), strict=True)
        ]
        return (
            products[:, 0].clone(),
            products[:, 1].sum(0),
            _concatenate(parts, table.new_empty(0, len(weight))),
        )

    @staticmethod
    @once_differentiable
    def backward(
        ctx: FunctionCtx, slopes_grad: Tensor, constant_grad: Tensor, table_grad: Tensor
    ) -> tuple[None, Tensor, Tensor, Tensor]:
        weight, lines, table = ctx.saved_tensors  # type: ignore[attr-defined]
        cardinalities: tuple[int, ...] = ctx.cardinalities  # type: ignore[attr-defined]
        num_reals, _, hidden_size = lines.shape
        with torch.autocast(weight.device.type, enabled=False):
            blocks = weight.view(len(weight), -1, hidden_size)  # (O, V, H)
            weight_grad = torch.empty_like(weight)
            block_grads = weight_grad.view(blocks.shape)
            real_grads = block_grads[:, :num_reals]  # (O, Vr, H)
            torch.mul(slopes_grad.t().unsqueeze(-1), lines[:, 0], out=real_grads)
            real_grads.addcmul_(constant_grad.view(-1, 1, 1), lines[:, 1])
            products_grad = torch.stack([slopes_grad, constant_grad.expand_as(slopes_grad)], 1)  # (Vr, 2, O)
            lines_grad = torch.empty_like(lines)  # (Vr, 2, H)
            for part in _parts(num_reals, weight):
                torch.bmm(products_grad[part], blocks[:, part].transpose(0, 1), out=lines_grad[part])
            rows_grad = []
            for v, (rows, grad) in enumerate(
                zip(table.split(cardinalities), table_grad.split(cardinalities), strict=True), num_reals
            ):
                block_grads[:, v] = grad.t() @ rows
                rows_grad.append(grad @ blocks[:, v])
        return None, weight_grad, lines_grad, _concatenate(rows_grad, torch.empty_like(table))


def _parts(num_reals: int, weight: Tensor) -> Iterator[slice]:
    """Yields spans of real variables whose columns of a weight (O, V*H) take a megabyte or so."""
    columns = weight.shape[1] // max(1, num_reals)
    size = max(1, PART_BYTES // max(1, len(weight) * columns * weight.itemsize))
    for span in spans(num_reals, size):
        yield span.slice


def _concatenate(parts: Sequence[Tensor], otherwise: Tensor) -> Tensor:
    """Joins tensors along the first dimension; a single one is not copied."""
    if not parts:
        return otherwise
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _all_or_nothing(parameter: Tensor, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Splits where one part is empty, without a copy of the whole gradient in backward."""
    nothing = parameter.new_empty(0, *parameter.shape[1:])
    return (parameter, nothing) if counts[0] else (nothing, parameter)
