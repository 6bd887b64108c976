"""What each quantised module costs, measured one at a time."""

from __future__ import annotations

import json

import pytest
import torch
from quantization_cases import attach, build, draw, steps_of

from ds_tft.quantization.attach import Covered
from ds_tft.quantization.codes import fake_quantised_weight
from ds_tft.quantization.layer_errors import (
    LayerError,
    layer_error_lines,
    measure_layer_errors,
    write_layer_errors,
)
from ds_tft.quantization.sites import find_sites


def batches() -> list:
    return [draw(batch=16, seed=seed) for seed in (3, 4)]


def test_each_module_is_measured_alone_and_the_worst_comes_first():
    model, quantisation = attach(build())
    errors = measure_layer_errors(model, quantisation, batches())
    assert {error.name: error.kind for error in errors} == {s.name: s.kind for s in find_sites(build())}
    found = [error.forecast_error for error in errors]
    assert found == sorted(found, reverse=True)
    assert all(0 < error.forecast_error < 1 for error in errors)
    assert all(0 < error.weight_error < 0.02 for error in errors)


def test_an_error_is_that_of_a_model_with_nothing_else_quantised():
    folded = build()
    model, quantisation = attach(folded)
    measured = {error.name: error for error in measure_layer_errors(model, quantisation, batches())}
    name = "attention.value"
    alone, _ = attach(folded, Covered(weights=frozenset({name}), inputs=frozenset({name})))
    exact, rounded = (
        torch.cat([each.eval()(inputs).detach().double() for inputs in batches()]) for each in (folded, alone)
    )
    difference = (rounded - exact).square().mean().sqrt()
    spread = (exact - exact.mean(0)).square().mean().sqrt()
    assert measured[name].forecast_error == pytest.approx(float(difference / spread), rel=1e-3)
    weight = folded.attention.value.weight.detach()
    off = (fake_quantised_weight(weight, 1) - weight).norm() / weight.norm()
    assert measured[name].weight_error == pytest.approx(float(off), rel=1e-4)


def test_a_module_with_a_bad_range_is_named_first():
    model, quantisation = attach(build())
    quantisation.quantisers["lstm_gate.gate"].input_step.mul_(100)
    errors = measure_layer_errors(model, quantisation, batches())
    assert errors[0].name == "lstm_gate.gate"
    assert layer_error_lines(errors)[0].split(": ")[2].startswith("lstm_gate.gate ")


def test_afterwards_all_is_on_and_nothing_has_moved():
    model, quantisation = attach(build())
    steps, expected = steps_of(quantisation), model.eval()(draw()).detach()
    measure_layer_errors(model, quantisation, batches())
    assert torch.equal(model(draw()), expected)
    assert all(torch.equal(step, steps[name]) for name, step in steps_of(quantisation).items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_only_what_is_covered_is_measured():
    names = frozenset({"attention.key", "known_embedding"})
    model, quantisation = attach(build(), Covered(weights=names, inputs=names))
    assert {error.name for error in measure_layer_errors(model, quantisation, batches())} == names


def test_they_are_written_and_said(tmp_path):
    errors = tuple(
        LayerError(name=f"layer{number}", kind="LSTM", forecast_error=0.1 / (1 + number), weight_error=0.01)
        for number in range(5)
    )
    path = tmp_path / "new" / "layers.json"
    write_layer_errors(path, errors)
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written[0] == {"name": "layer0", "kind": "LSTM", "forecast_error": 0.1, "weight_error": 0.01}
    assert len(written) == 5
    assert layer_error_lines(errors) == [
        "int8: modules whose quantisation alone moves the forecasts most: "
        "layer0 10.00%, layer1 5.00%, layer2 3.33%"
    ]
