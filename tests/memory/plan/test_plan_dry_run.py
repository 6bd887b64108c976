"""Operations that allocate and do not compute, and the bytes of what lives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ds_tft.memory.plan.dry_run import FEW, DryRun
from ds_tft.memory.plan.live_bytes import LiveBytes

BYTES = 4 * 1000


@pytest.fixture
def live() -> LiveBytes:
    return LiveBytes()


def test_bytes_count_while_a_storage_lives(live):
    with DryRun(live):
        first = torch.empty(1000)
        view = first[10:].view(-1, 2)
        assert live.now == BYTES
        second = first + first
        assert live.now == 2 * BYTES
        del first
        assert live.now == 2 * BYTES, "the view keeps it"
        del view, second
    assert live.now == 0


def test_the_peak_belongs_to_its_phase(live):
    with DryRun(live):
        kept = torch.empty(1000)
        with live.phase("one"):
            torch.empty(1000)
        with live.phase("two"):
            pass
    del kept
    assert live.peaks == {"one": 2 * BYTES, "two": BYTES}
    assert live.peak == 2 * BYTES


def test_blocks_round_each_storage_up():
    live = LiveBytes(block=512)
    with DryRun(live):
        kept = [torch.empty(1), torch.empty(129)]
    assert live.now == 512 + 1024
    del kept


def test_nothing_is_computed_and_shapes_are_right(live):
    with DryRun(live):
        values = torch.zeros(100, 30)
        values.add_(1.0)
        product = values @ torch.zeros(30, 50)
        top = product.half().topk(3, dim=-1)
    assert float(values.sum()) == 0
    assert product.shape == (100, 50)
    assert (top.values.shape, top.values.dtype) == ((100, 3), torch.float16)


def test_what_decides_is_computed(live):
    with DryRun(live):
        lengths = torch.full((1000,), 7)
        assert bool((lengths == 7).all())
        assert float(torch.ones(FEW).sum()) == FEW
        assert float(torch.ones(1000).sum()) == 0, "of many values there is none: a zero, that means nothing"


def test_gradients_take_memory_as_in_training(live):
    with DryRun(live):
        model = nn.Linear(100, 200)
        before = live.now
        model(torch.empty(5, 100)).sum().backward()
        assert live.now - before == before, "as many gradients as weights"
        assert model.weight.grad is not None


def test_tensors_without_memory_do_not_count(live):
    with DryRun(live):
        shape_only = torch.zeros_like(torch.empty(1000), device="meta")
    assert shape_only.is_meta
    assert live.now == 0


def test_what_a_library_needs_in_between_counts(live):
    lstm = nn.LSTM(32, 32, batch_first=True)
    with DryRun(live), live.phase("forward"):
        output, _ = lstm(torch.empty(16, 20, 32))
    assert live.peak > live.now > 2 * output.nbytes


def test_a_trial_finds_copies_of_mixed_types():
    """A product of bfloat16 and float32 copies what is not in float32."""
    peaks = {}
    for trial_bytes in (0, 2**20):
        live = LiveBytes()
        with DryRun(live, trial_bytes), live.phase("all"):
            out = torch.empty(1000)
            torch.mul(out, torch.empty(1000, dtype=torch.bfloat16), out=out)
        peaks[trial_bytes] = live.peak
    assert peaks[2**20] >= peaks[0] + BYTES
