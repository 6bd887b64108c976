"""Small models in floating point and INT8, their ONNX files, and an export of an INT8 model."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import torch
from made_model import SHOP, Made, make_model, settings_of, shop_table
from quantization_cases import SIZES as QUANTISED_SIZES
from quantization_cases import attach, build

from ds_tft.export import Int8Description, write_export
from ds_tft.forecast.forecasting_form import forecasting_form
from ds_tft.model.inputs import ModelInputs, ModelSize
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.onnx_export.comparison import Comparison, compare
from ds_tft.onnx_export.model_file import save_model
from ds_tft.onnx_export.network import write_network
from ds_tft.onnx_export.runtime import OnnxForecaster
from ds_tft.onnx_export.windows import Windows, made_up_windows
from ds_tft.quantization.attach import Covered, attach_quantisation
from ds_tft.quantization.calibration import calibrate
from ds_tft.quantization.stored import build_stored

EVERYTHING = QUANTISED_SIZES["everything"]
COUNT = 16
"""Windows of a comparison."""
SIZES = {
    **QUANTISED_SIZES,
    "hardly more than categories": ModelSize(
        static_categories=(3,),
        observed_categories=(5, 3),
        known_categories=(4,),
        encoder_length=5,
        horizon=2,
        hidden_size=8,
    ),
    "one variable": ModelSize(encoder_length=5, horizon=2, hidden_size=8),
    "one step": ModelSize(encoder_length=1, horizon=1, hidden_size=8, quantiles=(0.5,), num_targets=2),
    "several chunks": ModelSize(
        static_reals=17,
        observed_reals=35,
        observed_categories=(3,) * 18,
        known_reals=16,
        encoder_length=4,
        horizon=2,
        hidden_size=8,
        lstm_layers=3,
    ),
}


@cache  # no test changes a model
def floating(size: ModelSize = EVERYTHING) -> TemporalFusionTransformer:
    """A folded, streaming model in floating point."""
    return forecasting_form(build(size).eval())


@cache
def int8(size: ModelSize = EVERYTHING, covered: Covered | None = None) -> TemporalFusionTransformer:
    """A model of the same weights with everything, or what is covered, as codes."""
    model = build(size)
    attached = attach(model, covered, percentile=99.9).model
    return build_stored(size, covered or Covered.all_of(model), attached.state_dict())


def written(model: TemporalFusionTransformer, folder: Path) -> Path:
    """The ONNX file of a model."""
    path = folder / "model.onnx"
    save_model(write_network(model).model("made", "0", {}), path)
    return path


def tensors(path: Path) -> dict[str, np.ndarray]:
    """The constants of a file by name."""
    return {each.name: onnx.numpy_helper.to_array(each) for each in onnx.load(str(path)).graph.initializer}


def compared(model: TemporalFusionTransformer, folder: Path, *, is_int8: bool) -> Comparison:
    """Writes a model and compares it on some synthetic windows with histories of all lengths."""
    forecaster = OnnxForecaster(written(model, folder), threads=1)
    return compare(model, forecaster.forecast, some_windows(model.size), is_int8=is_int8)


def some_windows(size: ModelSize) -> Windows:
    """Fewer windows than a command takes."""
    windows = made_up_windows(size, 1)
    return replace(windows, inputs=ModelInputs(*(tensor[:COUNT] for tensor in windows.inputs)))


@torch.no_grad()
def differences(
    model: TemporalFusionTransformer, forecaster: OnnxForecaster, inputs: ModelInputs
) -> np.ndarray:
    """Differences of the forecasts, relative to their spread."""
    own = model(inputs).numpy()
    theirs = forecaster.forecast(inputs)
    assert theirs.shape == own.shape
    return np.abs(theirs - own) / own.std()


def make_shop(folder: Path) -> Made:
    """An export in floating point with every role of a column."""
    return make_model(folder, shop_table(), settings_of(SHOP))


def add_int8_export(made: Made) -> Path:
    """Quantises a made model on its own data; returns the folder `export_int8` beside the other export."""
    model = made.model
    covered = Covered.all_of(model)
    quantisation = attach_quantisation(model, covered)
    windows = made.data.windows["train"].spaced(64)
    calibrate(
        model, quantisation, [made.builder.build(windows, np.arange(len(windows))).inputs], "percentile", 99.9
    )
    stored = build_stored(made.description.size, covered, model.state_dict())
    said = Int8Description(
        weights=tuple(sorted(covered.weights)),
        inputs=tuple(sorted(covered.inputs)),
        calibration="percentile",
        fine_tuned_steps=0,
    )
    folder = made.folder / "export_int8"
    write_export(folder, stored, made.description.model_copy(update={"int8": said}))
    return folder
