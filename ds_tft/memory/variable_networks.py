"""The networks of one chunk of variables, forward and backward, in buffers that are given.

For each variable v, with the names of `model/grn.py`:

    hidden = ELU(first layer)                       collapsed beforehand, see `collapse.py`
    output = dropout(hidden W1 + b1)
    gate   = output W + b                           value and opening of the gated linear unit side by side
    normed = LayerNorm(embedding + value * sigmoid(opening))
    mixed += weight_v * (normed * norm_weight + norm_bias)

Written out with in-place operations: on most machines passes over memory cost as much as the products.

Letters: V variables, C variables of a chunk, R its rows (batch x time), H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ds_tft.memory.buffers import ChunkBuffers, Precision
from ds_tft.memory.dropout_mask import SeededDropout
from ds_tft.memory.exact_product import LARGEST_CODE, SMALLEST_CODE, exact_bmm
from ds_tft.memory.quantiser import Quantiser
from ds_tft.memory.variable_inputs import ChunkPlace, Variables

EPSILON = 1e-5  # of the layer norm
SLOW_EXPM1 = (torch.float32, torch.float64)  # types for which a CPU takes long over exp(x) - 1


class NetworkParameters(NamedTuple):
    """Parameters of the networks of all variables behind their first layers; or the gradients of these."""

    output_weight: Tensor | None  # (V, H, H); None, as its bias, in the folded form
    output_bias: Tensor | None  # (V, H)
    gate_weight: Tensor  # (V, H, 2H); codes in a model that is stored as INT8
    gate_bias: Tensor  # (V, 2H)
    norm_weight: Tensor  # (V, H)
    norm_bias: Tensor  # (V, H)

    @staticmethod
    def of(parts: Iterable[Tensor | None]) -> NetworkParameters:
        """Takes the parts in order; only the first two may be `None`."""
        return NetworkParameters(*parts)  # type: ignore[arg-type]

    def some(self, variables: slice) -> NetworkParameters:
        """Returns views of what belongs to some variables."""
        return self.of(None if part is None else part[variables] for part in self)


class Layer(NamedTuple):
    """One linear layer per variable."""

    weight: Tensor  # (C, I, O); int8 where whole numbers are multiplied that are stored so
    bias: Tensor  # (C, 1, O)


class IntegerGate(NamedTuple):
    """How a gate layer multiplies whole numbers, so that its sums are exact."""

    weight_scale: Tensor  # (C, 1, 2H); the weights are the whole numbers themselves
    input_scale: Tensor  # (C, 1, 1)


class ChunkNetworks(NamedTuple):
    """The networks of a chunk's variables, in the types of the arithmetic."""

    output: Layer | None  # None where it is folded into the gate
    gate: Layer
    norm_weight: Tensor  # (C, 1, H)
    integer: IntegerGate | None = None  # None for floating-point products
    quantiser: Quantiser | None = None  # what looks at the inputs of the gate, while ranges are measured

    @staticmethod
    def of(
        parameters: NetworkParameters, variables: slice, precision: Precision, *, fold: bool
    ) -> ChunkNetworks:
        """Takes the parameters of some variables.

        Args:
            parameters: Of all variables.
            variables: Which ones.
            precision: Types of the arithmetic.
            fold: Merge output and gate layer, between which nothing happens without dropout.
        """
        assert parameters.output_weight is not None
        weights = [part[variables].to(precision.products) for part in parameters[:4] if part is not None]
        output = Layer(weights[0], weights[1].unsqueeze(1))
        gate = Layer(weights[2], weights[3].unsqueeze(1))
        norm_weight = parameters.norm_weight[variables].unsqueeze(1).to(precision.sums)
        if not fold:
            return ChunkNetworks(output, gate, norm_weight)
        folded = Layer(
            torch.bmm(output.weight, gate.weight), torch.baddbmm(gate.bias, output.bias, gate.weight)
        )
        return ChunkNetworks(None, folded, norm_weight)

    @staticmethod
    def folded(
        parameters: NetworkParameters, variables: slice, precision: Precision, quantiser: Quantiser | None
    ) -> ChunkNetworks:
        """Takes the parameters of some variables of a model in the folded form.

        Args:
            parameters: Of all variables, without output layers.
            variables: Which ones.
            precision: Types of the arithmetic.
            quantiser: Of the gate layer, if there is one.
        """
        bias = parameters.gate_bias[variables].unsqueeze(1).to(precision.products)
        norm_weight = parameters.norm_weight[variables].unsqueeze(1).to(precision.sums)
        if quantiser is None:
            gate = Layer(parameters.gate_weight[variables].to(precision.products), bias)
            return ChunkNetworks(None, gate, norm_weight)
        weight = quantiser.stacked_weight(parameters.gate_weight, variables)
        input_scale = quantiser.stacked_input_scale(variables)
        if input_scale is None:
            gate = Layer(weight.values * weight.scale, bias)
            return ChunkNetworks(None, gate, norm_weight, quantiser=quantiser)
        integer = IntegerGate(weight.scale, input_scale)
        return ChunkNetworks(None, Layer(weight.values, bias), norm_weight, integer)


