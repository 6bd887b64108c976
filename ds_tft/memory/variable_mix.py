"""The mix of all variables, run chunk by chunk, as one node of the autograd graph.

Forward keeps its inputs and a seed. Backward runs a chunk again and then through it in reverse
(`variable_networks.py`), and writes the gradient of each parameter once. Nothing grows with the batch but
tensors of shape (R, V) and, up to a limit, the buffers of one chunk.

What is given up: forward runs twice. What is not: the result is the plain one, up to the order of additions.

Letters: V variables, Vr real and Vc categorical ones, N rows of the categorical tables, R rows (batch x
time), H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ds_tft.memory.buffers import Precision, Workspace
from ds_tft.memory.chunks import ChunkSize, Span, spans
from ds_tft.memory.dropout_mask import SeededDropout
from ds_tft.memory.dry_running import is_dry_run
from ds_tft.memory.quantiser import Quantiser
from ds_tft.memory.recomputing import only_saved_tensors_count
from ds_tft.memory.variable_inputs import CategoricalVariables, ChunkPlace, RealVariables, Variables
from ds_tft.memory.variable_networks import (
    Chunk,
    ChunkNetworks,
    NetworkParameters,
    add_to_mix,
    layers_backward,
    norm_backward,
    run_networks,
)
from ds_tft.memory.workers import count_workers, run_workers


@dataclass(frozen=True, kw_only=True, slots=True)
class MixPlan:
    """How a mix is computed."""

    chunk: ChunkSize
    precision: Precision
    table_bounds: tuple[int, ...]
    """Row of the table at which each categorical variable begins, and in the end that behind the last one."""
    dropout: float
    """Share of the second layer's values to drop; 0 draws no masks."""
    seed: int
    """Of the dropout masks."""
    fold: bool
    """Merge second and gate layer; for results without gradients and dropout."""
    quantiser: Quantiser | None = None
    """Of the gate layer of a model in the folded form."""


class MixInputs(NamedTuple):
    """Tensors that a mix is computed from; or their gradients."""

    weights: Tensor  # (R, V) selection weights
    reals: Tensor  # (R, Vr)
    rows: Tensor  # (R, Vc) int32, row of the table
    lines: Tensor  # (Vr, 2, H) embeddings of real variables
    hidden_lines: Tensor  # (Vr, 2, H) the same after the first layer
    table: Tensor  # (N, H) embeddings of categorical variables
    hidden_table: Tensor  # (N, H) the same after the first layer
    output_weight: Tensor | None  # (V, H, H); None, as its bias, in the folded form
    output_bias: Tensor | None  # (V, H)
    gate_weight: Tensor  # (V, H, 2H)
    gate_bias: Tensor  # (V, 2H)
    norm_weight: Tensor  # (V, H)
    norm_bias: Tensor  # (V, H)

    @property
    def networks(self) -> NetworkParameters:
        """The parameters of the networks."""
        return NetworkParameters.of(self[-len(NetworkParameters._fields) :])


def mix_variables(plan: MixPlan, inputs: MixInputs) -> Tensor:
    """Returns the mix, shape (R, H), in the type of the parameters."""
    return _MixVariables.apply(plan, *inputs)


