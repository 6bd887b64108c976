"""The end of a run: the best model is exported, evaluated and summed up."""

from __future__ import annotations

import shlex
from pathlib import Path

import torch
import torch.distributed
from torch import Tensor, nn

from ds_tft.data.split import SPLITS
from ds_tft.data.times import time_text
from ds_tft.errors import ConfigError
from ds_tft.export import EXPORT, ModelDescription, read_weights, write_export
from ds_tft.forecast.baselines import make_baselines
from ds_tft.forecast.evaluate import Evaluation, evaluate, write_evaluation
from ds_tft.forecast.forecasting_form import forecasting_form
from ds_tft.forecast.scaled_errors import seasonal_scale
from ds_tft.forecast.summary import RunSummary, print_summary
from ds_tft.memory.meter import MemoryReading
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.training.checkpoint import BEST_WEIGHTS
from ds_tft.training.engine import whole_weights
from ds_tft.training.int8_outcome import Int8Outcome
from ds_tft.training.introduction import device_name
from ds_tft.training.log import RunLog
from ds_tft.training.outcome import TrainingOutcome
from ds_tft.training.run_folder import tensorboard_folder
from ds_tft.training.setup import RunSetup
from ds_tft.training.trainer import Trainer

Weights = dict[str, Tensor]


def best_weights(trainer: Trainer) -> Weights:
    """Returns the weights to export, in fp32 on the CPU. Every process must call this.

    They are those of the best validation, or the last ones where there are no windows to validate on.

    Raises:
        ConfigError: Training diverged: there is nothing to export.
    """
    if trainer.state.best_step is not None:
        torch.distributed.barrier()
        return read_weights(trainer.folder / BEST_WEIGHTS)
    if len(trainer.windows.validation):
        raise _diverged("no validation had a finite loss")
    trainer.recorders.log.say("export: the weights of the last step; there is no validation period")
    with whole_weights(trainer.engine) as trained:
        weights = {name: tensor.float().cpu() for name, tensor in trained.state_dict().items()}
    if not all(bool(tensor.isfinite().all()) for tensor in weights.values()):
        raise _diverged("weights are not finite")
    return weights


def export_best(setup: RunSetup, trainer: Trainer) -> TemporalFusionTransformer:
    """Writes the export and returns the model in it, the best one where there was a validation.

    Raises:
        ConfigError: Training diverged: there is nothing to export.
    """
    state = trainer.state
    model = TemporalFusionTransformer(setup.size)
    model.load_state_dict(best_weights(trainer))
    if setup.place.is_first:
        description = ModelDescription(
            settings=setup.settings,
            size=setup.size,
            preprocessor=setup.data.preprocessor,
            bounds=setup.data.bounds,
            step=state.best_step or state.step,
            validation_loss=state.best_loss,
            batch_size=setup.evaluation_batch_size,
        )
        write_export(trainer.folder / EXPORT, model, description)
    return model.to(setup.device)


def evaluate_on_test(setup: RunSetup, model: nn.Module) -> Evaluation | None:
    """Evaluates a model on the test period, where there is one.

    Args:
        setup: The run.
        model: On its device; a plain TFT is folded first, as for every other use of a trained model.
    """
    windows = setup.data.windows["test"]
    if not len(windows):
        return None
    if isinstance(model, TemporalFusionTransformer):
        model = forecasting_form(model)
    table, train_rows, builder = setup.data.table, setup.data.train_rows, setup.batch_builder()
    season = setup.data.preprocessor.layout.step.seasonal_periods()
    baselines = make_baselines(
        table, train_rows, horizon=setup.settings.window.horizon, quantiles=setup.quantiles, season=season
    )
    return evaluate(
        model.eval(),
        builder,
        windows,
        setup.quantiles,
        baselines,
        batch_size=setup.evaluation_batch_size,
        scale=seasonal_scale(table, builder.target, train_rows, season),
        rank=setup.place.rank,
        world_size=setup.place.world_size,
    )


def sum_up(
    setup: RunSetup,
    outcome: TrainingOutcome,
    log: RunLog,
    *,
    seconds: float,
    evaluation: Evaluation | None,
    int8: Int8Outcome | None,
    num_parameters: int,
    memory: MemoryReading,
) -> None:
    """Writes the evaluation and prints the summary."""
    if evaluation is not None:
        write_evaluation(outcome.folder / "evaluation.json", evaluation)
    timing, data = outcome.timing, setup.data
    summary = RunSummary(
        rows=int((~data.table.synthetic).sum()),
        series=len(data.table.series_keys),
        windows=tuple((split, len(index)) for split, index in data.windows.items()),
        dropped=data.lines,
        parameters=num_parameters,
        parameter_bytes=4 * num_parameters,
        epochs=outcome.state.epoch,
        steps=outcome.state.step,
        resumed_step=outcome.first_step,
        training_seconds=seconds,
        seconds_per_step=timing.seconds_per_step,
        windows_per_second=timing.windows_per_second,
        device=device_name(setup.device),
        peak_host_bytes=memory.host_rss_peak,
        peak_cuda_bytes=None if memory.cuda is None else memory.cuda.allocated_peak,
        targets=data.preprocessor.layout.roles.target,
        model=None if evaluation is None else evaluation.model,
        baselines=() if evaluation is None else evaluation.baselines,
        scaled=None if evaluation is None else evaluation.scaled,
        run_folder=str(outcome.folder),
        int8=None if int8 is None else int8.summary,
        next_commands=_next_commands(setup, outcome.folder, None if int8 is None else int8.folder),
    )
    print_summary(summary, log.console)


def _next_commands(setup: RunSetup, run_folder: Path, int8_export: Path | None) -> tuple[str, ...]:
    """What a user types next."""
    folder, file = shlex.quote(str(run_folder)), shlex.quote(setup.arguments.parquet)
    events = tensorboard_folder(setup.engine_settings.tensorboard, run_folder)
    windows, bounds = setup.data.windows, setup.data.bounds
    split = next(split for split in reversed(SPLITS) if len(windows[split]))
    period = "" if split == "test" else f" --split {split}"
    roles = setup.data.preprocessor.layout.roles
    # What is known in advance is seldom in the file beyond the last target: forecast what has passed.
    start = time_text(bounds.period(split)[0], bounds.kind)
    origins = f" --from {start}" if roles.known_reals or roles.known_categories else ""
    int8: tuple[str, ...] = ()
    if int8_export is not None:
        model = shlex.quote(str(int8_export))
        int8 = (f"python launch/predict.py --model {model} --parquet-file {file}{origins}",)
    return (
        f"tensorboard --host 127.0.0.1 --logdir {shlex.quote(str(events))}",
        f"python launch/predict.py --model {folder} --parquet-file {file}{origins}",
        f"python launch/evaluate.py --model {folder} --parquet-file {file}{period}",
        *int8,
    )


def _diverged(got: str) -> ConfigError:
    """Says that there is no model."""
    return ConfigError(
        f"optimizer.params.lr: training diverged and left no model to export, got {got}; "
        "lower the rate, or look for extreme values in the data"
    )
