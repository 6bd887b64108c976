"""What the comparison allows, and what it says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx_cases import COUNT, EVERYTHING, floating, some_windows

from ds_tft.errors import ConfigError
from ds_tft.onnx_export.comparison import Comparison, compare
from ds_tft.onnx_export.windows import COUNT as ALL_WINDOWS
from ds_tft.onnx_export.windows import made_up_windows

FLOAT = Comparison(is_int8=False, largest=1e-6, off=0.0, own_off=0.0)
INT8 = Comparison(is_int8=True, largest=0.01, off=0.005, own_off=0.0)


def with_error(change):
    """Compares the model with itself, its forecasts changed by `change(forecasts, number of batch)`."""
    model, seen = floating(), []

    def forecast(inputs):
        seen.append(len(inputs.encoder_lengths))
        with torch.no_grad():
            return change(model(inputs).numpy(), len(seen))

    found = compare(model, forecast, some_windows(EVERYTHING), is_int8=False)
    assert seen == [COUNT] + [1] * COUNT
    return found


def test_the_same_forecasts_do_not_differ():
    found = with_error(lambda forecasts, _: forecasts)
    assert (found.largest, found.off) == (0.0, 0.0)
    assert found.agrees


@pytest.mark.parametrize(("size", "agrees"), [(0.9e-5, True), (1.1e-5, False)])
def test_differences_are_relative_to_the_spread(size, agrees):
    model, windows = floating(), some_windows(EVERYTHING)
    with torch.no_grad():
        spread = float(torch.cat([model(batch) for batch in windows.batches(32)]).std(correction=0))
    found = with_error(lambda forecasts, _: forecasts + np.float32(size * spread))
    assert found.largest == pytest.approx(size, rel=0.2)
    assert found.agrees == agrees


def test_one_forecast_of_one_batch_is_enough():
    def change(forecasts, batch):
        if batch == COUNT + 1:
            forecasts[0, 2, 1, 1] += 1
        return forecasts

    found = with_error(change)
    assert not found.agrees
    assert found.off == pytest.approx(1 / (2 * COUNT * 3 * 2 * 3))


@pytest.mark.parametrize(
    ("change", "agrees"),
    [
        ({}, True),
        ({"largest": 1.1e-5}, False),
        ({"largest": float("nan")}, False),
        ({"largest": float("inf")}, False),
    ],
)
def test_bound_of_floating_point(change, agrees):
    assert replace(FLOAT, **change).agrees == agrees


@pytest.mark.parametrize(
    ("change", "agrees"),
    [
        ({}, True),
        ({"off": 0.011}, False),
        ({"off": 0.011, "own_off": 0.002}, True),
        ({"off": 0.021, "own_off": 0.002}, False),
        ({"off": 0.26, "own_off": 0.2}, False),
        ({"largest": 0.11}, False),
        ({"largest": float("nan")}, False),
    ],
)
def test_bound_of_int8(change, agrees):
    assert replace(INT8, **change).agrees == agrees


def test_one_forecast_that_is_no_number_is_refused():
    def change(forecasts, batch):
        if batch == 1:
            forecasts[3, 0, 0, 0] = np.nan
        return forecasts

    found = with_error(change)
    assert found.off == pytest.approx(1 / (2 * COUNT * 3 * 2 * 3))
    assert np.isnan(found.largest)
    assert not found.agrees
    assert not replace(found, is_int8=True).agrees


def test_a_refusal_is_one_line():
    with pytest.raises(ConfigError) as floating_point:
        replace(FLOAT, largest=0.51234).require()
    assert str(floating_point.value) == (
        "ONNX: forecasts are not those of the model (at most 1e-05), got at most 0.5123 of the spread of the "
        "forecasts; nothing was written, report it with the versions of onnx and onnxruntime"
    )
    with pytest.raises(ConfigError) as int8:
        replace(INT8, off=0.5).require()
    assert str(int8.value) == (
        "ONNX: forecasts are not those of the model (under 1.00% off by more than 1e-05, none by more than 0.1; "
        "0.00% are when the model itself runs in batches of another size), got 50.00% of the forecasts off by "
        "more than 1e-05, at most 0.01000 of the spread of the forecasts; nothing was written, report it with the "
        "versions of onnx and onnxruntime"
    )
    FLOAT.require()
    INT8.require()


def test_made_up_windows_are_in_range():
    windows = made_up_windows(EVERYTHING, 2)
    inputs = windows.inputs
    assert len(windows) == ALL_WINDOWS
    assert set(inputs.encoder_lengths.tolist()) == set(range(2, EVERYTHING.encoder_length + 1))
    for codes, counts in (
        (inputs.static_categories, EVERYTHING.static_categories),
        (inputs.observed_categories, EVERYTHING.observed_categories),
        (inputs.known_categories, EVERYTHING.known_categories),
    ):
        for place, count in enumerate(counts):
            assert set(codes[..., place].flatten().tolist()) == set(range(count))
    assert all(torch.equal(*pair) for pair in zip(inputs, made_up_windows(EVERYTHING, 2).inputs, strict=True))
