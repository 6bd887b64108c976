"""The LSTMs in ONNX, where a layer is an operation and its gates come in another order than in torch.

Letters: B batch, T time steps, H hidden size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import nn

from ds_tft.onnx_export.arithmetic import Floats, Weight, array, dequantised, rounded, steps_of, weight_of
from ds_tft.onnx_export.graph import Graph

GATES = (0, 3, 1, 2)
"""Input, output, forget, cell, counted in the order of torch: input, forget, cell, output."""


class State(NamedTuple):
    """The state of one layer, each (1, B, H)."""

    hidden: str
    cell: str


class Sequences(NamedTuple):
    """What comes out of an LSTM."""

    output: str  # (T, B, H)
    states: tuple[State, ...]  # of each layer, at each sequence's own end


def write_lstm(
    graph: Graph, lstm: nn.LSTM, name: str, x: str, states: tuple[State, ...] | None, lengths: str | None
) -> Sequences:
    """Does what `Recurrent` does.

    Args:
        graph: To add to.
        lstm: The module.
        name: Its name.
        x: Inputs, (T, B, H).
        states: First state of each layer; None starts from zeros.
        lengths: Steps of each sequence, (B,) int32; None means all.
    """
    steps = steps_of(lstm)
    if steps is not None:
        x = rounded(graph, x, name, steps)
    last = []
    for layer in range(lstm.num_layers):
        inputs = [
            x,
            _weight(graph, lstm, name, f"weight_ih_l{layer}"),
            _weight(graph, lstm, name, f"weight_hh_l{layer}"),
            graph.constant(f"{name}.bias_l{layer}", _bias(lstm, layer)),
            lengths or "",
            *(("", "") if states is None else states[layer]),
        ]
        outputs, *state = graph.add("LSTM", inputs, {"hidden_size": lstm.hidden_size}, results=3)
        last.append(State(*state))
        x = graph.one("Squeeze", outputs, graph.whole(1))
    return Sequences(x, tuple(last))


def _weight(graph: Graph, lstm: nn.LSTM, name: str, parameter: str) -> str:
    """Returns a weight, (1, 4H, H)."""
    weight = weight_of(lstm, parameter)
    scale = None if weight.scale is None else _reordered(weight.scale)
    return dequantised(graph, f"{name}.{parameter}", Weight(_reordered(weight.values)[None], scale), 1)


def _bias(lstm: nn.LSTM, layer: int) -> Floats:
    """Returns the biases of inputs and recurrence, one behind the other, (1, 8H)."""
    parts = [array(getattr(lstm, f"bias_{kind}_l{layer}")) for kind in ("ih", "hh")]
    return np.concatenate([_reordered(part) for part in parts])[None]


def _reordered(values: np.ndarray) -> np.ndarray:
    """Brings the gates, along the first dimension, into the order of ONNX."""
    return np.concatenate([np.split(values, 4)[gate] for gate in GATES])
