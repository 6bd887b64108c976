"""Weights and products, in floating point or in whole numbers, as the model has them.

The whole numbers are those of `ds_tft/quantization`: QuantizeLinear turns inputs into codes, MatMulInteger multiplies
them exactly, and the sums are scaled. Codes of a product are written as uint8, 128 above their value: on processors
with AVX2 and no VNNI, uint8 times int8 gives wrong sums, and int8 times int8 takes longer. Other codes are int8.

Letters: V variables, I input size, O output size, G groups of inputs that have one step each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto
from torch import Tensor, nn

from ds_tft.memory.quantiser import quantiser_of
from ds_tft.onnx_export.graph import Graph

ZERO_CODE = 128
Floats = NDArray[np.float32]


class Weight(NamedTuple):
    """A parameter of a module."""

    values: Floats | NDArray[np.int8]
    scale: Floats | None
    """What codes are multiplied with, broadcast over them; None where `values` are no codes."""

    def transposed(self) -> Weight:
        """Returns (I, O) for (O, I)."""
        return Weight(self.values.T, None if self.scale is None else self.scale.T)

    def some(self, variables: slice) -> Weight:
        """Returns the matrices of some variables."""
        return Weight(self.values[variables], None if self.scale is None else self.scale[variables])


class InputSteps(NamedTuple):
    """Steps of the codes of a product's inputs."""

    step: Floats  # (G,)
    axis: int
    """Of the inputs, along which the groups lie, where there are several."""
    groups: tuple[NDArray[np.int64], ...] | None
    """The weight is multiplied with them already; those of each of these groups of inputs share scales."""

    def some(self, variables: slice) -> InputSteps:
        """Returns the steps of some variables."""
        return self._replace(step=self.step[variables])


def array(tensor: Tensor) -> Floats:
    """Returns a parameter in floating point."""
    values: Floats = tensor.detach().cpu().float().numpy()
    return values


def weight_of(module: nn.Module, name: str) -> Weight:
    """Returns a parameter as the module stores it."""
    tensor: Tensor = getattr(module, name)
    if tensor.is_floating_point():
        return Weight(array(tensor), None)
    return Weight(tensor.detach().cpu().numpy(), array(quantiser_of(module).scale(name)))  # type: ignore[union-attr]


def steps_of(module: nn.Module, axis: int = -1) -> InputSteps | None:
    """Returns the steps of a module's inputs; None where they stay in floating point."""
    quantiser = quantiser_of(module)
    if quantiser is None or quantiser.num_steps == 0:
        return None
    groups = quantiser.steps.groups
    numbers = None if groups is None else tuple(places.cpu().numpy() for places in groups)
    return InputSteps(array(quantiser.input_step), axis, numbers)


def product(graph: Graph, x: str, name: str, weight: Weight, steps: InputSteps | None) -> str:
    """Multiplies.

    Args:
        graph: To add to.
        x: Shape (..., I).
        name: Of the weight.
        weight: Shape ([V], I, O), its scale ([V], 1, O); or a scale (groups, O), where `steps` has groups.
        steps: Of the codes of `x`.
    """
    if weight.scale is None:
        return graph.one("MatMul", x, graph.constant(name, weight.values))
    scale = weight.scale
    if steps is None:
        codes = graph.constant(name, weight.values)
        return graph.one("MatMul", x, times_scale(graph, codes, graph.constant(f"{name}.scale", scale)))
    if steps.groups is not None:
        return _sum_of_groups(graph, x, name, weight, steps)
    scale = scale * steps.step.reshape(-1, *[1] * (scale.ndim - 1))
    return _whole_product(graph, quantised(graph, x, name, steps), name, weight.values, scale)


def _sum_of_groups(graph: Graph, x: str, name: str, weight: Weight, steps: InputSteps) -> str:
    """Multiplies group by group, in their order, and adds."""
    assert weight.scale is not None
    assert steps.groups is not None
    codes, total = quantised(graph, x, name, steps), ""
    for group, places in enumerate(steps.groups):
        if len(places):
            label = f"{name}[group {group}]"
            own = graph.one(
                "Gather", codes, graph.constant(f"{label}.inputs", places), attributes={"axis": -1}
            )
            part = _whole_product(graph, own, label, weight.values[places], weight.scale[group])
            total = graph.one("Add", total, part) if total else part
    return total


def _whole_product(graph: Graph, codes: str, name: str, weights: NDArray[np.generic], scale: Floats) -> str:
    """Multiplies codes, and scales the sums."""
    unsigned = (weights.astype(np.int16) + ZERO_CODE).astype(np.uint8)
    zero = _zero(graph)
    sums = graph.one("MatMulInteger", codes, graph.constant(name, unsigned), zero, zero)
    return times_scale(graph, sums, graph.constant(f"{name}.scale", scale))


def quantised(graph: Graph, x: str, name: str, steps: InputSteps) -> str:
    """Turns values into codes; `name` is that of the weight that they meet."""
    if len(steps.step) == 1:
        return graph.one("QuantizeLinear", x, _step(graph, name, steps), _zero(graph))
    step = graph.constant(f"{name}.input_step", steps.step)
    zeros = np.full(steps.step.shape, ZERO_CODE, dtype=np.uint8)
    zero = graph.constant(f"zero_codes_{len(zeros)}", zeros)
    return graph.one("QuantizeLinear", x, step, zero, attributes={"axis": steps.axis})


def rounded(graph: Graph, x: str, name: str, steps: InputSteps) -> str:
    """Rounds values to those that have codes; there is one step for all."""
    codes = quantised(graph, x, name, steps)
    return graph.one("DequantizeLinear", codes, _step(graph, name, steps), _zero(graph))


def times_scale(graph: Graph, codes: str, scale: str) -> str:
    """Turns codes, or sums of products of them, into floating point."""
    return graph.one("Mul", graph.one("Cast", codes, attributes={"to": TensorProto.FLOAT}), scale)


def dequantised(graph: Graph, name: str, weight: Weight, axis: int) -> str:
    """Returns a weight in floating point; it has one scale for each place along an axis."""
    values = graph.constant(name, weight.values)
    if weight.scale is None:
        return values
    scale = graph.constant(f"{name}.scale", weight.scale.reshape(-1))
    return graph.one("DequantizeLinear", values, scale, attributes={"axis": axis})


def _step(graph: Graph, name: str, steps: InputSteps) -> str:
    """Returns the one step of all inputs."""
    return graph.constant(f"{name}.input_step", steps.step.reshape(()))


def _zero(graph: Graph) -> str:
    """Returns the code of 0."""
    return graph.constant("zero_code", np.array(ZERO_CODE, dtype=np.uint8))
