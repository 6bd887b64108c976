"""What a trace shows: bytes counted by hand, and those of the other meters."""

from __future__ import annotations

import pytest
import torch
from recompute_cases import build, draw
from torch import nn
from trace_cases import CPU, FLOAT, Chain, block, engine_of, record, update

from ds_tft.memory.meter import MIB, kept_for_backward
from ds_tft.memory.peak import peak_live_bytes
from ds_tft.memory.recompute import attach_recompute
from ds_tft.memory.recompute_settings import RecomputeSettings
from ds_tft.memory.trace.timeline import BACKWARD, FORWARD, OPTIMIZER, Place

VALUES = 1000
SIZE = VALUES * FLOAT
SMALL, LARGE = 500 * FLOAT, 20_000 * FLOAT


@pytest.fixture
def one_thread():
    """With more of them, a peak depends by some bytes on which is first."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def chain_trace(num_batches=1):
    """An update of the chain; the optimizer's state is there already."""
    engine = engine_of(Chain(VALUES))
    batches = [torch.ones(VALUES)] * num_batches
    record(engine, batches)
    return record(engine, batches)


def test_kept_is_that_of_each_block():
    trace = chain_trace()
    assert [(each.name, each.kept) for each in trace.blocks] == [
        ("small", SIZE),
        ("large", SIZE),
        ("other", SIZE),  # the model's output, of which the loss takes the square
    ]
    assert trace.kept == 3 * SIZE


def test_of_several_micro_batches_the_most_is_kept():
    assert chain_trace(3).kept == 3 * SIZE


def test_workspace_of_a_block_is_what_it_needs_in_between():
    """`large` is given and leaves one tensor, and keeps another."""
    large = block(chain_trace(), "large")
    assert large.forward.workspace == LARGE - 2 * SIZE
    assert large.backward.workspace == 2 * LARGE
    small = block(chain_trace(), "small")
    assert small.forward.workspace < 100  # less than what it leaves


def test_peaks_are_those_above_the_start():
    trace = chain_trace()
    in_large = 2 * SIZE  # what small keeps and returns
    assert block(trace, "large").forward.peak == trace.phases[FORWARD].peak == in_large + LARGE
    scalar = FLOAT
    before = 3 * SIZE + 2 * scalar  # kept by both and the loss; the loss and its gradient
    assert trace.phases[BACKWARD].peak == trace.timeline.peak == before + 2 * LARGE
    place = trace.peak_stretch.place
    assert place == Place(BACKWARD, "large")


def test_states_are_those_with_gradients():
    trace = chain_trace()
    assert trace.states.parameters == trace.states.gradients == trace.states.optimizer == SIZE
    assert trace.live_before == 2 * SIZE  # gradients are let go of between updates
    assert trace.peak_live == trace.live_before + trace.timeline.peak
    assert trace.peak_beyond_states == trace.peak_live - 3 * SIZE


def test_a_micro_batch_starts_from_the_gradients_of_the_one_before():
    one, two = chain_trace(1), chain_trace(2)
    assert two.phases[FORWARD].peak - one.phases[FORWARD].peak == SIZE + FLOAT  # and the earlier loss


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("streams", [False, True])
def test_figures_are_those_of_the_other_meters(one_thread, streams, recomputes):
    model = build(streams=streams)
    if recomputes:
        attach_recompute(model)
    engine = engine_of(model)
    batches = [draw(seed=1), draw(seed=2)]

    def phases(_name):
        return torch.enable_grad()

    for _ in range(2):
        update(engine, batches, phases)
    trace = record(engine, batches)
    expected_peak = peak_live_bytes(lambda: update(engine, batches, phases), CPU)
    kept = kept_for_backward(lambda: model(batches[0]).square().mean(), [*model.parameters(), *batches[0]])
    assert trace.timeline.peak == expected_peak
    assert trace.kept == kept


def test_memory_of_streaming_threads_is_in_the_trace(one_thread):
    """With two threads there are the buffers of two chunks."""

    def peak(threads):
        torch.set_num_threads(threads)
        engine = engine_of(build(streams=True))
        record(engine, [draw()])
        return record(engine, [draw()]).timeline.peak

    assert peak(2) > peak(1) + 4 * 6 * 16 * FLOAT  # a buffer for one variable


