"""Whole numbers of 8 bits for weights and for inputs of layers, and the gradients that training gives them.

A weight is `code * scale` with codes -127 .. 127 and one scale per output channel, `largest magnitude / 127`, so that
no weight is ever clipped. An input is `code * step` with codes -128 .. 127 and a step that is measured once
(`calibration.py`) and stays: what lies beyond its range is clipped, and gets no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ds_tft.memory.exact_product import LARGEST_CODE, SMALLEST_CODE
from ds_tft.quantization.mask import pack, unpack

WEIGHT_CODES = 127


def weight_scale(weight: Tensor, dim: int) -> Tensor:
    """Returns the scale of each output channel, float32.

    Args:
        weight: Any shape.
        dim: Dimension that is summed over in a product; its size in the result is 1.
    """
    scale = weight.detach().float().abs().amax(dim, keepdim=True) / WEIGHT_CODES
    return scale.where(scale > torch.finfo(scale.dtype).tiny, 1.0)  # a channel of zeros has codes 0


def weight_codes(weight: Tensor, scale: Tensor) -> Tensor:
    """Returns the codes of a weight as whole numbers in float32."""
    return torch.div(weight.detach(), scale).round_().clamp_(-WEIGHT_CODES, WEIGHT_CODES)


def wide(values: Tensor) -> Tensor:
    """Returns values in float32 at least."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def input_codes(values: Tensor, step: Tensor) -> Tensor:
    """Returns the codes of inputs as whole numbers in float32."""
    return unclipped_codes(values, step).clamp_(SMALLEST_CODE, LARGEST_CODE)


def unclipped_codes(values: Tensor, step: Tensor) -> Tensor:
    """Returns what `input_codes` clips."""
    return torch.div(wide(values.detach()), step).round_()


def fake_quantised_weight(weight: Tensor, dim: int) -> Tensor:
    """Returns `code * scale` of a weight, in its type; the gradient passes through."""
    return _QuantisedWeight.apply(weight, dim)


def fake_quantised_inputs(values: Tensor, step: Tensor) -> Tensor:
    """Returns `code * step` of inputs, in their type; the gradient passes where nothing is clipped."""
    return _QuantisedInputs.apply(values, step)


class _QuantisedWeight(torch.autograd.Function):
    """Straight through: no weight is clipped, and the scale counts as constant."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, dim: int) -> Tensor:  # noqa: ARG004
        scale = weight_scale(weight, dim)
        return weight_codes(weight, scale).mul_(scale).to(weight.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return grad, None


class _QuantisedInputs(torch.autograd.Function):
    """Straight through where nothing is clipped; keeps one bit per value for it."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, step: Tensor) -> Tensor:
        unclipped = unclipped_codes(values, step)
        codes = unclipped.clamp(SMALLEST_CODE, LARGEST_CODE)
        ctx.shape = values.shape
        ctx.save_for_backward(pack(unclipped == codes))
        return codes.mul_(step).to(values.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (bits,) = ctx.saved_tensors
        return grad * unpack(bits, ctx.shape), None
