"""The file forecasts what the model does, in floating point and INT8, for batches and histories of any size."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
import torch
from onnx_cases import EVERYTHING, SIZES, compared, differences, floating, int8, tensors, written
from quantization_cases import build, draw

from ds_tft.model.inputs import ModelInputs
from ds_tft.onnx_export.comparison import TOLERANCE
from ds_tft.onnx_export.graph import IR_VERSION, OPSET
from ds_tft.onnx_export.runtime import OnnxForecaster
from ds_tft.quantization.attach import Covered

FORMS = {"fp32": floating, "INT8": int8}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_floating_point(size, tmp_path):
    found = compared(floating(size), tmp_path, is_int8=False)
    assert found.largest <= TOLERANCE
    assert found.agrees


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_int8(size, tmp_path):
    found = compared(int8(size), tmp_path, is_int8=True)
    assert found.off < 0.01, found
    assert found.agrees


@pytest.mark.parametrize("form", FORMS)
def test_any_number_of_windows(form, tmp_path):
    model = FORMS[form]()
    forecaster = OnnxForecaster(written(model, tmp_path), threads=1)
    for batch in (1, 7, 32):
        lengths = [1 + place % EVERYTHING.encoder_length for place in range(batch)]
        found = differences(model, forecaster, draw(EVERYTHING, batch, seed=batch, lengths=lengths))
        assert (found > TOLERANCE).mean() < (0.01 if form == "INT8" else 1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_behind_a_history_is_ignored(form, tmp_path):
    forecaster = OnnxForecaster(written(FORMS[form](), tmp_path), threads=1)
    inputs = draw(EVERYTHING, 4, lengths=[6, 2, 4, 1])
    observed, known = inputs.observed_reals.clone(), inputs.known_reals.clone()
    categories = inputs.known_categories.clone()
    for window, length in enumerate(inputs.encoder_lengths):
        observed[window, length:] = float("nan")
        known[window, length : EVERYTHING.encoder_length] = float("nan")
        categories[window, length : EVERYTHING.encoder_length] = 0
    changed = inputs._replace(observed_reals=observed, known_reals=known, known_categories=categories)
    assert np.isnan(changed.observed_reals.numpy()).any()
    assert np.array_equal(forecaster.forecast(changed), forecaster.forecast(inputs))


@pytest.mark.parametrize("part", ["weights only", "LSTM", "variable networks", "one linear layer"])
def test_parts_of_a_model_in_int8(part, tmp_path):
    everything = Covered.all_of(build(EVERYTHING)).weights
    kinds = {
        "weights only": everything,
        "LSTM": {name for name in everything if "lstm" in name and name.endswith("lstm")},
        "variable networks": {name for name in everything if name.endswith("_selection.gate")},
        "one linear layer": {"quantile_head"},
    }
    names = frozenset(kinds[part])
    assert names
    covered = Covered(weights=names, inputs=frozenset() if part == "weights only" else names)
    found = compared(int8(EVERYTHING, covered), tmp_path, is_int8=part != "weights only")
    assert found.off < 0.01, found
    assert found.agrees


def test_names_and_shapes(tmp_path):
    path = written(floating(), tmp_path)
    forecaster = OnnxForecaster(path, threads=1)
    inputs = draw(EVERYTHING, 3)
    assert list(forecaster.inputs) == list(ModelInputs._fields)
    for name, shape in forecaster.inputs.items():
        assert shape == ["windows", *getattr(inputs, name).shape[1:]]
    assert forecaster.output == ("quantiles", ["windows", 3, 2, 3])
    model = onnx.load(str(path))
    assert model.ir_version == IR_VERSION
    assert [(each.domain, each.version) for each in model.opset_import] == [("", OPSET)]
    assert {node.domain for node in model.graph.node} == {""}
    names = [value for node in model.graph.node for value in node.output]
    assert len(names) == len(set(names))


def test_a_group_without_variables_is_no_input(tmp_path):
    forecaster = OnnxForecaster(written(floating(SIZES["one variable"]), tmp_path), threads=1)
    assert list(forecaster.inputs) == ["observed_reals", "known_reals", "encoder_lengths"]


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_matrices_are_stored_in_8_bits(size, tmp_path):
    model = int8(size)
    codes = [tensor for tensor in model.state_dict().values() if tensor.dtype == torch.int8]
    found = tensors(written(model, tmp_path))
    eight = {name: values for name, values in found.items() if values.dtype in (np.int8, np.uint8)}
    zeros = sum(values.size for name, values in eight.items() if name.startswith("zero_code"))
    assert sum(values.nbytes for values in eight.values()) - zeros == sum(tensor.numel() for tensor in codes)
    assert {values.dtype.name for name, values in eight.items() if ".lstm.weight" in name} == {"int8"}
    for name, values in found.items():
        is_matrix = values.ndim > 1 and values.shape[-2] > 1 and values.shape[-1] > 1
        if values.dtype == np.float32 and is_matrix:
            assert name.endswith("selection.norm_bias"), name


def test_codes_are_those_of_the_model(tmp_path):
    model = int8()
    state, found = model.state_dict(), tensors(written(model, tmp_path))
    head = state["quantile_head.weight"].numpy()
    assert head.dtype == np.int8
    assert np.array_equal(found["quantile_head.weight"].astype(int) - 128, head.T)
    gate = state["history_selection.gate.weight"].numpy()
    parts = {
        name: values for name, values in found.items() if name.startswith("history_selection.gate.weight")
    }
    matrices = [
        values for values in parts.values() if values.dtype == np.uint8
    ]  # in the order of the variables
    assert np.array_equal(np.concatenate(matrices).astype(int) - 128, gate)
    steps = np.concatenate(
        [values for name, values in parts.items() if name.endswith("input_step")], axis=None
    )
    assert len(set(steps.tolist())) == 3 + 2 + 1 + 2  # one per variable
    assert np.array_equal(steps, state["history_selection.gate.int8.input_step"].numpy())
    lstm = state["lstm_encoder.lstm.weight_hh_l1"].numpy()
    written_lstm = found["lstm_encoder.lstm.weight_hh_l1"][0]
    size = EVERYTHING.hidden_size
    for place, gate_of_torch in enumerate((0, 3, 1, 2)):  # input, output, forget, cell
        assert np.array_equal(
            written_lstm[place * size : (place + 1) * size],
            lstm[gate_of_torch * size : (gate_of_torch + 1) * size],
        )
