"""Tensors as INT8 with a scale per group: how close, and what is exact."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ds_tft.memory import int8_groups
from ds_tft.memory.host_buffers import Layout
from ds_tft.memory.int8_groups import GROUP, LARGEST, dequantise, quantise

every_type = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])


def back(tensor: Tensor) -> Tensor:
    return dequantise(quantise(tensor).groups, Layout.of(tensor))


@every_type
def test_every_value_is_within_half_a_step_of_its_group(dtype):
    torch.manual_seed(0)
    tensor = (torch.randn(50, GROUP) * torch.logspace(-6, 4, 50).unsqueeze(1)).to(dtype)
    error = (back(tensor).double() - tensor.double()).abs()
    step = tensor.double().abs().amax(1, keepdim=True) / LARGEST
    rounding = torch.finfo(dtype).eps * tensor.double().abs()  # of the result, to its own type
    smallest = torch.finfo(dtype).smallest_normal
    assert bool((error <= step * (0.5 + 2**-8) + rounding + smallest).all())


def test_a_group_has_a_scale_of_its_own():
    tensor = torch.ones(2, GROUP)
    tensor[1] = 1e6
    assert torch.equal(back(tensor)[0], back(tensor[:1])[0])
    assert float((back(tensor)[0] - 1).abs().max()) < 1 / LARGEST


def test_it_takes_a_byte_per_value_and_two_per_group():
    assert quantise(torch.randn(4, 7, GROUP)).groups.bytes == 4 * 7 * (GROUP + 2)
    assert quantise(torch.randn(1)).groups.bytes == GROUP + 2


@every_type
def test_zeros_are_exact_alone_and_among_others(dtype):
    tensor = torch.randn(3, GROUP).to(dtype)
    tensor[0] = 0
    tensor[1, ::2] = 0
    result = back(tensor)
    assert not bool(result[tensor == 0].any())
    assert bool(result[1:].any(1).all())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_so_and_spoils_no_other_group(value):
    tensor = torch.randn(3, GROUP)
    tensor[1, 5] = value
    result = back(tensor)
    assert bool(result[1].isnan().all())
    assert torch.equal(result[[0, 2]], back(tensor[[0, 2]]))


@pytest.mark.parametrize("value", [1e-45, 1e-39, 3e38])
def test_the_ends_of_the_range_are_finite(value):
    tensor = torch.full((1, GROUP), value)
    tensor[0, 0] = 0
    result = back(tensor)
    assert bool(result.isfinite().all())
    assert float((result - tensor).abs().max()) <= max(value / LARGEST, 1e-38)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x[:, 2:],
        lambda x: x.transpose(0, 1),
        lambda x: x[:, :, ::2],
        lambda x: x.permute(2, 0, 1)[1:],
        lambda x: x[0, 0, 0],
        lambda x: x[:1, :1, :1],
    ],
)
@every_type
def test_a_tensor_comes_back_as_it_was_laid_out(view, dtype):
    torch.manual_seed(0)
    tensor = view(torch.randn(5, 7, 10).to(dtype))
    result = back(tensor)
    assert (result.shape, result.stride(), result.dtype) == (tensor.shape, tensor.stride(), dtype)
    assert float((result - tensor).norm() / tensor.norm()) < 0.01


def test_a_large_tensor_is_done_in_pieces_with_the_same_result(monkeypatch):
    tensor = torch.randn(10, 41)
    whole = quantise(tensor)
    monkeypatch.setattr(int8_groups, "PIECE", 2 * GROUP)
    pieces = quantise(tensor)
    assert torch.equal(pieces.groups.codes, whole.groups.codes)
    assert torch.equal(pieces.groups.scales, whole.groups.scales)
    torch.testing.assert_close(pieces.squares, whole.squares)


@every_type
def test_the_squares_are_those_of_errors_and_values(dtype):
    tensor = torch.randn(9, 50).to(dtype)
    errors = back(tensor).double() - tensor.double()
    expected = torch.stack([errors.square().sum(), tensor.double().square().sum()]).float()
    torch.testing.assert_close(quantise(tensor).squares, expected, rtol=1e-4, atol=0)


def test_it_repeats_and_draws_no_random_number():
    tensor, numbers = torch.randn(100, 100), torch.get_rng_state()
    assert torch.equal(back(tensor), back(tensor))
    assert torch.equal(torch.get_rng_state(), numbers)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_is_the_same():
    tensor = torch.randn(10, 41)
    on_gpu = quantise(tensor.cuda())
    assert torch.equal(on_gpu.groups.codes.cpu(), quantise(tensor).groups.codes)
    assert torch.equal(dequantise(on_gpu.groups, Layout.of(tensor.cuda())).cpu(), back(tensor))
