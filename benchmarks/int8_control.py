"""Fine-tunes the folded model of a run in floating point, just as its INT8 model was fine-tuned.

    python benchmarks/int8_control.py --run RUN --parquet-file F.parquet --config run.json --seed 0

RUN is the folder of a finished `launch/train.py --use-int8`, with the same settings. Start, windows, updates and
learning rates are those of the quantisation-aware training; nothing is quantised. Also evaluates the model of the run
in bfloat16. Writes RUN/control/evaluation.json and RUN/bf16/evaluation.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from ds_tft.config.int8 import int8_plan
from ds_tft.export import read_export, read_weights
from ds_tft.forecast.evaluate import write_evaluation
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


class InBfloat16(torch.nn.Module):
    """A model with weights and activations in bfloat16, as a forecaster of float32."""

    def __init__(self, model: TemporalFusionTransformer) -> None:
        super().__init__()
        self.size = model.size
        self.model = model.to(torch.bfloat16)

    def forward(self, inputs: ModelInputs) -> torch.Tensor:
        """Returns the forecasts."""
        device = next(self.model.parameters()).device
        forecasts: torch.Tensor = self.model(inputs.to(device, torch.bfloat16))
        return forecasts.float()


def main() -> None:
    """Trains and evaluates."""
    parser = argparse.ArgumentParser(description="Fine-tune in floating point, and evaluate in bfloat16.")
    parser.add_argument("--run", required=True, type=Path, help="folder of a finished run with INT8")
    parser.add_argument("--parquet-file", required=True, help="its data")
    parser.add_argument("--config", required=True, help="its run JSON")
    parser.add_argument("--seed", type=int, default=0, help="its seed (default: 0)")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="as it had them")
    options = parser.parse_args()
    arguments = TrainArguments(
        parquet=options.parquet_file,
        config=options.config,
        seed=options.seed,
        use_int8=True,
        overrides=tuple(options.overrides),
    )
    setup = set_up(arguments, prepare_environment())
    start_process_group(setup.device)
    model = _fine_tuned(setup, options.run)
    _evaluate(setup, model, options.run / "control")
    folded = forecasting_form(read_export(options.run).model.to(setup.device))
    _evaluate(setup, InBfloat16(folded), options.run / "bf16")


def _fine_tuned(setup: RunSetup, run: Path) -> TemporalFusionTransformer:
    """Returns the folded model after as many updates as the INT8 model had."""
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
        trainer = stage.run(count, None)
        weights = best_weights(trainer)
    folded = build_folded(setup.size)
    folded.load_state_dict({name: weights[name] for name in folded.state_dict()})
    return folded.to(setup.device)


def _evaluate(setup: RunSetup, model: torch.nn.Module, folder: Path) -> None:
    """Writes the errors over the test period."""
    evaluation = evaluate_on_test(setup, model)
    assert evaluation is not None
    folder.mkdir(parents=True, exist_ok=True)
    write_evaluation(folder / "evaluation.json", evaluation)


if __name__ == "__main__":
    main()
