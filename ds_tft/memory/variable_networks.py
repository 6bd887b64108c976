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

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ds_tft.memory.buffers import ChunkBuffers, Precision
from ds_tft.memory.dropout_mask import SeededDropout
from ds_tft.memory.variable_inputs import ChunkPlace, Variables

EPSILON = 1e-5  # of the layer norm
SLOW_EXPM1 = (torch.float32, torch.float64)  # types for which a CPU takes long over exp(x) - 1


class NetworkParameters(NamedTuple):
    """Parameters of the networks of all variables behind their first layers; or the gradients of these."""

    output_weight: Tensor  # (V, H, H)
    output_bias: Tensor  # (V, H)
    gate_weight: Tensor  # (V, H, 2H)
    gate_bias: Tensor  # (V, 2H)
    norm_weight: Tensor  # (V, H)
    norm_bias: Tensor  # (V, H)


class Layer(NamedTuple):
    """One linear layer per variable."""

    weight: Tensor  # (C, I, O)
    bias: Tensor  # (C, 1, O)


class ChunkNetworks(NamedTuple):
    """The networks of a chunk's variables, in the types of the arithmetic."""

    output: Layer | None  # None where it is folded into the gate
    gate: Layer
    norm_weight: Tensor  # (C, 1, H)

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
        weights = [part[variables].to(precision.products) for part in parameters[:4]]
        output = Layer(weights[0], weights[1].unsqueeze(1))
        gate = Layer(weights[2], weights[3].unsqueeze(1))
        norm_weight = parameters.norm_weight[variables].unsqueeze(1).to(precision.sums)
        if not fold:
            return ChunkNetworks(output, gate, norm_weight)
        folded = Layer(
            torch.bmm(output.weight, gate.weight), torch.baddbmm(gate.bias, output.bias, gate.weight)
        )
        return ChunkNetworks(None, folded, norm_weight)


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
    gated, scale = buffers.hidden, 1.0
    if networks.output is not None:
        gated = torch.baddbmm(
            networks.output.bias, buffers.hidden, networks.output.weight, out=buffers.output
        )
    if dropout is not None:
        gated.mul_(dropout.draw(first_variable, out=buffers.mask, begin=place.begins))
        scale = dropout.scale
    torch.baddbmm(networks.gate.bias, gated, networks.gate.weight, alpha=scale, out=buffers.gate)
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
        chunk: As `run_networks` and `norm_backward` left it, not folded.
        gradients: Of the chunk's variables; written or added to.
    """
    (output, gate, _), variables, place, _, _, buffers, dropout = chunk
    assert output is not None, "folded networks have no backward"
    scale = 1.0 if dropout is None else dropout.scale
    variables.embedding_backward(place, buffers.centred_grad)
    _gate_backward(buffers)
    _add_product(
        gradients.gate_weight, buffers.output.transpose(1, 2), buffers.gate_grad, place.begins, scale
    )
    _add(gradients.gate_bias, buffers.gate_grad.sum(1), place.begins)
    _add_product(buffers.output_grad, buffers.gate_grad, gate.weight.transpose(1, 2), True, scale)
    if dropout is not None:
        buffers.output_grad.mul_(buffers.mask)
    _add_product(gradients.output_weight, buffers.hidden.transpose(1, 2), buffers.output_grad, place.begins)
    _add(gradients.output_bias, buffers.output_grad.sum(1), place.begins)
    hidden_grad = torch.bmm(buffers.output_grad, output.weight.transpose(1, 2), out=buffers.hidden_grad)
    torch.ops.aten.elu_backward.grad_input(hidden_grad, 1, 1, 1, True, buffers.hidden, grad_input=hidden_grad)
    variables.first_layer_backward(place, hidden_grad)


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