class Chunk(NamedTuple):
    """Some variables and rows, and what is needed to work on them."""

    networks: ChunkNetworks
    variables: Variables
    place: ChunkPlace
    first_variable: int  # its number among all of the selection
    weights: Tensor  # (C, R, 1) selection weights
    buffers: ChunkBuffers
    dropout: SeededDropout | None


def run_networks(chunk: Chunk) -> Tensor:
    """Runs the networks up to the layer norm.

    Afterwards the buffers hold what their names say.

    Returns:
        The factor that turns `centred` into normed values, shape (C, R, 1).
    """
    networks, variables, place, first_variable, _, buffers, dropout = chunk
    variables.first_layer(place, out=buffers.hidden)
    _elu(buffers.hidden, scratch=buffers.output)
    if networks.quantiser is not None:
        networks.quantiser.observe_stacked(buffers.hidden, first_variable)
    gated, scale = buffers.hidden, 1.0
    if networks.output is not None:
        gated = torch.baddbmm(
            networks.output.bias, buffers.hidden, networks.output.weight, out=buffers.output
        )
    if dropout is not None:
        gated.mul_(dropout.draw(first_variable, out=buffers.mask, begin=place.begins))
        scale = dropout.scale
    if networks.integer is None:
        torch.baddbmm(networks.gate.bias, gated, networks.gate.weight, alpha=scale, out=buffers.gate)
    else:
        _integer_gate(networks.gate, networks.integer, buffers)
    variables.embedding_plus(place, buffers.value, buffers.opened.sigmoid_(), out=buffers.centred)
    buffers.centred.sub_(buffers.centred.mean(-1, keepdim=True))
    length = torch.linalg.vector_norm(buffers.centred, dim=-1, keepdim=True)
    return length.square_().div_(buffers.centred.shape[-1]).add_(EPSILON).rsqrt_()


def add_to_mix(chunk: Chunk, factor: Tensor, mixed: Tensor) -> None:
    """Adds the variables, less their norm biases, to the mix; `centred` is overwritten.

    Args:
        chunk: As `run_networks` left it.
        factor: What that returned.
        mixed: Shape (R, H).
    """
    terms = chunk.buffers.centred.mul_(factor * chunk.weights).mul_(chunk.networks.norm_weight)
    mixed.add_(terms[0] if len(terms) == 1 else terms.sum(0))


def norm_backward(
    chunk: Chunk, factor: Tensor, mixed_grad: Tensor, mean_grad: Tensor, gradients: NetworkParameters
) -> Tensor:
    """Goes from the mix back through weights and layer norm, to `centred_grad`.

    Args:
        chunk: As `run_networks` left it.
        factor: What that returned.
        mixed_grad: Gradient of the mix, shape (R, H).
        mean_grad: Mean over H of that gradient times the norm weights, shape (C, R, 1).
        gradients: Of the chunk's variables; that of the norm weights is written or added to.

    Returns:
        The gradient of the selection weights, less the part that the norm biases have in it, (C, R, 1).
    """
    networks, buffers = chunk.networks, chunk.buffers
    weighted_factor = factor * chunk.weights
    grad = torch.mul(buffers.centred, mixed_grad, out=buffers.centred_grad)
    norm_weight_grad = torch.bmm(weighted_factor.transpose(1, 2), grad).squeeze(1)  # (C, H)
    _add(gradients.norm_weight, norm_weight_grad, chunk.place.begins)
    weights_grad = torch.bmm(grad, networks.norm_weight.transpose(1, 2)).mul_(factor)
    # The layer norm takes mean and projection on the normed values out of the gradient.
    torch.mul(mixed_grad, networks.norm_weight, out=grad)
    grad.addcmul_(buffers.centred, weights_grad * factor, value=-1 / grad.shape[-1])
    grad.sub_(mean_grad).mul_(weighted_factor)
    return weights_grad


def layers_backward(chunk: Chunk, gradients: NetworkParameters) -> None:
    """Goes from `centred_grad` back to embeddings and first layer; the buffers are overwritten.

    Args:
        chunk: As `run_networks` and `norm_backward` left it.
        gradients: Of the chunk's variables; written or added to.
    """
    networks, variables, place, _, _, buffers, dropout = chunk
    variables.embedding_backward(place, buffers.centred_grad)
    _gate_backward(buffers)
    if networks.output is None:
        hidden_grad = _folded_layers_backward(networks, place.begins, buffers, gradients)
    else:
        scale = 1.0 if dropout is None else dropout.scale
        hidden_grad = _layers_backward(networks.output, chunk, scale, gradients)
    torch.ops.aten.elu_backward.grad_input(hidden_grad, 1, 1, 1, True, buffers.hidden, grad_input=hidden_grad)
    variables.first_layer_backward(place, hidden_grad)


