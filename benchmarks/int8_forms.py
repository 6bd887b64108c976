"""Measures the forms of one finished run with INT8: errors in each, the floating-point control, latency.

    python benchmarks/int8_forms.py --run RUN --ptq PTQ --parquet-file F.parquet --config run.json --seed 0

RUN is the folder of a finished `launch/train.py --use-int8`, PTQ that of `launch/quantise.py --fine-tune-steps 0` on
it, both with these settings. The control is the folded model fine-tuned in floating point: start, windows, updates and
learning rates are those of the quantisation-aware training, and nothing is quantised. Writes RUN/forms.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import nn
from workload import now

from ds_tft.config.int8 import int8_plan
from ds_tft.export import INT8_EXPORT, read_export, read_weights
from ds_tft.forecast.forecasting_form import forecasting_form
from ds_tft.memory.meter import MemoryMeter
from ds_tft.model.fold import build_folded
from ds_tft.model.inputs import ModelInputs
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.quantization.attach import Quantisation
from ds_tft.quantization.coverage import cover
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.conclusion import best_weights, evaluate_on_test
from ds_tft.training.engine import start_process_group
from ds_tft.training.environment import prepare_environment
from ds_tft.training.int8 import FOLDER, quantisable
from ds_tft.training.int8_settings import fine_tuning_setup
from ds_tft.training.int8_start import START
from ds_tft.training.log import RunLog
from ds_tft.training.setup import RunSetup, set_up
from ds_tft.training.stage import Stage, StageModel, StagePlaces

FORMS_FILE = "forms.json"
LATENCY_WINDOWS = 32
LATENCY_ROUNDS = 5


class Floating:
    """Keeps everything in floating point.

    Args:
        quantisation: What would be switched on.
    """

    def __init__(self, quantisation: Quantisation) -> None:
        self._quantisation = quantisation

    def before_update(self, step: int) -> None:  # noqa: ARG002
        """Quantises nothing."""
        self._quantisation.turn(weights=False, inputs=False)

    def before_validation(self) -> None:
        """Quantises nothing."""
        self._quantisation.turn(weights=False, inputs=False)


class AsItIs(nn.Module):
    """A model that evaluation does not fold, perhaps in half precision.

    Args:
        model: The model.
        dtype: Type of weights and activations.
    """

    def __init__(self, model: TemporalFusionTransformer, dtype: torch.dtype) -> None:
        super().__init__()
        self.size = model.size
        self.model = model.to(dtype)
        self._dtype = dtype

    def forward(self, inputs: ModelInputs) -> torch.Tensor:
        """Returns the forecasts, in float32."""
        forecasts: torch.Tensor = self.model(inputs.to(inputs.static_reals.device, self._dtype))
        return forecasts.float()


@dataclass(frozen=True, kw_only=True, slots=True)
class FormFigures:
    """What is measured of one form."""

    q_risk: dict[str, float]
    """By level, over the test period."""
    weight_bytes: int
    milliseconds: float
    """Median time of a forecast of `LATENCY_WINDOWS` windows."""


def main() -> None:
    """Trains the control, and measures all forms."""
    parser = argparse.ArgumentParser(description="Measure the forms of a run with INT8.")
    parser.add_argument("--run", required=True, type=Path, help="folder of a finished run with INT8")
    parser.add_argument("--ptq", required=True, type=Path, help="folder of the same, quantised only")
    parser.add_argument("--parquet-file", required=True, help="their data")
    parser.add_argument("--config", required=True, help="their run JSON")
    parser.add_argument("--target", action="append", default=[], help="as they had it")
    parser.add_argument("--batch-size", type=int, help="as they had it")
    parser.add_argument("--epochs", type=int, help="as they had it")
    parser.add_argument("--seed", type=int, default=0, help="their seed (default: 0)")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="as they had them")
    options = parser.parse_args()
    arguments = TrainArguments(
        parquet=options.parquet_file,
        targets=tuple(options.target),
        config=options.config,
        batch_size=options.batch_size,
        epochs=options.epochs,
        seed=options.seed,
        use_int8=True,
        overrides=tuple(options.overrides),
    )
    setup = set_up(arguments, prepare_environment())
    start_process_group(setup.device)
    forms = _forms(setup, options.run, options.ptq)
    figures = measure(setup, forms)
    text = json.dumps({name: _as_dict(form) for name, form in figures.items()}, indent=1)
    (options.run / FORMS_FILE).write_text(text + "\n", encoding="utf-8")


def _forms(setup: RunSetup, run: Path, ptq: Path) -> dict[str, nn.Module]:
    """The models, on their device."""

    def plain() -> TemporalFusionTransformer:
        return read_export(run).model.to(setup.device)

    def int8(folder: Path) -> TemporalFusionTransformer:
        return read_export(folder / INT8_EXPORT).model.to(setup.device)

    return {
        "fp32": AsItIs(plain(), torch.float32),
        "fp32, folded": forecasting_form(plain()),
        "bf16, folded": AsItIs(forecasting_form(plain()), torch.bfloat16),
        "INT8, only rounded": int8(ptq),
        "INT8, fine-tuned": int8(run),
        "fp32, folded and fine-tuned": forecasting_form(fine_tuned_in_floating_point(setup, run)),
    }


def fine_tuned_in_floating_point(setup: RunSetup, run: Path) -> TemporalFusionTransformer:
    """Returns the folded model after as many updates as the INT8 model had, on the device.

    Args:
        setup: The run.
        run: Its folder.
    """
    plan = int8_plan(setup.engine_settings)
    assert plan is not None
    covered = cover(plan, build_folded(setup.size))
    start = read_weights(run / FOLDER / START)

    def build() -> StageModel:
        model, passes, quantisation = quantisable(setup, covered)
        model.load_state_dict(start)
        return StageModel(model, passes, Floating(quantisation))

    folder = run / "control"
    with RunLog(folder) as log:
        places = StagePlaces(folder=folder, log=log, events=folder / "tensorboard")
        stage = Stage(fine_tuning_setup(setup), places, MemoryMeter(setup.device), build)
        count = sum(parameter.numel() for parameter in build_folded(setup.size).parameters())
        weights = best_weights(stage.run(count, None))
    folded = build_folded(setup.size)
    folded.load_state_dict({name: weights[name] for name in folded.state_dict()})
    return folded.to(setup.device).eval()


def measure(setup: RunSetup, forms: Mapping[str, nn.Module]) -> dict[str, FormFigures]:
    """Evaluates every form, then times them in turns.

    Args:
        setup: The run.
        forms: Models by name.
    """
    risks = {}
    for name, model in forms.items():
        evaluation = evaluate_on_test(setup, model)
        assert evaluation is not None, "there is a test period"
        errors = evaluation.model
        risks[name] = dict(zip(map(str, errors.quantiles), errors.overall.q_risk, strict=True))
    times = _milliseconds(setup, forms)
    return {
        name: FormFigures(q_risk=risks[name], weight_bytes=_bytes(model), milliseconds=times[name])
        for name, model in forms.items()
    }


def _milliseconds(setup: RunSetup, forms: Mapping[str, nn.Module]) -> dict[str, float]:
    """Times a forecast of every form; the first round is not counted."""
    windows = setup.data.windows["test"].spaced(LATENCY_WINDOWS)
    batch = setup.batch_builder().build(windows, np.arange(len(windows)))
    inputs = batch.inputs.to(setup.device, torch.float32)
    times: dict[str, list[float]] = {name: [] for name in forms}
    with torch.no_grad():
        for _ in range(LATENCY_ROUNDS + 1):
            for name, model in forms.items():
                begin = now(setup.device).wall
                model.eval()(inputs)
                times[name].append(1e3 * (now(setup.device).wall - begin))
    return {name: median(values[1:]) for name, values in times.items()}


def _bytes(model: nn.Module) -> int:
    """Memory of the weights."""
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())


def _as_dict(figures: FormFigures) -> dict[str, object]:
    """For JSON."""
    return {
        "q_risk": figures.q_risk,
        "weight_bytes": figures.weight_bytes,
        "milliseconds": figures.milliseconds,
    }


if __name__ == "__main__":
    main()
