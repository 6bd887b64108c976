"""Groups of inputs whose weights share scales."""

from __future__ import annotations

import copy

import pytest
import torch
from quantization_cases import attach, build

from ds_tft.quantization.integer_linear import Steps, integer_linear, stored_form
from ds_tft.quantization.range_groups import NUM_GROUPS, range_groups


def places(step: torch.Tensor) -> list[list[int]]:
    return [group.tolist() for group in range_groups(step)]


def test_ranges_within_twice_share_a_group():
    step = torch.tensor([8.0, 4.0, 3.999, 2.0, 1.999, 0.0625, 0.0624, 1e-30])
    expected = [[0, 1], [2, 3], [4], [], [], [], [5], [6, 7]]
    assert places(step) == expected
    assert places(step * 1e-3) == expected
    assert places(torch.ones(3))[0] == [0, 1, 2]
    assert places(torch.tensor([3.0]))[0] == [0]


def test_every_input_is_in_one_group():
    groups = places(torch.logspace(-4, 1, 30))
    assert len(groups) == NUM_GROUPS
    assert sorted(sum(groups, [])) == list(range(30))


@pytest.mark.parametrize("width", [1.0, 100.0, 10_000.0])
def test_one_wide_input_costs_the_others_nothing(width):
    """With one scale for all, the weights of the others would round to 0."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(500, 10, generator=generator) * 2 - 1
    weight = torch.randn(6, 10, generator=generator)
    x[:, 3] *= width
    step = x.abs().amax(0) / 127
    result = integer_linear(x, weight * step, None, Steps(step, range_groups(step)))
    others, own = [place for place in range(10) if place != 3], step[3:4]
    wide = integer_linear(x[:, [3]], weight[:, [3]] * own, None, Steps(own, range_groups(own)))
    expected = x[:, others].double() @ weight[:, others].double().t()
    error = (
        result.double() - wide.double() - expected
    ).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error < 0.01


def test_scales_are_those_of_the_group():
    weight = torch.tensor([[127.0, 254.0, 1.0, 0.5]])
    step = torch.tensor([1.0, 1.0, 0.1, 0.1])
    scale, codes = stored_form(weight, Steps(step, range_groups(step)))
    expected = torch.ones(NUM_GROUPS, 1)
    expected[0], expected[3] = 2.0, 1 / 127
    assert torch.equal(scale, expected)
    assert codes.tolist() == [[64, 127, 127, 64]]


def test_groups_follow_steps_that_change():
    model, quantisation = attach(build())
    quantiser = next(one for one in quantisation.quantisers.values() if one.step_per_input)
    assert quantiser.steps.groups is quantiser.steps.groups
    with torch.no_grad():
        quantiser.input_step.copy_(torch.arange(1.0, quantiser.num_steps + 1))
    expected = places(quantiser.input_step)
    assert [group.tolist() for group in quantiser.steps.groups] == expected
    again = copy.deepcopy(quantiser)
    assert [group.tolist() for group in again.steps.groups] == expected
    again.load_state_dict({"input_step": torch.ones(quantiser.num_steps)})
    assert [group.tolist() for group in again.steps.groups] == places(torch.ones(quantiser.num_steps))
