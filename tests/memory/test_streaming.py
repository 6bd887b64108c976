"""The pass itself: what it attaches to, what it refuses, what it leaves alone."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from streaming_cases import build, draw_inputs, results
from torch import nn

from ds_tft.errors import ConfigError
from ds_tft.formatting import format_bytes
from ds_tft.memory.chunks import BUFFERS, MIB, StreamingSettings
from ds_tft.memory.streaming import is_streamed, stream_variable_selection, unstream
from ds_tft.model.inputs import ModelSize
from ds_tft.model.tft import TemporalFusionTransformer

SIZE = ModelSize(static_reals=2, observed_reals=5, known_reals=2, hidden_size=8, num_heads=2)


def test_every_selection_of_the_model_streams():
    model = TemporalFusionTransformer(SIZE)
    report = stream_variable_selection(model)
    assert [(each.name, each.num_variables) for each in report.selections] == [
        ("static_selection", 2),
        ("history_selection", 7),
        ("future_selection", 2),
    ]
    assert is_streamed(model.history_selection)
    unstream(model)
    assert not is_streamed(model.history_selection)


def test_names_and_parameters_stay_and_checkpoints_load_either_way():
    plain, streaming = TemporalFusionTransformer(SIZE), TemporalFusionTransformer(SIZE)
    names = [name for name, _ in streaming.named_parameters()]
    identities = [id(parameter) for parameter in streaming.parameters()]
    modules = [name for name, _ in streaming.named_modules()]
    stream_variable_selection(streaming)
    assert [name for name, _ in streaming.named_parameters()] == names
    assert [id(parameter) for parameter in streaming.parameters()] == identities
    assert [name for name, _ in streaming.named_modules()] == modules
    assert streaming.state_dict().keys() == plain.state_dict().keys()
    plain.load_state_dict(streaming.state_dict())
    streaming.load_state_dict(TemporalFusionTransformer(SIZE).state_dict())
    with pytest.raises(AssertionError):
        torch.testing.assert_close(plain.state_dict(), streaming.state_dict())


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_streams_with_its_own_parameters(duplicate):
    model = build("both")
    stream_variable_selection(model)
    twin = duplicate(model)
    inputs = draw_inputs(model, 3, 5)
    before = results(twin, inputs)
    assert torch.equal(before["mixed"], results(model, inputs)["mixed"])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(results(twin, inputs)["mixed"], before["mixed"])


def test_parameters_changed_in_place_count_in_the_next_evaluation():
    model = build("both").eval()
    stream_variable_selection(model)
    inputs = draw_inputs(model, 3, 20)
    with torch.no_grad():
        before, _ = model(*inputs)
        for parameter in model.parameters():
            parameter.mul_(1.1)
        after, _ = model(*inputs)
    unstream(model)
    with torch.no_grad():
        expected, _ = model(*inputs)
    assert (after - before).abs().max() > 1e-3
    torch.testing.assert_close(after, expected)


def test_the_line_for_the_log_says_what_streams_and_how_large_the_chunks_are():
    line = stream_variable_selection(
        TemporalFusionTransformer(SIZE), StreamingSettings(buffer_bytes=2 * MIB)
    ).line()
    workspace = format_bytes(torch.get_num_threads() * BUFFERS * 2 * MIB)
    assert line == (
        "streaming variable selection: static_selection (2 variables), history_selection (7 variables), "
        f"future_selection (2 variables); buffers of 2.000 MiB, workspace up to {workspace}"
    )
    line = stream_variable_selection(
        TemporalFusionTransformer(SIZE), StreamingSettings(variables_per_chunk=3)
    ).line()
    assert line.endswith("; 3 variables at a time")


def test_the_report_gives_chunk_and_workspace_of_a_batch():
    report = stream_variable_selection(
        TemporalFusionTransformer(SIZE), StreamingSettings(buffer_bytes=4 * 100 * 8 * 4)
    )
    history = report.selections[1]
    assert history.chunk_size(100) == (4, 100)  # 7 variables as 4 + 3
    chunk_bytes = BUFFERS * 4 * 100 * 8 * 4
    assert history.workspace_bytes(100) == min(2, torch.get_num_threads()) * chunk_bytes
    assert history.chunk_size(900) == (1, 300)


def test_settings_follow_the_device_of_the_run():
    model = TemporalFusionTransformer(SIZE)
    report = stream_variable_selection(model, device=torch.device("cuda"))
    assert "buffers of 16.00 MiB" in report.line()


def test_streaming_twice_is_refused():
    model = TemporalFusionTransformer(SIZE)
    stream_variable_selection(model)
    with pytest.raises(ConfigError, match="streaming: the forward of 'static_selection' must be its own"):
        stream_variable_selection(model)


def test_a_refused_model_is_left_as_it_was():
    model = TemporalFusionTransformer(SIZE)
    model.future_selection.forward = model.future_selection.forward
    with pytest.raises(ConfigError, match="'future_selection'"):
        stream_variable_selection(model)
    assert not is_streamed(model.history_selection)


def test_a_model_without_variable_selection_is_refused():
    with pytest.raises(ConfigError, match="no variable selection to stream, got a Linear; leave it off"):
        stream_variable_selection(nn.Linear(2, 2))


def test_undoing_what_was_not_done_is_refused():
    with pytest.raises(ConfigError, match="nothing to undo, got a TemporalFusionTransformer"):
        unstream(TemporalFusionTransformer(SIZE))


@pytest.mark.parametrize("name", ["buffer_bytes", "variables_per_chunk"])
def test_chunks_of_nothing_are_refused(name):
    with pytest.raises(ConfigError, match=f"streaming.{name}: must be at least 1, got 0; leave it out"):
        StreamingSettings(**{name: 0})


def test_two_ways_to_fix_the_chunks_are_refused():
    with pytest.raises(ConfigError, match=r"buffer_bytes \(8\) and variables_per_chunk \(2\) both fix"):
        StreamingSettings(buffer_bytes=8, variables_per_chunk=2)
