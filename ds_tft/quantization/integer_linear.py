"""A linear layer in whole numbers: the product that the INT8 model takes, with gradients for training.

Training and forecasting run the same arithmetic, so that the model that was trained and the one that is stored agree to
the last bit. Kept for backward: the codes of the inputs, one byte each, and one bit for what was clipped.

Letters: R rows (everything before the last dimension), I input size, O output size, G groups of inputs whose weights
share scales (`range_groups.py`; 1 where the inputs have one step).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ds_tft.memory.exact_product import LARGEST_CODE, SMALLEST_CODE, exact_mm
from ds_tft.quantization.codes import input_codes, unclipped_codes, weight_codes, weight_scale, wide
from ds_tft.quantization.mask import pack, unpack


class Steps(NamedTuple):
    """The steps of the codes of a layer's inputs."""

    step: Tensor  # (1,), or (I,) where each input has its own; float32
    groups: tuple[Tensor, ...] | None = None
    """Where each input has its own step, the weight is multiplied with the steps already; these are the places of the
    inputs of each group, whose weights share a scale."""


class _Saved(NamedTuple):
    """What backward needs."""

    inputs: Tensor  # codes (R, I) int8; or the inputs themselves, where they are kept anyway
    unclipped: Tensor | None  # packed bits
    weight: Tensor  # (O, I)


def integer_linear(x: Tensor, weight: Tensor, bias: Tensor | None, steps: Steps) -> Tensor:
    """Returns `x @ weight.t() + bias` of quantised inputs and weights.

    Args:
        x: Shape (..., I). Where it needs no gradient it is taken for an input of the model, which is kept anyway.
        weight: Shape (O, I), in floating point.
        bias: Shape (O,).
        steps: Of the inputs.
    """
    result = _IntegerLinear.apply(x.flatten(0, -2), weight, bias, steps)
    return result.view(*x.shape[:-1], -1)


def stored_linear(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None, steps: Steps) -> Tensor:
    """Does the same with a weight that is stored as codes.

    Args:
        x: Shape (..., I).
        codes: Shape (O, I) int8.
        scale: Shape (G, O) float32.
        bias: Shape (O,).
        steps: Of the inputs.
    """
    inputs = input_codes(x.flatten(0, -2), steps.step)
    result = _product(inputs, codes, scale, bias, steps)
    return result.to(x.dtype).view(*x.shape[:-1], -1)


def stored_form(weight: Tensor, steps: Steps) -> tuple[Tensor, Tensor]:
    """Returns what `stored_linear` takes: scales (G, O) float32 and codes (O, I) int8.

    Args:
        weight: Shape (O, I), multiplied with the steps already where `steps` says so.
        steps: Of its inputs.
    """
    scale = _scales(weight, steps)
    return scale, weight_codes(weight, _of_each(scale, steps)).to(torch.int8)


class _IntegerLinear(torch.autograd.Function):
    """Shapes as in `integer_linear`, `x` flattened to (R, I)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, steps: Steps) -> Tensor:
        unclipped = unclipped_codes(x, steps.step)
        codes = unclipped.clamp(SMALLEST_CODE, LARGEST_CODE)
        ctx.steps = steps
        if ctx.needs_input_grad[0]:
            saved = _Saved(codes.to(torch.int8), pack(unclipped == codes), weight)
        else:
            saved = _Saved(x, None, weight)
        ctx.save_for_backward(*saved)
        scale = _scales(weight, steps)
        return _product(codes, weight_codes(weight, _of_each(scale, steps)), scale, bias, steps).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved, steps = _Saved(*ctx.saved_tensors), ctx.steps
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        exact = wide(grad)
        x_grad = weight_grad = bias_grad = None
        if needs_weight:
            codes = wide(saved.inputs).to(exact.dtype)
            if saved.unclipped is None:
                codes = input_codes(saved.inputs, steps.step)
            weight_grad = exact.t() @ codes  # (O, I)
            if steps.groups is None:
                weight_grad.mul_(steps.step)
            weight_grad = weight_grad.to(saved.weight.dtype)
        if needs_bias:
            bias_grad = exact.sum(0).to(grad.dtype)
        if needs_x:
            assert saved.unclipped is not None
            scale = _of_each(_scales(saved.weight, steps), steps)
            x_grad = exact @ weight_codes(saved.weight, scale).mul_(scale)  # (R, I)
            if steps.groups is not None:
                x_grad.div_(steps.step)
            x_grad = x_grad.mul_(unpack(saved.unclipped, x_grad.shape)).to(grad.dtype)
        return x_grad, weight_grad, bias_grad, None


def _scales(weight: Tensor, steps: Steps) -> Tensor:
    """Returns the scales of a weight (O, I), (G, O) float32; those of a group without inputs are 1."""
    if steps.groups is None:
        return weight_scale(weight, 1).t()
    scale = torch.ones(len(steps.groups), len(weight), device=weight.device)
    for own, places in zip(scale, steps.groups, strict=True):
        if len(places):
            own.copy_(weight_scale(weight[:, places], 1).squeeze(1))
    return scale


def _of_each(scale: Tensor, steps: Steps) -> Tensor:
    """Returns scales (G, O) as the weights (O, I) have them, (O, I) or (O, 1)."""
    if steps.groups is None:
        return scale.t()
    each = scale.new_empty(scale.shape[1], len(steps.step))
    for own, places in zip(scale, steps.groups, strict=True):
        each[:, places] = own.unsqueeze(1)
    return each


def _product(codes: Tensor, weights: Tensor, scale: Tensor, bias: Tensor | None, steps: Steps) -> Tensor:
    """Multiplies codes (R, I) and (O, I), and scales the sums, (R, O) float32."""
    if steps.groups is None:
        result = exact_mm(codes, weights).mul_(scale * steps.step)
    else:
        result = codes.new_zeros(len(codes), len(weights))
        for own, places in zip(scale, steps.groups, strict=True):
            if len(places):
                result += exact_mm(codes[:, places], weights[:, places]).mul_(own)
    return result if bias is None else result.add_(bias)
