"""The comparison refuses files that are written with a mistake, each of a kind that is easily made."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx_cases import EVERYTHING, compared, floating, int8

from ds_tft.errors import ConfigError
from ds_tft.onnx_export import arithmetic, layers, network, recurrent, selection
from ds_tft.onnx_export.graph import Graph

FORMS = {"fp32": floating, "INT8": int8}


def refused(form, folder):
    """Writes a model and checks that the file is refused; returns what was found."""
    found = compared(FORMS[form](), folder, is_int8=form == "INT8")
    with pytest.raises(ConfigError, match="forecasts are not those of the model"):
        found.require()
    return found


def test_one_step_for_all_variables(tmp_path, monkeypatch):
    own = selection.steps_of

    def one_step(module, axis=-1):
        steps = own(module, axis)
        return steps._replace(step=np.full_like(steps.step, steps.step.max()))

    monkeypatch.setattr(selection, "steps_of", one_step)
    assert refused("INT8", tmp_path).off > 0.5


@pytest.mark.parametrize("shift", [0.5, -0.5], ids=["down", "up"])
def test_codes_that_are_not_rounded_to_the_nearest(shift, tmp_path, monkeypatch):
    own = arithmetic.quantised

    def shifted(graph, x, name, steps):
        half = steps.step.astype(np.float32) * np.float32(shift)
        if steps.axis == 0:
            half = half.reshape(-1, 1, 1)
        return own(graph, graph.one("Sub", x, graph.constant(f"{name}.half", half)), name, steps)

    monkeypatch.setattr(arithmetic, "quantised", shifted)
    assert refused("INT8", tmp_path).off > 0.5


def test_weights_without_their_scales(tmp_path, monkeypatch):
    own = layers.weight_of

    def unscaled(module, name):
        weight = own(module, name)
        return weight if weight.scale is None else weight._replace(scale=np.full_like(weight.scale, 0.01))

    monkeypatch.setattr(layers, "weight_of", unscaled)
    assert refused("INT8", tmp_path).off > 0.5


@pytest.mark.parametrize("form", FORMS)
def test_gates_in_the_order_of_torch(form, tmp_path, monkeypatch):
    monkeypatch.setattr(recurrent, "GATES", (0, 1, 2, 3))
    refused(form, tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_an_lstm_that_runs_over_padding(form, tmp_path, monkeypatch):
    own = network.write_lstm

    def without_lengths(graph, lstm, name, x, states, lengths):
        return own(graph, lstm, name, x, states, None)

    monkeypatch.setattr(network, "write_lstm", without_lengths)
    refused(form, tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_attention_to_padding(form, tmp_path, monkeypatch):
    own = network.visible_keys

    def all_of_history(graph, lengths, length, num_steps):
        return own(graph, graph.constant("full", np.array([[length]])), length, num_steps)

    monkeypatch.setattr(network, "visible_keys", all_of_history)
    refused(form, tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_attention_to_later_steps(form, tmp_path, monkeypatch):
    own = Graph.constant

    def all_seen(graph, name, values):
        return own(graph, name, np.ones_like(values) if name == "seen_horizon" else values)

    monkeypatch.setattr(Graph, "constant", all_seen)
    refused(form, tmp_path)


def test_states_that_start_from_zeros(tmp_path, monkeypatch):
    own = network.write_lstm
    assert EVERYTHING.num_static

    def without_states(graph, lstm, name, x, states, lengths):
        return own(graph, lstm, name, x, None, lengths)

    monkeypatch.setattr(network, "write_lstm", without_states)
    refused("fp32", tmp_path)
