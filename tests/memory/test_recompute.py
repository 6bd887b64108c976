"""Recomputing blocks of the model: the same training, less kept."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from recompute_cases import EVERY_BLOCK, MODES, SIZE, assert_same, build, draw, train
from torch import nn

from ds_tft.errors import ConfigError
from ds_tft.memory.meter import KeptForBackward
from ds_tft.memory.recompute import DEFAULT_BLOCKS, attach_recompute, detach_recompute, is_recomputed
from ds_tft.memory.recompute_settings import RecomputeSettings
from ds_tft.memory.streaming import is_streamed, stream_variable_selection
from ds_tft.model.inputs import ModelSize
from ds_tft.model.tft import TemporalFusionTransformer


@pytest.mark.parametrize("lengths", [None, [6, 2, 4, 1]], ids=["whole", "padded"])
@pytest.mark.parametrize("streams", [False, True], ids=["plain", "streaming"])
def test_training_is_bit_equal(streams, lengths):
    model = build(streams=streams)
    expected = train(model, None, lengths=lengths)
    for mode in ("deepspeed", "offload"):
        actual = train(model, MODES[mode], lengths=lengths)
        assert actual.losses == expected.losses
        assert_same(actual.gradients, expected.gradients)
        assert_same(actual.weights, expected.weights)
        assert torch.equal(actual.random_numbers, expected.random_numbers)
        assert actual.report.recomputes() == 5 * len(DEFAULT_BLOCKS)


@pytest.mark.parametrize("mode", ["deepspeed", "offload"])
@pytest.mark.parametrize("streams", [False, True], ids=["plain", "streaming"])
def test_every_block_can_be_recomputed(streams, mode):
    settings = RecomputeSettings(
        blocks=EVERY_BLOCK, offload=MODES[mode].offload, min_bytes=MODES[mode].min_bytes
    )
    model = build(streams=streams)
    expected = train(model, None, steps=2)
    actual = train(model, settings, steps=2)
    assert actual.losses == expected.losses
    assert_same(actual.gradients, expected.gradients)
    assert {name: actual.report.recomputes(name) for name in EVERY_BLOCK} == dict.fromkeys(EVERY_BLOCK, 2)


def test_a_streamed_selection_does_not_run_its_networks_a_third_time(monkeypatch):
    from ds_tft.memory import variable_mix

    model, runs = build(streams=True), []
    original = variable_mix._Run.forward
    monkeypatch.setattr(variable_mix._Run, "forward", lambda run: runs.append(run) or original(run))
    report = attach_recompute(model, RecomputeSettings(blocks=("history_selection",)))
    loss = model(draw()).sum()
    assert len(runs) == 3  # three selections
    loss.backward()
    assert len(runs) == 3
    assert report.recomputes() == 1


def test_a_pass_around_a_streamed_selection_sees_real_values_in_the_second_run():
    def exponential(streamed, *args):
        mixed, weights = streamed(*args)
        return mixed.exp(), weights

    model = build(streams=True)
    model.history_selection.forward = partial(exponential, model.history_selection.forward)
    expected = train(model, None, steps=2)
    actual = train(model, RecomputeSettings(blocks=("history_selection",)), steps=2)
    assert actual.losses == expected.losses
    assert_same(actual.gradients, expected.gradients)


def test_streaming_comes_first():
    model = build()
    attach_recompute(model)
    with pytest.raises(ConfigError, match="other passes that replace it"):
        stream_variable_selection(model)


@pytest.mark.parametrize("mode", MODES)
def test_less_is_kept(mode):
    size = ModelSize(observed_reals=40, known_reals=4, encoder_length=30, hidden_size=32)
    model, inputs = build(streams=True, size=size), draw(size, 16)

    def kept() -> int:
        with KeptForBackward([*model.parameters(), *inputs]) as held:
            loss = model(inputs).sum()
            kept_bytes = held.bytes
        loss.backward()
        return kept_bytes

    before = kept()
    report = attach_recompute(model, MODES[mode])
    assert kept() < before / (10 if MODES[mode].offload else 4)
    assert (report.traffic() is not None) == MODES[mode].offload


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_kept_where_nothing_is_learnt(mode):
    model = build(streams=True)
    report = attach_recompute(model, MODES[mode])
    with KeptForBackward() as kept, torch.no_grad():
        model(draw())
    assert kept.bytes == 0
    model.eval()
    plain = model(draw())
    assert report.recomputes() == 0
    assert all(count.forwards == 0 for count in report.state.counts.values())
    traffic = report.traffic()
    assert traffic is None or (traffic.to_host_bytes, traffic.host_bytes) == (0, 0)
    detach_recompute(model)
    assert torch.equal(model(draw()), plain)


def test_names_stay():
    model = build()
    before = list(model.state_dict()), [name for name, _ in model.named_modules()]
    attach_recompute(model)
    assert (list(model.state_dict()), [name for name, _ in model.named_modules()]) == before
    build(streams=True).load_state_dict(model.state_dict())


def test_copies_count_for_themselves():
    model = build(streams=True)
    report = attach_recompute(model, MODES["offload"])
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert float(twin(draw()).detach().abs().max()) > 0  # not a function of the zeroed parameters
    twin(draw()).sum().backward()
    assert report.recomputes() == 0
    assert report.traffic().to_host_bytes == 0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_detaching_gives_the_forwards_back():
    model = build(streams=True)
    attach_recompute(model, RecomputeSettings(blocks=EVERY_BLOCK))
    assert is_recomputed(model.history_selection)
    assert not is_streamed(model.history_selection)
    detach_recompute(model)
    assert is_streamed(model.history_selection)
    assert "forward" not in vars(model.attention)
    with pytest.raises(ConfigError, match="nothing to undo, got a TemporalFusionTransformer"):
        detach_recompute(model)


def test_a_model_without_static_variables_has_the_default_blocks():
    model = TemporalFusionTransformer(ModelSize(hidden_size=8))
    assert attach_recompute(model).blocks == DEFAULT_BLOCKS


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (("lstm_encodr",), "no such block, got 'lstm_encodr'; did you mean 'lstm_encoder'?"),
        (("static_encoder.hiden",), "did you mean 'static_encoder.hidden'?"),
        (("zzz",), "no such block, got 'zzz'; known: attention, attention_gate, future_selection"),
        (("",), "no such block, got ''; known: attention"),
        (("attention", "lstm_gate", "attention"), "a block is named twice, got 'attention'"),
        (("static_encoder.hidden", "static_encoder"), "got 'static_encoder.hidden' and 'static_encoder'"),
    ],
)
def test_names_are_checked(blocks, message):
    model = build()
    with pytest.raises(ConfigError) as error:
        attach_recompute(model, RecomputeSettings(blocks=blocks))
    assert message in str(error.value)
    assert str(error.value).startswith("ds_tft.recompute: ")
    assert not any(is_recomputed(module) for module in model.modules())


def test_it_is_attached_once():
    model = build()
    attach_recompute(model, RecomputeSettings(blocks=("static_encoder",)))
    with pytest.raises(ConfigError, match="attached already, got 'static_encoder' recomputed"):
        attach_recompute(model, RecomputeSettings(blocks=("static_encoder.hidden",)))


def test_another_model_must_name_its_blocks():
    with pytest.raises(ConfigError, match="none of the blocks recomputed by default, got a Linear"):
        attach_recompute(nn.Linear(2, 2))


def test_the_log_says_what_runs():
    line = attach_recompute(build()).line()
    assert line == f"recompute: {', '.join(DEFAULT_BLOCKS)}; by DeepSpeed's non_reentrant_checkpoint"
    line = attach_recompute(build(), RecomputeSettings(blocks=("attention",), offload=True)).line()
    assert line == (
        "recompute: attention; by torch's non-reentrant checkpoint with offload of this package; "
        "inputs of at least 64.00 KiB are kept in host memory"
    )


def test_a_step_is_counted():
    model = build()
    report = attach_recompute(model, MODES["offload"])
    model(draw()).sum().backward()
    report.check_effect()
    moved = report.traffic()
    assert report.step_line().startswith(
        f"recompute: 7 blocks ran again; {moved.to_host_bytes / 1024:.2f} KiB"
    )
    scalars = report.scalars()
    assert scalars["recompute/blocks_run_again"] == 7
    assert scalars["recompute/moved_to_host_mib"] == scalars["recompute/moved_to_device_mib"] > 0
    report.reset()
    assert report.scalars()["recompute/blocks_run_again"] == 0
    assert report.traffic().to_host_bytes == 0
    assert report.traffic().host_bytes == moved.host_bytes


def test_a_block_that_never_runs_is_an_error():
    model = build(streams=True)
    report = attach_recompute(model, RecomputeSettings(blocks=("attention", "known_embedding")))
    model(draw()).sum().backward()
    with pytest.raises(ConfigError, match="'known_embedding' was not run again in backward, got 0 forwards"):
        report.check_effect()


def test_offload_that_moves_nothing_is_an_error():
    model = build()
    report = attach_recompute(model, RecomputeSettings(offload=True, min_bytes=2**20))
    model(draw()).sum().backward()
    largest = 4 * (SIZE.encoder_length + SIZE.horizon) * SIZE.hidden_size * 4  # floats of the whole window
    with pytest.raises(ConfigError) as error:
        report.check_effect()
    assert f"got inputs of up to {largest / 1024:.3f} KiB, and what is below 1.000 MiB" in str(error.value)


def test_time_is_measured_by_block():
    model = build()
    report = attach_recompute(model, RecomputeSettings(blocks=("attention", "lstm_gate"), profile=True))
    model(draw()).sum().backward()
    counts = report.state.counts["attention"]
    assert counts.forward_seconds > 0
    assert counts.recompute_seconds > 0
    lines = report.profile_lines()
    assert len(lines) == 2
    assert "in 1 runs, again" in lines[0]
    assert not attach_recompute(build()).profile_lines()