@pytest.mark.parametrize("streams", [False, True])
def test_parts_agree_with_the_whole(streams):
    model = build(streams=streams)
    attach_recompute(model)
    trace = record(engine_of(model), [draw(seed=1), draw(seed=2)])
    assert set(trace.phases) == {FORWARD, BACKWARD, OPTIMIZER}
    assert max(use.peak for use in trace.phases.values()) == trace.timeline.peak
    assert sum(each.kept for each in trace.blocks) == trace.kept
    for phase, uses in (
        (FORWARD, [each.forward for each in trace.blocks]),
        (BACKWARD, [each.backward for each in trace.blocks]),
    ):
        assert max(use.peak for use in uses if use) == trace.phases[phase].peak
        assert sum(use.seconds for use in uses if use) == pytest.approx(trace.phases[phase].seconds)
    assert trace.timeline.live[-1] == trace.timeline.stretches[-1].exit


def test_every_block_that_runs_is_there_forward_and_backward():
    """Also those that run again in backward."""
    model = build(streams=True)
    attach_recompute(model)
    trace = record(engine_of(model), [draw()])
    used = {each.name for each in trace.blocks if each.forward and each.backward}
    embeddings = {"static_embedding", "observed_embedding", "known_embedding"}  # only their weights are
    assert used == {name for name, _ in model.named_children()} - embeddings | {"other"}


def test_an_embedding_within_a_selection_counts_as_the_selection():
    trace = record(engine_of(build()), [draw()])
    assert not [each.name for each in trace.blocks if each.name.endswith("embedding")]


def test_recomputing_lowers_what_its_blocks_keep_and_no_other():
    def kept(blocks):
        model = build()
        if blocks:
            attach_recompute(model, RecomputeSettings(blocks=blocks))
        return {each.name: each.kept for each in record(engine_of(model), [draw()]).blocks}

    plain, recomputed = kept(None), kept(("history_selection", "attention"))
    assert recomputed["history_selection"] < plain["history_selection"] / 4
    assert recomputed["attention"] < plain["attention"]
    others = plain.keys() - {"history_selection", "attention"}
    assert all(recomputed[name] <= plain[name] + 4 * 9 * 16 * FLOAT for name in others)


def test_what_a_block_recomputes_in_backward_is_its_own():
    """Recomputed, the layer's activations are made in backward, in the block's own time."""

    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.narrow = nn.Linear(8, 8)
            self.wide = nn.Sequential(nn.Linear(8, 400), nn.Tanh(), nn.Linear(400, 8))

        def forward(self, x):
            return self.wide(self.narrow(x))

    def trace(recompute):
        model = Layers()
        if recompute:
            attach_recompute(model, RecomputeSettings(blocks=("wide",)))
        return record(engine_of(model), [torch.ones(400, 8)])

    activations = 400 * 400 * FLOAT
    plain, recomputed = trace(False), trace(True)
    assert block(plain, "wide").kept - block(recomputed, "wide").kept >= activations
    more = block(recomputed, "wide").backward.workspace - block(plain, "wide").backward.workspace
    assert 0.9 * activations <= more <= 3 * activations
    assert block(recomputed, "narrow").backward.workspace < activations / 10


def test_no_hook_stays():
    model = Chain()
    before = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    record(engine_of(model), [torch.ones(VALUES)])
    after = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    assert before == after == [0, 0, 0]


def test_tags_carry_units_and_say_the_same():
    trace = chain_trace()
    scalars = trace.scalars()
    assert all(tag.endswith("_mib") for tag in scalars)
    assert scalars["trace/peak_live_mib"] == trace.peak_live / MIB
    assert scalars["trace/kept_for_backward_mib"] == 3 * SIZE / MIB
    assert scalars["trace/backward_workspace_mib"] == trace.phases[BACKWARD].workspace / MIB
    assert scalars["trace_blocks/large_backward_workspace_mib"] == 2 * LARGE / MIB
    recorded = trace.record()
    assert recorded["peak_block"] == "large"
    assert recorded["blocks"]["large"]["kept_mib"] == SIZE / MIB
    assert recorded["phases"][FORWARD]["peak_live_mib"] == scalars["trace/forward_peak_live_mib"]


def test_the_line_for_the_log_says_the_most_important():
    assert chain_trace().line() == (
        "memory of step 1: peak live 175.8 KiB (forward 93.75 KiB, backward 175.8 KiB, optimizer 11.73 KiB), "
        "of it states 11.72 KiB; kept for backward 11.72 KiB"
    )
