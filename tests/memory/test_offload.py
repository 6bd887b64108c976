"""What moves to host memory, how much of it, and that it goes again."""

from __future__ import annotations

import copy
import gc
from contextlib import suppress
from unittest.mock import MagicMock

import pytest
import torch
from recompute_cases import MODES, Block, Owner, attach_block, build, draw
from torch import Tensor, nn

from ds_tft.memory import host_buffers
from ds_tft.memory.host_buffers import CudaCopies, Fetch, HostBuffers, Layout, copies_for
from ds_tft.memory.input_store import MIN_BYTES
from ds_tft.memory.offload import HostOffload
from ds_tft.memory.recompute import attach_recompute
from ds_tft.memory.recompute_settings import RecomputeSettings

CPU = torch.device("cpu")


def live_tensors() -> list[Tensor]:
    """All that the garbage collector knows; it must not be asked by isinstance, which reads attributes."""
    return [each for each in gc.get_objects() if issubclass(type(each), Tensor)]


def offloading(*blocks: nn.Module, min_bytes: int = 1) -> tuple[nn.Sequential, object]:
    model = nn.Sequential(*blocks).train()
    names = tuple(str(number) for number in range(len(blocks)))
    settings = RecomputeSettings(blocks=names, offload=True, min_bytes=min_bytes)
    return model, attach_recompute(model, settings)


def test_the_inputs_of_blocks_are_moved_and_nothing_else():
    model, report = offloading(Block(), Block(), Block())
    loss = model(torch.ones(4, 8)).sum()
    moved = report.traffic()
    assert moved.tensors == 3
    assert moved.to_host_bytes == moved.held_bytes == moved.host_bytes == 3 * 4 * 8 * 4
    assert moved.to_device_bytes == 0
    loss.backward()
    gc.collect()  # torch imports part of itself in the first backward of all, and leaves a cycle
    moved = report.traffic()
    assert moved.to_device_bytes == moved.to_host_bytes
    assert moved.held_bytes == 0


def test_what_is_moved_is_not_on_the_device_meanwhile():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.scale).exp()

    model, _ = offloading(Scaled(), Scaled())
    first = torch.full((1003,), 0.5, requires_grad=True)
    loss = model(first.clone()).sum()
    gc.collect()
    sizes = [each.untyped_storage().nbytes() for each in live_tensors() if each is not first]
    assert sizes.count(4 * 1003) == 2  # the two host buffers, and no input beside them
    loss.backward()
    torch.testing.assert_close(first.grad, (first.exp().exp() * first.exp()).detach())


