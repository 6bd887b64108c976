"""Codes of weights and inputs: rounding, scales, what is clipped, and the gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ds_tft.quantization.codes import (
    fake_quantised_inputs,
    fake_quantised_weight,
    input_codes,
    unclipped_codes,
    weight_codes,
    weight_scale,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
FINITE = st.floats(-(2.0**100), 2.0**100, allow_subnormal=False, width=32)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values whose rows differ in magnitude by orders."""
    generator = torch.Generator().manual_seed(sum(shape))
    values = torch.randn(*shape, generator=generator)
    return (values * torch.logspace(-3, 3, shape[0]).view(-1, *[1] * (len(shape) - 1))).to(dtype)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_weight_is_off_by_half_a_step_at_most(dtype, dim):
    weight = draw(7, 50, dtype=dtype)
    scale = weight_scale(weight, dim)
    rounded = weight_codes(weight, scale).double() * scale.double()
    assert scale.dtype == torch.float32
    assert scale.shape == ((1, 50) if dim == 0 else (7, 1))
    assert ((weight.double() - rounded).abs() <= scale.double() * (0.5 + 1e-5)).all()


@given(st.lists(st.lists(FINITE, min_size=3, max_size=3), min_size=1, max_size=5))
def test_whatever_the_weight_its_error_is_half_a_step_at_most(rows):
    weight = torch.tensor(rows)
    scale = weight_scale(weight, 1)
    codes = weight_codes(weight, scale)
    assert torch.equal(codes, codes.round())
    assert codes.abs().max() <= 127
    assert ((weight.double() - codes.double() * scale.double()).abs() <= scale.double() * (0.5 + 1e-5)).all()


def test_the_largest_magnitude_of_a_channel_has_code_127():
    weight = torch.tensor([[1.27, -0.5, 0.004], [-2.54, 1.0, 0.0]])
    scale = weight_scale(weight, 1)
    assert scale.flatten().tolist() == pytest.approx(
        [0.01, 0.02], rel=1e-6
    )  # over 128 the largest would clip
    assert weight_codes(weight, scale).tolist() == [[127, -50, 0], [-127, 50, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rounding_again_changes_nothing(dtype):
    weight = draw(200, 60, dtype=dtype)
    once = fake_quantised_weight(weight, 1)
    codes = weight_codes(once, weight_scale(once, 1))
    assert torch.equal(codes, weight_codes(weight, weight_scale(weight, 1)))
    torch.testing.assert_close(fake_quantised_weight(once, 1), once, rtol=2e-7, atol=0)
    values, step = draw(1, 3000, dtype=dtype), torch.tensor([0.013])
    once = fake_quantised_inputs(values, step)
    assert torch.equal(fake_quantised_inputs(once, step), once)


def test_each_output_channel_has_its_own_scale():
    weight = torch.tensor([[1.0, 0.5], [1e-3, 5e-4]])
    relative = (fake_quantised_weight(weight, 1) / weight - 1).abs()
    assert relative.max() < 0.01


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-38, 1e-45])
def test_a_channel_of_nothing_has_codes_0_and_stays_finite(value):
    weight = torch.tensor([[value, -value, 0.0], [1.0, 2.0, 3.0]])
    scale = weight_scale(weight, 1)
    assert weight_codes(weight, scale)[0].tolist() == [0, 0, 0]
    assert scale.isfinite().all()
    assert fake_quantised_weight(weight, 1)[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("constant", [3.0, -0.2, 1e-20, 1e30])
def test_a_constant_channel_is_kept(constant):
    weight = torch.full((2, 5), constant)
    codes = weight_codes(weight, weight_scale(weight, 1))
    assert (codes == (127 if constant > 0 else -127)).all()
    torch.testing.assert_close(fake_quantised_weight(weight, 1), weight, rtol=2e-7, atol=0)


def test_what_is_not_finite_is_not_hidden():
    weight = torch.tensor([[float("nan"), 1.0], [2.0, 1.0]])
    rounded = fake_quantised_weight(weight, 1)
    assert rounded[0].isnan().any()
    assert rounded[1].isfinite().all()
    assert input_codes(torch.tensor([float("nan")]), torch.tensor([1.0])).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_codes_of_inputs_go_from_minus_128_to_127(dtype):
    values = torch.tensor([-1000, -128.75, -128.25, -127.75, -0.25, 0.25, 126.75, 127.25, 127.75, 1000]) / 4
    codes = input_codes(values.to(dtype), torch.tensor([0.25]))
    exact = dtype in (torch.float32, torch.float64)
    expected = [-128, -128, -128, -128, 0, 0, 127, 127, 127, 127]
    assert codes.dtype == torch.promote_types(dtype, torch.float32)
    assert codes[[0, -1]].tolist() == [-128, 127]
    assert not exact or codes.tolist() == expected
    assert fake_quantised_inputs(values.to(dtype), torch.tensor([0.25])).dtype == dtype


def test_halves_go_to_even_codes():
    values = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])
    assert unclipped_codes(values, torch.tensor([1.0])).tolist() == [-2, -2, 0, 0, 2, 2]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_stop_where_inputs_are_clipped(dtype):
    values = torch.tensor([-1.30, -1.28, 0.004, 1.27, 1.29], dtype=dtype, requires_grad=True)
    (gradient,) = torch.autograd.grad(fake_quantised_inputs(values, torch.tensor([0.01])).sum(), values)
    assert gradient.tolist() == [0, 1, 1, 1, 0]
    assert gradient.dtype == dtype


def test_what_rounds_to_the_last_code_is_not_clipped():
    edges = torch.tensor([-128.51, -128.49, 127.49, 127.51], requires_grad=True)
    (gradient,) = torch.autograd.grad(fake_quantised_inputs(edges, torch.tensor([1.0])).sum(), edges)
    assert gradient.tolist() == [0, 1, 1, 0]


def test_gradients_of_weights_pass_everywhere():
    weight = draw(4, 6).requires_grad_()
    directions = draw(4, 6).flip(0)
    (gradient,) = torch.autograd.grad((fake_quantised_weight(weight, 1) * directions).sum(), weight)
    assert torch.equal(gradient, directions)


def test_steps_broadcast_over_the_last_dimension():
    values, steps = torch.tensor([[1.0, 1.0], [3.0, 3.0]]), torch.tensor([1.0, 0.01])
    assert input_codes(values, steps).tolist() == [[1, 100], [3, 127]]


def test_what_is_given_is_not_changed():
    weight, values = draw(3, 5), draw(3, 5)
    before = weight.clone(), values.clone()
    fake_quantised_weight(weight, 1)
    fake_quantised_inputs(values, torch.tensor([0.5]))
    input_codes(values, torch.tensor([0.5]))
    weight_codes(weight, weight_scale(weight, 1))
    assert torch.equal(weight, before[0])
    assert torch.equal(values, before[1])
