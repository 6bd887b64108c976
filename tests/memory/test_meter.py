from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ds_tft.memory.meter import (
    MIB,
    CudaPeaks,
    KeptForBackward,
    MemoryMeter,
    kept_for_backward,
    optimizer_tensors,
    state_bytes,
    tensor_bytes,
)

FLOAT = 4
SLACK = 4 * MIB  # the system updates its figures now and then


def test_host_memory_follows_an_allocation_and_its_peak_stays():
    meter = MemoryMeter(torch.device("cpu"))
    before = meter.read()
    block = torch.ones(64 * MIB // FLOAT)
    during = meter.read()
    del block
    after = meter.read()
    assert during.host_rss - before.host_rss > 60 * MIB
    assert during.host_rss - after.host_rss > 60 * MIB
    assert after.host_rss_peak > during.host_rss - SLACK
    assert before.cuda is None


def test_cuda_figures_are_read_by_name(monkeypatch):
    for index, name in enumerate(
        ["memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"]
    ):
        monkeypatch.setattr(torch.cuda, name, lambda _device, index=index: 10 + index)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (30, 100))
    cuda = MemoryMeter(torch.device("cuda", 0)).read().cuda
    assert (cuda.allocated, cuda.allocated_peak, cuda.reserved, cuda.reserved_peak) == (10, 11, 12, 13)
    assert (cuda.used, cuda.total) == (70, 100)


def test_cuda_peaks_start_anew_and_the_highest_is_remembered(monkeypatch):
    device, peaks, resets = torch.device("cuda", 0), {"allocated": 0, "reserved": 0}, []
    for name, figure in (("memory_allocated", 1), ("memory_reserved", 2)):
        monkeypatch.setattr(torch.cuda, name, lambda _device, figure=figure: figure)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _device: peaks["allocated"])
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _device: peaks["reserved"])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (30, 100))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", resets.append)
    meter = MemoryMeter(device)
    peaks.update(allocated=50, reserved=60)
    assert meter.restart_peaks() == CudaPeaks(allocated=50, reserved=60)
    assert resets == [device]
    peaks.update(allocated=20, reserved=70)
    cuda = meter.read().cuda
    assert (cuda.allocated_peak, cuda.reserved_peak) == (50, 70)
    assert meter.restart_peaks() == CudaPeaks(allocated=20, reserved=70)


def test_without_cuda_no_peaks_start_anew(monkeypatch):
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _device: pytest.fail("called"))
    assert MemoryMeter(torch.device("cpu")).restart_peaks() is None


def test_states_count_every_storage_once():
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    model.append(nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    parameters = (64 + 16 + 2) * FLOAT
    assert state_bytes(model.parameters(), optimizer_tensors(optimizer)).total == parameters
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    states = state_bytes([*model.parameters(), model[1].weight], optimizer_tensors(optimizer))
    assert states.parameters == parameters
    assert states.gradients == parameters
    assert (
        states.optimizer == 2 * parameters + 3 * FLOAT
    )  # two moments, and a step count for each of 3 tensors
    assert states.total == 4 * parameters + 3 * FLOAT


def test_gradients_elsewhere_are_counted_instead():
    weight = nn.Parameter(torch.ones(4))
    assert state_bytes([weight], [], gradients=[torch.ones(10)]).gradients == 40


def test_views_share_a_storage():
    flat = torch.zeros(100)
    assert tensor_bytes([flat[:10], flat[10:], flat.view(10, 10).T]) == 400
    assert tensor_bytes([]) == 0


def test_kept_bytes_are_those_of_distinct_storages():
    x = torch.ones(16, 8)
    layer = nn.Linear(8, 4)
    excluded = [*layer.parameters(), x]

    def forward():
        hidden = torch.tanh(layer(x))  # keeps its output, 16 x 4
        return (hidden * hidden.T.contiguous().T).sum()  # keeps both factors: one more storage

    assert kept_for_backward(forward, excluded) == 2 * 16 * 4 * FLOAT
    assert kept_for_backward(forward, layer.parameters()) == (2 * 16 * 4 + 16 * 8) * FLOAT


def test_weights_are_excluded_also_as_views():
    weight = nn.Parameter(torch.randn(8, 8))
    x = torch.randn(4, 8, requires_grad=True)
    assert kept_for_backward(lambda: (x @ weight.T).sum(), [weight, x]) == 0


def test_a_graph_that_is_gone_keeps_nothing():
    x = torch.ones(1000, requires_grad=True)
    with KeptForBackward([x]) as kept:
        loss = x.exp().sum()
        assert kept.bytes == 4000
        x.exp().sum()  # dropped at once
        with torch.no_grad():
            x.exp()
        assert kept.bytes == 4000
    x.exp()
    assert kept.bytes == 4000
    del loss
    assert kept.bytes == 0


def test_what_is_kept_belongs_to_the_first_that_saves_it():
    x = torch.ones(1000, requires_grad=True)
    running = ["first"]
    with KeptForBackward([x], lambda: running[0]) as kept:
        y = x.exp()  # keeps its result
        running[0] = "second"
        z = (y * y).exp().sum()  # keeps the same again, and one more
    assert kept.bytes_by_label == {"first": 4000, "second": 4000}
    assert kept.bytes == 8000
    kept.exclude([y])
    assert kept.bytes_by_label == {"second": 4000}
    del z


def test_gradients_are_unchanged_by_measuring():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Sigmoid(), nn.LayerNorm(5), nn.Linear(5, 1))
    x = torch.randn(3, 6)
    model(x).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with KeptForBackward():
        loss = model(x).sum()
    loss.backward()
    assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))


def test_second_derivatives_are_unchanged_by_measuring():
    x = torch.tensor([0.3, 0.7], requires_grad=True)
    with KeptForBackward():
        y = (x.exp() * x).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, (x.exp() * (x + 2)).detach())


def test_checkpointing_keeps_only_its_input():
    block = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
    x = torch.randn(64, 32)
    excluded = list(block.parameters())
    plain = kept_for_backward(lambda: block(x).sum(), excluded)
    recomputed = kept_for_backward(lambda: checkpoint(block, x, use_reentrant=False).sum(), excluded)
    assert plain == 3 * 64 * 32 * FLOAT
    assert recomputed == 64 * 32 * FLOAT
