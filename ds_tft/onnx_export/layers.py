"""The layers of the folded model as ONNX operations, each under the name of its module.

Letters: B batch, T time steps (absent for static variables), Vr real and Vc categorical variables, N categories,
I input size, H hidden size, O output size.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from ds_tft.model.folded import CollapsedLinear, FoldedGRN
from ds_tft.model.grn import GatedAddNorm
from ds_tft.onnx_export.arithmetic import array, product, steps_of, times_scale, weight_of
from ds_tft.onnx_export.graph import Graph


def linear(graph: Graph, layer: nn.Linear, name: str, x: str) -> str:
    """Does what `nn.Linear` does, (..., I) -> (..., O)."""
    weight = weight_of(layer, "weight").transposed()
    result = product(graph, x, f"{name}.weight", weight, steps_of(layer))
    return result if layer.bias is None else add_bias(graph, result, layer.bias, f"{name}.bias")


def collapsed(graph: Graph, layer: CollapsedLinear, name: str, reals: str | None, rows: str | None) -> str:
    """Does what `CollapsedLinear` does, (B, [T], Vr) and (B, [T], Vc) -> (B, [T], O)."""
    parts = [graph.constant(f"{name}.bias", array(layer.bias))]
    if reals is not None:
        result = product(graph, reals, f"{name}.weight", weight_of(layer, "weight"), steps_of(layer))
        parts = [graph.one("Add", result, *parts)]
    if rows is not None:
        looked_up = look_up(graph, layer, "table", name, rows)  # (B, [T], Vc, O)
        parts.append(graph.one("ReduceSum", looked_up, graph.whole(-2), attributes={"keepdims": 0}))
    return parts[0] if len(parts) == 1 else graph.one("Add", *parts)


def look_up(graph: Graph, module: nn.Module, table: str, name: str, rows: str) -> str:
    """Looks rows up in a table (N, O) of a module, (...) -> (..., O)."""
    weight, label = weight_of(module, table), f"{name}.{table}"
    values = graph.one("Gather", graph.constant(label, weight.values), rows)
    if weight.scale is None:
        return values
    return times_scale(
        graph, values, graph.one("Gather", graph.constant(f"{label}.scale", weight.scale), rows)
    )


def grn(graph: Graph, module: FoldedGRN, name: str, x: str, context: str | None = None) -> str:
    """Does what `FoldedGRN` does, (B, [T], I) -> (B, [T], O)."""
    hidden = with_context(
        graph, module.context, name, linear(graph, module.hidden, f"{name}.hidden", x), context
    )
    skip = x if module.skip is None else linear(graph, module.skip, f"{name}.skip", x)
    gate = linear(graph, module.gate, f"{name}.gate", graph.one("Elu", hidden))
    return layer_norm(graph, module.norm, f"{name}.norm", graph.one("Add", skip, glu(graph, gate)))


def gated_add_norm(graph: Graph, module: GatedAddNorm, name: str, x: str, skip: str) -> str:
    """Does what `GatedAddNorm` does without dropout."""
    gated = glu(graph, linear(graph, module.gate, f"{name}.gate", x))
    return layer_norm(graph, module.norm, f"{name}.norm", graph.one("Add", skip, gated))


def with_context(graph: Graph, layer: nn.Linear | None, name: str, hidden: str, context: str | None) -> str:
    """Adds a static context (B, H), where a network was built with one, to (B, T, H)."""
    if layer is None:
        return hidden
    assert context is not None
    added = linear(graph, layer, f"{name}.context", context)
    return graph.one("Add", hidden, graph.one("Unsqueeze", added, graph.whole(1)))


def glu(graph: Graph, gate: str) -> str:
    """Lets the first half of the last dimension through as far as the second half says."""
    value, opening = graph.add("Split", [gate], {"axis": -1}, results=2)
    return graph.one("Mul", value, graph.one("Sigmoid", opening))


def layer_norm(graph: Graph, norm: nn.LayerNorm, name: str, x: str) -> str:
    """Does what `nn.LayerNorm` does over the last dimension."""
    weight = graph.constant(f"{name}.weight", array(norm.weight))
    bias = graph.constant(f"{name}.bias", array(norm.bias))
    return graph.one("LayerNormalization", x, weight, bias, attributes={"axis": -1, "epsilon": norm.eps})


def add_bias(graph: Graph, x: str, bias: nn.Parameter, name: str) -> str:
    """Adds a vector to the last dimension."""
    return graph.one("Add", x, graph.constant(name, array(bias)))


def number(graph: Graph, name: str, value: float) -> str:
    """Returns a constant of float32."""
    return graph.constant(name, np.array(value, dtype=np.float32))
