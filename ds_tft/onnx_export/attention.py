"""The interpretable attention in ONNX.

Letters: B batch, L encoder length, K horizon steps, T time steps (L + K), H hidden size, N heads, D = H / N.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from ds_tft.model.attention import InterpretableAttention
from ds_tft.onnx_export.graph import Graph
from ds_tft.onnx_export.layers import linear, number


def attend(
    graph: Graph, module: InterpretableAttention, name: str, queries: str, keys: str, visible: str
) -> str:
    """Does what `InterpretableAttention` does, (B, K, H).

    Args:
        graph: To add to.
        module: The module.
        name: Its name.
        queries: Shape (B, K, H).
        keys: Shape (B, T, H).
        visible: True where a query may see a key, (B, 1, K, T).
    """
    size = module.query.in_features // module.num_heads
    heads = graph.whole(0, 0, module.num_heads, size)
    query = graph.one("Reshape", linear(graph, module.query, f"{name}.query", queries), heads)
    query = graph.one("Transpose", query, attributes={"perm": (0, 2, 1, 3)})  # (B, N, K, D)
    key = graph.one("Reshape", linear(graph, module.key, f"{name}.key", keys), heads)
    key = graph.one("Transpose", key, attributes={"perm": (0, 2, 3, 1)})  # (B, N, D, T)
    value = linear(graph, module.value, f"{name}.value", keys)  # (B, T, D)
    scores = graph.one("MatMul", query, key)
    scores = graph.one("Div", scores, number(graph, "attention_root", math.sqrt(size)))
    # A query sees itself at least, so that what it does not see gets exactly 0.
    lowest = number(graph, "lowest", torch.finfo(torch.float32).min)
    weights = graph.one("Softmax", graph.one("Where", visible, scores, lowest), attributes={"axis": -1})
    mean = graph.one("ReduceMean", weights, attributes={"axes": (1,), "keepdims": 0})  # (B, K, T)
    return linear(graph, module.output, f"{name}.output", graph.one("MatMul", mean, value))


def visible_keys(graph: Graph, lengths: str, length: int, num_steps: int) -> str:
    """Says which keys each horizon step may attend to, (B, 1, K, T).

    Args:
        graph: To add to.
        lengths: Steps of each history, (B, 1).
        length: L.
        num_steps: K.
    """
    positions = graph.constant("key_positions", np.arange(length + num_steps))
    in_history = graph.one(
        "Less", positions, graph.one("Unsqueeze", lengths, graph.whole(1, 2))
    )  # (B, 1, 1, T)
    causal = np.zeros((num_steps, length + num_steps), dtype=np.bool_)
    causal[:, length:] = np.tri(num_steps, dtype=np.bool_)
    return graph.one("Or", in_history, graph.constant("seen_horizon", causal))