def _layers_backward(output: Layer, chunk: Chunk, scale: float, gradients: NetworkParameters) -> Tensor:
    """Goes through gate and output layer; returns the gradient behind the first layer's activation."""
    gate, place, buffers, dropout = chunk.networks.gate, chunk.place, chunk.buffers, chunk.dropout
    assert gradients.output_weight is not None
    assert gradients.output_bias is not None
    _add_product(
        gradients.gate_weight, buffers.output.transpose(1, 2), buffers.gate_grad, place.begins, scale
    )
    _add(gradients.gate_bias, buffers.gate_grad.sum(1), place.begins)
    _add_product(buffers.output_grad, buffers.gate_grad, gate.weight.transpose(1, 2), True, scale)
    if dropout is not None:
        buffers.output_grad.mul_(buffers.mask)
    _add_product(gradients.output_weight, buffers.hidden.transpose(1, 2), buffers.output_grad, place.begins)
    _add(gradients.output_bias, buffers.output_grad.sum(1), place.begins)
    return torch.bmm(buffers.output_grad, output.weight.transpose(1, 2), out=buffers.hidden_grad)


def _folded_layers_backward(
    networks: ChunkNetworks, begins: bool, buffers: ChunkBuffers, gradients: NetworkParameters
) -> Tensor:
    """Does the same where there is no output layer, perhaps in whole numbers; the gate's gradient is overwritten."""
    gate, integer, gate_grad = networks.gate, networks.integer, buffers.gate_grad
    _add(gradients.gate_bias, gate_grad.sum(1), begins)
    if integer is None:
        _add_product(gradients.gate_weight, buffers.hidden.transpose(1, 2), gate_grad, begins)
        return torch.bmm(gate_grad, gate.weight.transpose(1, 2), out=buffers.hidden_grad)
    weight_grad = torch.bmm(buffers.output.transpose(1, 2), gate_grad).mul_(integer.input_scale)
    _add(gradients.gate_weight, weight_grad, begins)
    gate_grad.mul_(integer.weight_scale)
    weight = gate.weight.to(gate_grad.dtype)  # of a stored model, for the gradients of its inputs
    hidden_grad = torch.bmm(gate_grad, weight.transpose(1, 2), out=buffers.hidden_grad)
    # What was clipped does not move its code: no gradient.
    unclipped = torch.div(buffers.hidden, integer.input_scale, out=buffers.output_grad).round_()
    return hidden_grad.mul_(unclipped.eq_(buffers.output))


def _integer_gate(gate: Layer, integer: IntegerGate, buffers: ChunkBuffers) -> None:
    """Writes the gate layer; `output` then holds the codes of its inputs."""
    codes = torch.div(buffers.hidden, integer.input_scale, out=buffers.output).round_()
    exact_bmm(codes.clamp_(SMALLEST_CODE, LARGEST_CODE), gate.weight, out=buffers.gate)
    buffers.gate.mul_(integer.weight_scale * integer.input_scale).add_(gate.bias)


def _gate_backward(buffers: ChunkBuffers) -> None:
    """Writes the gradient of the gate layer's result; its values are overwritten."""
    value, opened = buffers.value, buffers.opened
    torch.mul(buffers.centred_grad, opened, out=buffers.value_grad)
    value.mul_(buffers.centred_grad)
    torch.ops.aten.sigmoid_backward.grad_input(value, opened, grad_input=buffers.opening_grad)


def _elu(x: Tensor, scratch: Tensor) -> None:
    """Applies ELU in place."""
    if x.device.type != "cpu" or x.dtype not in SLOW_EXPM1:
        F.elu_(x)
        return
    # Four passes, and still faster than one of expm1, on which a CPU spends as long as on the product before.
    torch.exp(x, out=scratch).sub_(1).clamp_max_(0)
    torch.maximum(x, scratch, out=x)


def _add_product(total: Tensor, left: Tensor, right: Tensor, first: bool, factor: float = 1.0) -> None:
    """Adds `factor * left @ right` to `total`, or writes it there."""
    if total.dtype == left.dtype:
        torch.baddbmm(total, left, right, beta=0 if first else 1, alpha=factor, out=total)
    else:
        _add(total, torch.bmm(left, right).mul_(factor), first)


def _add(total: Tensor, value: Tensor, first: bool) -> None:
    """Adds `value` to `total`, or writes it there."""
    if first:
        total.copy_(value)
    else:
        total.add_(value)
