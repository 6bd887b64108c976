"""Streaming under what else asks autograd for something."""

from __future__ import annotations

import copy

import pytest
import torch
from streaming_cases import build, draw_inputs, largest_error, results, streamed
from torch.utils.checkpoint import checkpoint

from ds_tft.memory.chunks import StreamingSettings


def gradients(model, loss, **options):
    model.zero_grad(set_to_none=True)
    loss.backward(**options)
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("reentrant", [False, True])
def test_inside_torch_checkpoint_the_masks_are_the_same(reentrant):
    model = streamed(build(dropout=0.3, with_context=True), StreamingSettings(variables_per_chunk=3))
    inputs = draw_inputs(model, 3, 5, with_context=True)
    torch.manual_seed(1)
    expected = gradients(model, model(*inputs)[0].square().sum())
    torch.manual_seed(1)
    mixed, _ = checkpoint(model, *inputs, use_reentrant=reentrant)
    actual = gradients(model, mixed.square().sum())
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=1e-12, atol=1e-13)


def test_backward_twice_gives_the_same_gradients():
    model = streamed(build(dropout=0.3))
    inputs = draw_inputs(model, 3, 5)
    loss = model(*inputs)[0].square().sum()
    first = gradients(model, loss, retain_graph=True)
    second = gradients(model, loss)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_two_forwards_before_backward_do_not_disturb_each_other():
    model = streamed(build(dropout=0.3))
    inputs = draw_inputs(model, 3, 5)
    torch.manual_seed(1)
    first = model(*inputs)[0].square().sum()
    model(*inputs)
    actual = gradients(model, first)
    torch.manual_seed(1)
    expected = gradients(model, model(*inputs)[0].square().sum())
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


def test_gradient_of_the_inputs_only():
    plain = build("both", with_context=True)
    inputs = draw_inputs(plain, 3, 5, with_context=True)
    frozen = copy.deepcopy(plain).requires_grad_(False)
    expected = results(plain, inputs)
    actual = results(streamed(frozen), inputs)
    assert set(actual) == {"mixed", "weights", "gradient of reals", "gradient of context"}
    assert largest_error(actual, {name: expected[name] for name in actual}) < 1e-12


def test_nothing_requires_a_gradient():
    model = streamed(build().requires_grad_(False))
    inputs = draw_inputs(model, 3, 5)
    mixed, weights = model(inputs.reals.detach(), inputs.categories)
    assert not mixed.requires_grad
    assert not weights.requires_grad


def test_no_gradient_for_inputs_that_do_not_want_one():
    model = streamed(build())
    inputs = draw_inputs(model, 3, 5)
    reals = inputs.reals.detach()
    model(reals, inputs.categories)[0].sum().backward()
    assert reals.grad is None
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_inference_mode():
    model = streamed(build(dropout=0.3)).eval()
    inputs = draw_inputs(model, 3, 20)
    expected, _ = model(*inputs)
    with torch.inference_mode():
        actual, _ = model(*inputs)
    torch.testing.assert_close(actual, expected.detach(), rtol=1e-12, atol=1e-13)


def test_a_second_derivative_is_refused():
    model = streamed(build())
    inputs = draw_inputs(model, 3, 5)
    (grad,) = torch.autograd.grad(model(*inputs)[0].square().sum(), inputs.reals, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_every_parameter_gets_its_gradient_once():
    model = streamed(build("both", with_context=True), StreamingSettings(buffer_bytes=4 * 8 * 8))
    inputs = draw_inputs(model, 3, 5, with_context=True)
    arrivals: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _parameter, name=name: arrivals.append(name))
    mixed, weights = model(*inputs)
    (mixed.sum() + weights.square().sum()).backward()
    assert sorted(arrivals) == sorted(name for name, _ in model.named_parameters())


def test_large_gradients_are_handed_over_not_copied():
    model = streamed(build("reals"))
    inputs = draw_inputs(model, 3, 5)
    large = {name for name, parameter in model.named_parameters() if parameter.dim() == 3}
    handed: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if name in large:
            parameter.register_hook(lambda grad, name=name: handed.update({name: grad.data_ptr()}))
    model(*inputs)[0].sum().backward()
    assert len(large) == 3
    assert handed == {name: p.grad.data_ptr() for name, p in model.named_parameters() if name in large}
