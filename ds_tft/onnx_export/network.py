"""The whole folded model as one ONNX graph.

Letters: B batch, L encoder length, K horizon steps, T time steps (L + K), V variables of a group, H hidden size,
O targets, Q quantiles.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx

from ds_tft.model.folded import FoldedSelection
from ds_tft.model.static_encoder import StaticEncoder
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.onnx_export.attention import attend, visible_keys
from ds_tft.onnx_export.graph import Graph
from ds_tft.onnx_export.layers import gated_add_norm, grn, linear
from ds_tft.onnx_export.recurrent import State, write_lstm
from ds_tft.onnx_export.selection import SelectionInputs, SelectionWriter

BATCH = "windows"
"""Name of the free length of inputs and output."""
OUTPUT = "quantiles"


class Group(NamedTuple):
    """Inputs of one group, (B, [time], V); None where it has no variables of the kind."""

    reals: str | None
    categories: str | None


class Contexts(NamedTuple):
    """The static contexts, each (B, H); all None in a model without static variables."""

    selection: str | None = None
    enrichment: str | None = None
    hidden: str | None = None
    cell: str | None = None


def write_network(model: TemporalFusionTransformer) -> Graph:
    """Writes a folded model, quantised or not."""
    return _NetworkWriter(model).write()


class _NetworkWriter:
    """Writes the blocks of a model one after the other."""

    def __init__(self, model: TemporalFusionTransformer) -> None:
        self._model, self._size, self._graph = model, model.size, Graph()

    def write(self) -> Graph:
        """Returns the graph."""
        graph, model, size = self._graph, self._model, self._size
        static = self._group("static", (), size.static_reals, len(size.static_categories))
        length, steps = size.encoder_length, size.encoder_length + size.horizon
        observed = self._group("observed", (length,), size.observed_reals, len(size.observed_categories))
        known = self._group("known", (steps,), size.known_reals, len(size.known_categories))
        lengths = graph.input("encoder_lengths", (BATCH,), np.int64)
        upright = graph.one("Unsqueeze", lengths, graph.whole(1))  # (B, 1)
        contexts = self._contexts(static)
        past, future = self._split_known(known)
        history = self._history(observed, past, upright, contexts)  # (B, L, H)
        horizon = self._selection("future_selection", ["known_embedding"], future, contexts, size.horizon)
        temporal = self._process_locally(history, horizon, lengths, contexts)  # (B, T, H)
        decoded = self._decode(temporal, upright, contexts)  # (B, K, H)
        shape = (size.horizon, size.num_targets, len(size.quantiles))
        with graph.block("quantile_head"):
            prediction = linear(graph, model.quantile_head, "quantile_head", decoded)
            prediction = graph.one("Reshape", prediction, graph.whole(-1, *shape))
        graph.output(OUTPUT, prediction, (BATCH, *shape))
        return graph

    def _group(self, name: str, times: tuple[int, ...], num_reals: int, num_categories: int) -> Group:
        """Declares the inputs of a group."""
        graph, reals, categories = self._graph, None, None
        if num_reals:
            reals = graph.input(f"{name}_reals", (BATCH, *times, num_reals), np.float32)
        if num_categories:
            categories = graph.input(f"{name}_categories", (BATCH, *times, num_categories), np.int64)
        return Group(reals, categories)

    def _contexts(self, static: Group) -> Contexts:
        """Selects static variables and encodes them."""
        encoder = self._model.static_encoder
        if not isinstance(encoder, StaticEncoder):
            return Contexts()
        mixed = self._mix("static_selection", ["static_embedding"], static, Contexts())  # (B, H)
        with self._graph.block("static_encoder"):
            return Contexts(
                *(
                    grn(self._graph, getattr(encoder, role), f"static_encoder.{role}", mixed)
                    for role in Contexts._fields
                )
            )

    def _split_known(self, known: Group) -> tuple[Group, Group]:
        """Cuts known inputs into history and horizon."""
        graph, sizes = self._graph, (self._size.encoder_length, self._size.horizon)
        parts = [
            (None, None)
            if x is None
            else graph.add("Split", [x, graph.whole(*sizes)], {"axis": 1}, results=2)
            for x in known
        ]
        (past_reals, reals), (past_categories, categories) = parts
        return Group(past_reals, past_categories), Group(reals, categories)

    def _history(self, observed: Group, known: Group, lengths: str, contexts: Contexts) -> str:
        """Selects among observed inputs and past known ones, (B, L, H); what is padding counts as zeros."""
        graph, length = self._graph, self._size.encoder_length
        with graph.block("history"):
            positions = graph.constant("history_positions", np.arange(length))
            present = graph.one("Less", positions, lengths)  # (B, L)
            present = graph.one("Unsqueeze", present, graph.whole(2))
            reals = self._together(observed.reals, known.reals, present, np.float32(0))
            categories = self._together(observed.categories, known.categories, present, np.int64(0))
        groups = ["observed_embedding", "known_embedding"]
        return self._selection("history_selection", groups, Group(reals, categories), contexts, length)

    def _together(
        self, observed: str | None, known: str | None, present: str, zero: np.float32 | np.int64
    ) -> str | None:
        """Puts the history of both groups side by side, with zeros where nothing is present."""
        graph = self._graph
        parts = [part for part in (observed, known) if part is not None]
        if not parts:
            return None
        values = graph.one("Concat", *parts, attributes={"axis": 2})
        return graph.one("Where", present, values, graph.constant(f"zero_{zero.dtype}", np.array(zero)))

    def _selection(
        self, name: str, groups: list[str], inputs: Group, contexts: Contexts, num_steps: int
    ) -> str:
        """Selects among variables over time, (B, time, H)."""
        mixed = self._mix(name, groups, inputs, contexts)
        return self._graph.one("Reshape", mixed, self._graph.whole(-1, num_steps, self._size.hidden_size))

    def _mix(self, name: str, groups: list[str], inputs: Group, contexts: Contexts) -> str:
        """Selects among variables, (rows, H)."""
        selection = getattr(self._model, name)
        assert isinstance(selection, FoldedSelection)
        with self._graph.block(name):
            writer = SelectionWriter(self._graph, selection, name, groups)
            return writer.write(SelectionInputs(*inputs, contexts.selection))

    def _process_locally(self, history: str, horizon: str, lengths: str, contexts: Contexts) -> str:
        """Runs the LSTM over history, then horizon, and gates its output with its input."""
        graph, model = self._graph, self._model
        states = None
        if contexts.hidden is not None and contexts.cell is not None:
            first = (graph.one("Unsqueeze", x, graph.whole(0)) for x in (contexts.hidden, contexts.cell))
            states = (State(*first),) * self._size.lstm_layers
        lengths = graph.one("Cast", lengths, attributes={"to": onnx.TensorProto.INT32})
        outputs = []
        for name, x, ends in (("lstm_encoder", history, lengths), ("lstm_decoder", horizon, None)):
            with graph.block(name):
                lstm = getattr(model, name).lstm
                first_time = graph.one("Transpose", x, attributes={"perm": (1, 0, 2)})
                output, states = write_lstm(graph, lstm, f"{name}.lstm", first_time, states, ends)
                outputs.append(graph.one("Transpose", output, attributes={"perm": (1, 0, 2)}))
        with graph.block("lstm_gate"):
            output = graph.one("Concat", *outputs, attributes={"axis": 1})
            skip = graph.one("Concat", history, horizon, attributes={"axis": 1})
            return gated_add_norm(graph, model.lstm_gate, "lstm_gate", output, skip)

    def _decode(self, temporal: str, lengths: str, contexts: Contexts) -> str:
        """Enriches, attends and gates, (B, K, H)."""
        graph, model, length = self._graph, self._model, self._size.encoder_length
        with graph.block("static_enrichment"):
            enriched = grn(graph, model.static_enrichment, "static_enrichment", temporal, contexts.enrichment)
        queries, skip = self._of_horizon(enriched), self._of_horizon(temporal)  # (B, K, H)
        with graph.block("attention"):
            visible = visible_keys(graph, lengths, length, self._size.horizon)
            attended = attend(graph, model.attention, "attention", queries, enriched, visible)
        with graph.block("attention_gate"):
            attended = gated_add_norm(graph, model.attention_gate, "attention_gate", attended, queries)
        with graph.block("position_wise"):
            decoded = grn(graph, model.position_wise, "position_wise", attended)
        with graph.block("output_gate"):
            return gated_add_norm(graph, model.output_gate, "output_gate", decoded, skip)

    def _of_horizon(self, x: str) -> str:
        """Takes the horizon of (B, T, H)."""
        graph, length = self._graph, self._size.encoder_length
        end = length + self._size.horizon
        return graph.one("Slice", x, graph.whole(length), graph.whole(end), graph.whole(1))
