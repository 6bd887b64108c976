"""Variable selection in ONNX: some variables at a time, so that no tensor holds all of them for all rows.

Letters: B batch, T time steps (absent for static variables), V variables, Vr real and Vc categorical ones, C variables
of a chunk, R rows (B x T), H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ds_tft.memory.chunks import Span, spans
from ds_tft.memory.variable_networks import EPSILON
from ds_tft.model.folded import FoldedSelection, SelectionWeights
from ds_tft.onnx_export.arithmetic import Floats, array, product, steps_of, weight_of
from ds_tft.onnx_export.graph import Graph
from ds_tft.onnx_export.layers import collapsed, glu, layer_norm, linear, look_up, with_context

VARIABLES_PER_CHUNK = 16


class SelectionInputs(NamedTuple):
    """Values that a selection reads; None where it has no variables of the kind, or no context."""

    reals: str | None  # (B, [T], Vr)
    categories: str | None  # (B, [T], Vc)
    context: str | None  # (B, H)


class Chunk(NamedTuple):
    """Neighbouring variables of one kind and one group."""

    group: int
    is_real: bool
    within_group: Span
    within_all: Span


class SelectionWriter:
    """Writes what `FoldedSelection` does.

    Args:
        graph: To add to.
        selection: The module.
        name: Its name.
        groups: Names of its embeddings.
    """

    def __init__(self, graph: Graph, selection: FoldedSelection, name: str, groups: Sequence[str]) -> None:
        self._graph, self._selection, self._name, self._groups = graph, selection, name, groups
        self._chunks = list(cut(selection))
        self._gate, self._steps = weight_of(selection.gate, "weight"), steps_of(selection.gate, axis=0)

    def write(self, inputs: SelectionInputs) -> str:
        """Returns the mix, (R, H)."""
        graph, selection = self._graph, self._selection
        rows = None
        if inputs.categories is not None:
            first_rows = graph.constant(f"{self._name}.first_rows", selection.first_rows.cpu().numpy())
            rows = graph.one("Add", inputs.categories, first_rows)  # (B, [T], Vc)
        terms = [graph.constant(f"{self._name}.norm_bias", array(selection.norm_bias))]
        shares = None
        if selection.weights is not None:
            weights = self._weights(selection.weights, f"{self._name}.weights", inputs, rows)  # (R, V)
            terms = [graph.one("MatMul", weights, terms[0])]
            shares = self._columns(weights, self._chunks)
        for place, (chunk, column) in enumerate(self._inputs(inputs.reals, rows)):
            normed = self._networks(chunk, column)  # (C, R, H)
            weighted = normed if shares is None else graph.one("Mul", normed, shares[place])
            terms.append(graph.one("ReduceSum", weighted, graph.whole(0), attributes={"keepdims": 0}))
        return graph.one("Sum", *terms)

    def _weights(
        self, network: SelectionWeights, name: str, inputs: SelectionInputs, rows: str | None
    ) -> str:
        """Does what `SelectionWeights` and a softmax do, (R, V)."""
        graph = self._graph
        hidden = collapsed(graph, network.hidden, f"{name}.hidden", inputs.reals, rows)
        hidden = graph.one("Elu", with_context(graph, network.context, name, hidden, inputs.context))
        skip = collapsed(graph, network.skip, f"{name}.skip", inputs.reals, rows)
        gated = glu(graph, linear(graph, network.gate, f"{name}.gate", hidden))
        scores = layer_norm(graph, network.norm, f"{name}.norm", graph.one("Add", skip, gated))
        weights = graph.one("Softmax", scores, attributes={"axis": -1})  # (B, [T], V)
        return graph.one("Reshape", weights, graph.whole(-1, len(network.norm.weight)))

    def _inputs(self, reals: str | None, rows: str | None) -> Iterator[tuple[Chunk, str]]:
        """Yields each chunk with its inputs, (C, R, 1): real values, or rows of the tables."""
        for x, is_real in ((reals, True), (rows, False)):
            own = [chunk for chunk in self._chunks if chunk.is_real == is_real]
            if x is not None:
                size = sum(chunk.within_all.size for chunk in own)
                flat = self._graph.one("Reshape", x, self._graph.whole(-1, size))
                yield from zip(own, self._columns(flat, own), strict=True)

    def _columns(self, x: str, chunks: Sequence[Chunk]) -> list[str]:
        """Cuts (R, V) into the columns of each chunk, (C, R, 1)."""
        graph = self._graph
        columns = graph.one("Transpose", x, attributes={"perm": (1, 0)})  # (V, R)
        columns = graph.one("Unsqueeze", columns, graph.whole(2))
        sizes = graph.whole(*(chunk.within_all.size for chunk in chunks))
        return graph.add("Split", [columns, sizes], {"axis": 0}, results=len(chunks))

    def _networks(self, chunk: Chunk, column: str) -> str:
        """Runs the networks of a chunk up to their layer norms, less its biases, (C, R, H)."""
        graph, selection, variables = self._graph, self._selection, chunk.within_all.slice
        gate = f"{self._name}.gate"
        label = f"[{variables.start}:{variables.stop}]"
        hidden, embedded = self._lines(chunk, column) if chunk.is_real else self._rows(chunk, column)
        steps = None if self._steps is None else self._steps.some(variables)
        weight = self._gate.some(variables)
        result = product(graph, graph.one("Elu", hidden), f"{gate}.weight{label}", weight, steps)
        bias = graph.constant(f"{gate}.bias{label}", _upright(array(selection.gate.bias)[variables]))
        gated = glu(graph, graph.one("Add", result, bias))
        ones = graph.constant(
            f"ones_{selection.norm_weight.shape[1]}", np.ones(selection.norm_weight.shape[1], np.float32)
        )
        normed = graph.one(
            "LayerNormalization",
            graph.one("Add", embedded, gated),
            ones,
            attributes={"axis": -1, "epsilon": EPSILON},
        )
        norm_weight = _upright(array(selection.norm_weight)[variables])
        return graph.one("Mul", normed, graph.constant(f"{self._name}.norm_weight{label}", norm_weight))

    def _lines(self, chunk: Chunk, values: str) -> tuple[str, str]:
        """Returns first layer and embedding of real variables, (C, R, H)."""
        assert self._selection.hidden_lines is not None
        lines = array(self._selection.hidden_lines)[chunk.within_all.slice]  # (C, 2, H)
        embedding = self._selection.embeddings[chunk.group]
        assert embedding.weight is not None
        assert embedding.bias is not None
        span = chunk.within_group
        own = (array(embedding.weight)[span.slice], array(embedding.bias)[span.slice])
        hidden = self._line(values, f"{self._name}.hidden_lines", chunk.within_all, lines[:, 0], lines[:, 1])
        return hidden, self._line(values, self._groups[chunk.group], span, *own)

    def _line(self, values: str, name: str, span: Span, slope: Floats, offset: Floats) -> str:
        """Returns `value * slope + offset`, (C, R, H)."""
        graph, label = self._graph, f"[{span.start}:{span.stop}]"
        product = graph.one("Mul", values, graph.constant(f"{name}.slope{label}", _upright(slope)))
        return graph.one("Add", product, graph.constant(f"{name}.offset{label}", _upright(offset)))

    def _rows(self, chunk: Chunk, rows: str) -> tuple[str, str]:
        """Returns first layer and embedding of categorical variables, (C, R, H)."""
        graph, embeddings = self._graph, self._selection.embeddings
        rows = graph.one("Squeeze", rows, graph.whole(2))  # (C, R)
        hidden = look_up(graph, self._selection, "hidden_table", self._name, rows)
        before = sum(sum(embedding.cardinalities) for embedding in embeddings[: chunk.group])
        if before:  # the rows count those of the groups before
            rows = graph.one("Sub", rows, graph.whole(before))
        return hidden, look_up(graph, embeddings[chunk.group], "table", self._groups[chunk.group], rows)


def cut(selection: FoldedSelection) -> Iterator[Chunk]:
    """Cuts the variables, in their order, into chunks that lie within one group."""
    start = 0
    for is_real in (True, False):
        for group, embedding in enumerate(selection.embeddings):
            count = embedding.num_reals if is_real else len(embedding.cardinalities)
            for span in spans(count, VARIABLES_PER_CHUNK):
                yield Chunk(group, is_real, span, Span(start, start + span.size))
                start += span.size


def _upright(values: Floats) -> Floats:
    """Turns (C, H) into (C, 1, H)."""
    return values[:, None]
