"""A linear layer in whole numbers, and the one whose weight alone is rounded."""

from __future__ import annotations

import itertools

import pytest
import torch
from quantization_cases import PlainWeight, plain_groups, plain_inputs, relative_error
from torch import Tensor
from torch.nn import functional as F

from ds_tft.memory.exact_product import LONGEST_SUM
from ds_tft.memory.meter import kept_for_backward
from ds_tft.quantization.integer_linear import Steps, integer_linear, stored_form, stored_linear
from ds_tft.quantization.range_groups import range_groups
from ds_tft.quantization.rounded_linear import rounded_linear

SHAPES = {"rows": (6,), "steps": (3, 5), "one": (1, 1)}


class Case:
    """A layer, its inputs, some of which are clipped, and a direction for gradients."""

    def __init__(
        self,
        shape: tuple[int, ...] = (3, 5),
        *,
        size: int = 12,
        per_input: bool = False,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        outputs = 7

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        scales = torch.logspace(-2, 2, size) if per_input else torch.ones(size)
        self.x = (normal(*shape, size) * scales).to(dtype).requires_grad_()
        self.weight = (normal(outputs, size) / scales).to(dtype).requires_grad_()
        self.bias = normal(outputs).to(dtype).requires_grad_()
        self.direction = normal(*shape, outputs).to(dtype)
        self.step = scales * 0.01 if per_input else torch.tensor([0.01])  # +-1.28 of a standard deviation
        self.per_input = per_input

    @property
    def steps(self) -> Steps:
        return Steps(self.step, range_groups(self.step) if self.per_input else None)

    @property
    def multiplied(self) -> Tensor:
        """The weight as the layer takes it."""
        return self.weight * self.step if self.per_input else self.weight

    def quantised(self) -> Tensor:
        return integer_linear(self.x, self.multiplied, self.bias, self.steps)

    def plain(self) -> Tensor:
        """The same with autograd, in floating point."""
        factor = self.step.unsqueeze(1) if self.per_input else None
        weight = PlainWeight(0, None if factor is None else factor.squeeze(1))(self.weight.t()).t()
        return F.linear(plain_inputs(self.x, self.step), weight, self.bias)

    def gradients(self, result: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad((result * self.direction).sum(), [self.x, self.weight, self.bias]))


@pytest.mark.parametrize("per_input", [False, True], ids=["one step", "a step per input"])
@pytest.mark.parametrize("size", [1, 12, 300, LONGEST_SUM + 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_is_the_arithmetic_of_whole_numbers(dtype, size, per_input):
    case = Case(size=size, per_input=per_input, dtype=dtype)
    inputs = (case.x.detach().float() / case.step).round().clamp(-128, 127).long()
    weight = case.multiplied.detach().float()
    expected = torch.zeros(())
    for group in plain_groups(case.step.tolist()) if per_input else [list(range(size))]:
        scale = weight[:, group].abs().amax(1, keepdim=True) / 127
        sums = inputs[..., group] @ (weight[:, group] / scale).round().long().t()
        expected = expected + sums.float() * (scale.t() if per_input else scale.t() * case.step)
    assert torch.equal(case.quantised(), (expected + case.bias.float()).to(dtype))


@pytest.mark.parametrize("per_input", [False, True], ids=["one step", "a step per input"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_stored_layer_gives_the_same_bits(dtype, shape, with_bias, per_input):
    case = Case(SHAPES[shape], per_input=per_input, dtype=dtype)
    bias = case.bias if with_bias else None
    scale, codes = stored_form(case.multiplied, case.steps)
    trained = integer_linear(case.x, case.multiplied, bias, case.steps)
    assert torch.equal(stored_linear(case.x, codes, scale, bias, case.steps), trained)
    assert trained.shape == (*SHAPES[shape], 7)


@pytest.mark.parametrize("per_input", [False, True], ids=["one step", "a step per input"])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_plain_rounding(shape, per_input):
    case = Case(SHAPES[shape], per_input=per_input)
    for actual, expected in zip(case.gradients(case.quantised()), case.gradients(case.plain()), strict=True):
        assert relative_error(actual, expected) < 1e-5
        assert torch.equal(actual == 0, expected == 0)


def test_some_inputs_of_the_case_are_clipped_and_get_no_gradient():
    case = Case((40,))
    gradient = case.gradients(case.quantised())[0]
    clipped = (case.x.detach() / case.step).round().clamp(-128, 127) != (case.x.detach() / case.step).round()
    assert 0.1 < clipped.float().mean() < 0.4
    assert torch.equal(gradient == 0, clipped)


def test_gradients_are_asked_for_one_by_one():
    case = Case()
    expected = case.gradients(case.quantised())
    for wanted in itertools.product([False, True], repeat=3):
        if any(wanted):
            case = Case()
            leaves = [case.x, case.weight, case.bias]
            for leaf, needs in zip(leaves, wanted, strict=True):
                leaf.requires_grad_(needs)
            (case.quantised() * case.direction).sum().backward()
            for leaf, needs, gradient in zip(leaves, wanted, expected, strict=True):
                assert leaf.grad is None if not needs else torch.equal(leaf.grad, gradient)


def test_half_precision_gives_gradients_in_its_type():
    case, exact = Case((200,), dtype=torch.bfloat16), Case((200,))
    with torch.no_grad():
        for name in ("x", "weight", "bias"):
            getattr(exact, name).copy_(getattr(case, name))
    exact.direction = case.direction.float()
    for actual, expected in zip(
        case.gradients(case.quantised()), exact.gradients(exact.quantised()), strict=True
    ):
        assert actual.dtype == torch.bfloat16
        assert relative_error(actual, expected) < 2**-8


def test_five_sixteenths_at_most_are_kept_of_the_inputs():
    case = Case((64, 16), size=128)
    excluded = [case.weight, case.bias]
    floating = kept_for_backward(lambda: F.linear(case.x * 1, case.weight, case.bias), excluded)
    integer = kept_for_backward(
        lambda: integer_linear(case.x * 1, case.weight, case.bias, case.steps), excluded
    )
    assert floating == 64 * 16 * 128 * 4
    assert integer == 64 * 16 * 128 * (1 + 1 / 8)


def test_inputs_of_the_model_are_not_kept_twice():
    case = Case((64, 16), size=128)
    case.x.requires_grad_(False)
    excluded = [case.weight, case.bias, case.x]
    assert kept_for_backward(case.quantised, excluded) == 0
    other = Case((64, 16), size=128)
    gradients = torch.autograd.grad((case.quantised() * case.direction).sum(), [case.weight, case.bias])
    for actual, expected in zip(gradients, other.gradients(other.quantised())[1:], strict=True):
        assert torch.equal(actual, expected)


def test_under_autocast_the_sums_stay_exact():
    case = Case(size=300)
    expected = case.quantised()
    with torch.autocast("cpu", torch.bfloat16):
        actual = integer_linear(case.x, case.multiplied, case.bias, case.steps)
    assert torch.equal(actual, expected)


def test_a_layer_with_a_rounded_weight_is_that_of_plain_rounding():
    for shape, with_bias in itertools.product(SHAPES.values(), (False, True)):
        case = Case(shape)
        bias = case.bias if with_bias else torch.zeros_like(case.bias).requires_grad_()
        plain = F.linear(case.x, PlainWeight(1)(case.weight), bias)
        result = rounded_linear(case.x, case.weight, bias if with_bias else None)
        assert relative_error(result, plain) < 1e-6
        leaves = [case.x, case.weight, *[case.bias] * with_bias]
        found, expected = (
            torch.autograd.grad((each * case.direction).sum(), leaves) for each in (result, plain)
        )
        for actual, other in zip(found, expected, strict=True):
            assert relative_error(actual, other) < 1e-5


def test_a_layer_with_a_rounded_weight_keeps_no_copy_of_it():
    case = Case()
    excluded = [case.x, case.weight, case.bias]
    assert kept_for_backward(lambda: rounded_linear(case.x, case.weight, case.bias), excluded) == 0