def test_parameters_integers_masks_and_small_tensors_stay():
    offload = HostOffload(CPU)
    large = torch.zeros(MIN_BYTES // 4)
    assert offload.wants(large)
    assert offload.wants(large[:1])  # it keeps all of it alive
    assert not offload.wants(torch.zeros(MIN_BYTES // 4 - 1))
    assert not offload.wants(large.bool())
    assert not offload.wants(large.long())
    assert not offload.wants(large[:1].expand(MIN_BYTES))
    assert not offload.wants(large[:0])
    assert not offload.wants(torch.zeros(MIN_BYTES, device="meta"))
    assert offload.largest_seen == MIN_BYTES


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x[:, 2:],
        lambda x: x.transpose(0, 1),
        lambda x: x[:, :, ::2],
        lambda x: x.permute(2, 0, 1)[1:],
        lambda x: x[0, 0, 0],
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_tensor_comes_back_as_it_was(view, dtype):
    offload = HostOffload(CPU, min_bytes=1)
    tensor = view(torch.randn(3, 4, 6).to(dtype))
    assert offload.wants(tensor)
    hooks = offload.hooks()
    moved = hooks.pack_hook(tensor)
    expected = tensor.clone()
    tensor.zero_()
    back = hooks.unpack_hook(moved)
    assert torch.equal(back, expected)
    assert (back.stride(), back.dtype, back.device) == (tensor.stride(), tensor.dtype, tensor.device)
    assert offload.traffic.to_host_bytes == tensor.numel() * dtype.itemsize


def test_the_group_before_is_fetched_ahead():
    offload = HostOffload(CPU, min_bytes=1)
    groups = []
    for number in range(3):
        hooks = offload.hooks()
        groups.append([hooks.pack_hook(torch.full((4,), float(number))) for _ in range(2)])
    assert offload.traffic.to_device_bytes == 0
    unpack = offload.hooks().unpack_hook
    assert float(unpack(groups[2][0])[0]) == 2.0
    assert [each.fetch is not None for group in groups for each in group] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    unpack(groups[2][1])
    assert offload.traffic.to_device_bytes == 4 * 16
    assert float(unpack(groups[1][1])[0]) == 1.0
    assert [each.fetch is not None for group in groups for each in group] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    for moved in (groups[1][0], *groups[0]):
        unpack(moved)
    assert offload.traffic.to_device_bytes == offload.traffic.to_host_bytes == 6 * 16
    assert not any(each.fetch for group in groups for each in group)


def test_host_memory_is_flat_over_steps():
    model = build(streams=True)
    report = attach_recompute(model, MODES["offload"])
    seen = []
    for batch in (4, 4, 3, 4, 1, 4):
        report.reset()
        model(draw(batch=batch)).sum().backward()
        seen.append((report.traffic().host_bytes, report.traffic().held_bytes))
    assert seen == [seen[0]] * len(seen)
    assert seen[0][0] > 0 == seen[0][1]


def test_buffers_come_back_where_no_backward_follows():
    model, report = offloading(Block(), Block())

    def step(*, fails: bool) -> None:
        loss = model(torch.ones(4, 8)).sum()
        assert report.traffic().held_bytes == 2 * 128
        if fails:
            raise ZeroDivisionError
        del loss

    for fails in (False, True, True):
        with suppress(ZeroDivisionError):
            step(fails=fails)
        gc.collect()
        assert report.traffic().held_bytes == 0
    assert report.traffic().host_bytes == 2 * 128


def test_buffers_come_back_when_backward_fails():
    model, report = offloading(Block(), Block())

    def step() -> None:
        loss = model(torch.ones(4, 8)).sum()
        loss.register_hook(lambda _: 1 / 0)
        loss.backward()

    with pytest.raises(ZeroDivisionError):
        step()
    gc.collect()
    assert report.traffic().held_bytes == 0
    model(torch.ones(4, 8)).sum().backward()
    assert report.traffic().host_bytes == 2 * 128


def test_evaluation_moves_nothing_and_leaves_nothing():
    model = build(streams=True)
    report = attach_recompute(model, MODES["offload"])
    model.eval()
    model(draw())
    gc.collect()
    before = len(live_tensors())
    with torch.no_grad():
        for _ in range(50):
            model(draw())
    gc.collect()
    assert len(live_tensors()) == before
    assert (report.traffic().to_host_bytes, report.traffic().host_bytes) == (0, 0)


def test_gradients_accumulate_over_two_forwards():
    torch.manual_seed(0)
    plain = Block()
    owner, report = attach_block(copy.deepcopy(plain), "offload")
    assert isinstance(owner, Owner)
    for module in (plain, owner):
        torch.manual_seed(3)
        first, second = module(torch.ones(4, 8)).sum(), module(torch.ones(2, 8)).square().sum()
        first.backward()  # not in the order of reversal
        second.backward()
    for one, other in zip(owner.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    assert report.traffic().to_device_bytes == report.traffic().to_host_bytes == (4 + 2) * 8 * 4


def test_the_smallest_buffer_that_fits_is_lent():
    buffers = HostBuffers(pinned=False)
    small, large = buffers.take(10), buffers.take(100)
    assert (buffers.bytes, buffers.lent_bytes) == (110, 110)
    buffers.give_back(small)
    buffers.give_back(large)
    assert buffers.take(5) is small
    assert buffers.take(5) is large
    tiny = buffers.take(5)
    buffers.give_back(tiny)
    buffers.give_back(small)
    assert len(buffers.take(50)) == 50  # in place of the larger one of the two
    assert (buffers.bytes, buffers.lent_bytes) == (155, 150)
    assert buffers.take(1) is tiny


def test_page_locked_buffers_are_powers_of_two(monkeypatch):
    asked = []

    def empty(size: int, *, dtype: torch.dtype, pin_memory: bool) -> Tensor:
        asked.append((size, pin_memory))
        return torch.zeros(size, dtype=dtype)

    monkeypatch.setattr(host_buffers.torch, "empty", empty)
    buffers = HostBuffers(pinned=True)
    buffers.take(100)
    buffers.take(128)
    buffers.take(129)
    assert asked == [(128, True), (128, True), (256, True)]
    assert buffers.bytes == 512


@pytest.fixture
def cuda(monkeypatch):
    """torch.cuda with every call noted, and tensors that are mocks."""
    calls = MagicMock()
    monkeypatch.setattr(host_buffers.torch.cuda, "Stream", calls.Stream)
    monkeypatch.setattr(host_buffers.torch.cuda, "stream", calls.stream)
    monkeypatch.setattr(host_buffers.torch.cuda, "current_stream", calls.current_stream)
    return calls


def names(calls: MagicMock) -> list[str]:
    return [call[0] for call in calls.mock_calls]


def test_on_cuda_a_copy_waits_for_the_kernels_before_it_and_holds_the_memory(cuda):
    copies = copies_for(torch.device("cuda", 0))
    assert isinstance(copies, CudaCopies)
    side = cuda.Stream.return_value
    copies.to_host(cuda.tensor, cuda.target)
    side.wait_stream.assert_called_once_with(cuda.current_stream.return_value)
    cuda.target.copy_.assert_called_once_with(cuda.tensor, non_blocking=True)
    cuda.tensor.record_stream.assert_called_once_with(side)
    order = names(cuda)
    expected = ["Stream().wait_stream", "stream().__enter__", "target.copy_", "stream().__exit__"]
    assert [name for name in order if name in expected] == expected


def test_on_cuda_what_follows_waits_for_the_copy_back(cuda):
    copies = CudaCopies(torch.device("cuda", 0))
    side = cuda.Stream.return_value
    fetch = copies.start(cuda.source, cuda.layout)
    side.wait_stream.assert_called_once_with(cuda.current_stream.return_value)
    tensor = cuda.layout.empty.return_value
    tensor.copy_.assert_called_once_with(cuda.source, non_blocking=True)
    tensor.record_stream.assert_called_once_with(side)
    assert fetch == Fetch(tensor, side.record_event.return_value)
    current = cuda.current_stream.return_value
    current.wait_event.assert_not_called()
    assert copies.finish(fetch) is tensor
    current.wait_event.assert_called_once_with(fetch.done)


def test_a_layout_reads_a_part_of_a_larger_buffer():
    tensor = torch.randn(3, 5).t()
    layout = Layout.of(tensor)
    buffer = torch.zeros(100, dtype=torch.uint8)
    layout.on_host(buffer).copy_(tensor)
    assert torch.equal(layout.on_host(buffer), tensor)
    assert not buffer[60:].any()
