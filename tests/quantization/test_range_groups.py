"""Groups of inputs whose weights share scales."""

from __future__ import annotations

import pytest
import torch

from ds_tft.quantization.integer_linear import Steps, integer_linear, stored_form
from ds_tft.quantization.range_groups import NUM_GROUPS, members, range_groups


def test_ranges_within_four_times_share_a_group():
    step = torch.tensor([8.0, 2.0, 1.999, 0.5, 0.499, 0.125, 0.124, 1e-30])
    assert range_groups(step).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert range_groups(step * 1e-3).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert range_groups(torch.ones(5)).tolist() == [0] * 5
    assert range_groups(torch.tensor([3.0])).tolist() == [0]


def test_every_input_is_member_of_one_group():
    groups = range_groups(torch.logspace(-4, 1, 30))
    found = members(groups)
    assert found.shape == (NUM_GROUPS, 30)
    assert torch.equal(found.sum(0), torch.ones(30, dtype=torch.int64))
    assert torch.equal(found.int().argmax(0), groups)


@pytest.mark.parametrize("width", [1.0, 100.0, 10_000.0])
def test_one_wide_input_costs_the_others_nothing(width):
    """With one scale for all, the weights of the others would round to 0, and the error would be that of losing them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(500, 10, generator=generator) * 2 - 1
    weight = torch.randn(6, 10, generator=generator)
    x[:, 3] *= width
    steps = Steps(x.abs().amax(0) / 127, in_weight=True)
    result = integer_linear(x, weight * steps.step, None, steps)
    others = [place for place in range(10) if place != 3]
    wide = integer_linear(x[:, [3]], weight[:, [3]] * steps.step[3], None, Steps(steps.step[3:4], True))
    expected = x[:, others].double() @ weight[:, others].double().t()
    error = (result.double() - wide.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error < 0.01


def test_scales_are_those_of_the_group():
    weight = torch.tensor([[127.0, 254.0, 1.0, 0.5]])
    scale, codes = stored_form(weight, Steps(torch.tensor([1.0, 1.0, 0.1, 0.1]), in_weight=True))
    assert scale.tolist() == [[2.0], [pytest.approx(1 / 127)], [1.0], [1.0]]
    assert codes.tolist() == [[64, 127, 127, 64]]