class _MixVariables(torch.autograd.Function):
    """Recomputes in backward."""

    @staticmethod
    def forward(ctx: Any, plan: MixPlan, *tensors: Tensor) -> Tensor:
        ctx.plan = plan
        ctx.save_for_backward(*tensors)
        inputs = MixInputs(*tensors)
        if only_saved_tensors_count():
            return inputs.norm_bias.new_empty(len(inputs.weights), inputs.norm_bias.shape[-1])
        with torch.autocast(inputs.weights.device.type, enabled=False):
            return _Run(plan, inputs).forward().to(inputs.norm_bias.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mixed_grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs = MixInputs(*ctx.saved_tensors)
        with torch.autocast(inputs.weights.device.type, enabled=False):
            run = _Run(ctx.plan, inputs, backward=True, input_grad=ctx.needs_input_grad[2])
            return None, *run.backward(mixed_grad)


class _Block(NamedTuple):
    """Neighbouring variables of one kind, worked on together."""

    variables: Variables
    within_kind: Span
    within_all: Span


class _Run:
    """One pass over all chunks, forward or backward. On a CPU each of torch's threads takes whole chunks."""

    def __init__(
        self, plan: MixPlan, inputs: MixInputs, *, backward: bool = False, input_grad: bool = False
    ) -> None:
        self._plan, self._inputs, self._dtype = plan, inputs, plan.precision.sums
        self._device = inputs.weights.device
        self._weights = inputs.weights.t().to(self._dtype).contiguous()  # (V, R)
        self._reals = RealVariables(
            *(inputs.reals, inputs.lines, inputs.hidden_lines, self._dtype),
            backward=backward,
            input_grad=input_grad,
        )
        self._categories = CategoricalVariables(
            *(inputs.rows, plan.table_bounds, inputs.table, inputs.hidden_table, self._dtype),
            backward=backward,
        )
        self._blocks = list(_cut(self._reals, self._categories, inputs, plan.chunk.variables))
        self._row_spans = list(spans(len(inputs.weights), plan.chunk.rows))
        self._workspaces = [
            Workspace(plan.chunk, inputs.norm_bias.shape[-1], plan.precision, self._device, backward=backward)
            for _ in range(count_workers(len(self._blocks), self._device))
        ]

    def forward(self) -> Tensor:
        """Returns the mix."""
        mixed = torch.mm(self._weights.t(), self._inputs.norm_bias.to(self._dtype))  # (R, H)

        def work(worker: int) -> Tensor:
            part = mixed if worker == 0 else torch.zeros_like(mixed)
            for chunk, (_, rows) in self._chunks(worker):
                add_to_mix(chunk, run_networks(chunk), part[rows])
            return part

        for part in run_workers(work, len(self._workspaces))[1:]:
            mixed.add_(part)
        return mixed

    def backward(self, mixed_grad: Tensor) -> MixInputs:
        """Returns the gradients."""
        inputs, mixed_grad = self._inputs, mixed_grad.to(self._dtype)
        norm_weight, norm_bias = inputs.norm_weight.to(self._dtype), inputs.norm_bias.to(self._dtype)
        mean_grad = torch.mm(norm_weight / norm_weight.shape[-1], mixed_grad.t())  # (V, R)
        weights_grad = torch.mm(norm_bias, mixed_grad.t())  # (V, R)
        gradients = NetworkParameters.of(map(_empty_like, inputs.networks))
        gradients.norm_bias.copy_(torch.mm(self._weights, mixed_grad))

        def work(worker: int) -> None:
            for chunk, at in self._chunks(worker):
                variables, rows = at
                own = gradients.some(variables)
                factor = run_networks(chunk)
                part = norm_backward(chunk, factor, mixed_grad[rows], mean_grad[at].unsqueeze(-1), own)
                weights_grad[at] += part.squeeze(-1)
                layers_backward(chunk, own)

        run_workers(work, len(self._workspaces))
        return self._collect(weights_grad, gradients)

    def _chunks(self, worker: int) -> Iterator[tuple[Chunk, tuple[slice, slice]]]:
        """Yields a worker's chunks, each with its variables and rows in tensors of shape (V, R)."""
        plan, workspace = self._plan, self._workspaces[worker]
        dropout = SeededDropout(plan.dropout, plan.seed, self._device) if plan.dropout else None
        blocks, row_spans = self._blocks[worker :: len(self._workspaces)], self._row_spans
        if is_dry_run():  # chunks of one size take the same memory
            blocks, row_spans = _two_of_each(blocks), [*row_spans[:2], *row_spans[2:][-1:]]
        for variables, within_kind, within_all in blocks:
            networks = self._networks(within_all.slice)
            for rows in row_spans:
                at = (within_all.slice, rows.slice)
                place = ChunkPlace(within_kind, rows)
                weights = self._weights[at].unsqueeze(-1)  # (C, R, 1)
                buffers = workspace.chunk(ChunkSize(within_kind.size, rows.size))
                start = within_all.start
                yield Chunk(networks, variables, place, start, weights, buffers, dropout), at

    def _networks(self, variables: slice) -> ChunkNetworks:
        """Takes the parameters of some variables."""
        plan, parameters = self._plan, self._inputs.networks
        if parameters.output_weight is None:
            return ChunkNetworks.folded(parameters, variables, plan.precision, plan.quantiser)
        return ChunkNetworks.of(parameters, variables, plan.precision, fold=plan.fold)

    def _collect(self, weights_grad: Tensor, gradients: NetworkParameters) -> MixInputs:
        """Puts all gradients in the order and types of the inputs."""
        inputs, reals = self._inputs, self._reals.values_grad
        return MixInputs(
            weights_grad.t().to(inputs.weights.dtype),
            None if reals is None else reals.t().to(inputs.reals.dtype),  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            self._reals.lines_grad.to(inputs.lines.dtype),
            self._reals.hidden_lines_grad.to(inputs.hidden_lines.dtype),
            self._categories.table_grad.to(inputs.table.dtype),
            self._categories.hidden_table_grad.to(inputs.hidden_table.dtype),
            *gradients,
        )


def _empty_like(parameter: Tensor | None) -> Tensor | None:
    """Returns room for a gradient."""
    return None if parameter is None else torch.empty_like(parameter)


def _cut(
    reals: RealVariables, categories: CategoricalVariables, inputs: MixInputs, size: int
) -> Iterator[_Block]:
    """Yields blocks of at most `size` variables, none of them with both kinds."""
    num_reals, num_categories = inputs.reals.shape[1], inputs.rows.shape[1]
    for span in spans(num_reals, size):
        yield _Block(reals, span, span)
    for span in spans(num_categories, size):
        yield _Block(categories, span, Span(num_reals + span.start, num_reals + span.stop))


def _two_of_each(blocks: Sequence[_Block]) -> list[_Block]:
    """Returns two blocks of real variables of each size, and all categorical ones: their tables differ.

    Two, because while one is worked on, the names in a loop still hold what is left of the one before.
    """
    sizes = [block.within_kind.size for block in blocks]
    return [
        block
        for place, block in enumerate(blocks)
        if not isinstance(block.variables, RealVariables) or sizes[:place].count(sizes[place]) < 2
    ]
