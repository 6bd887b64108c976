"""A linear layer whose weight alone is quantised; its inputs stay in floating point.

Kept for backward are the inputs and the weight itself, as without quantisation, and not a rounded copy of the weight.

Letters: R rows (everything before the last dimension), I input size, O output size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ds_tft.quantization.codes import fake_quantised_weight


def rounded_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns `x @ weight.t() + bias` with a weight of `code * scale`; its gradient passes straight through.

    Args:
        x: Shape (..., I).
        weight: Shape (O, I), in floating point.
        bias: Shape (O,).
    """
    return _RoundedLinear.apply(x, weight, bias)


class _RoundedLinear(torch.autograd.Function):
    """Shapes as in `rounded_linear`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, fake_quantised_weight(weight, 1), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2)  # (R, O)
        x_grad = weight_grad = bias_grad = None
        if needs_x:
            x_grad = grad @ fake_quantised_weight(weight, 1)
        if needs_weight:
            weight_grad = rows.t() @ x.flatten(0, -2)
        if needs_bias:
            bias_grad = rows.sum(0)
        return x_grad, weight_grad, bias_grad
