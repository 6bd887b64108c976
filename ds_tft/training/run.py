"""One training run from arguments to an evaluated, exported model."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed

import ds_tft
from ds_tft.config.batch import BatchSizes, check_fills, resolve_batch
from ds_tft.config.deepspeed import check_machine, read_deepspeed_settings
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.engine_config import engine_config
from ds_tft.config.engine_notes import engine_notes
from ds_tft.config.resolve import RunFlags, read_run_settings
from ds_tft.config.run import RunSettings
from ds_tft.data.batches import BatchBuilder
from ds_tft.data.infer import InferredRoles, infer_roles, roles_table
from ds_tft.data.parquet import ParquetSource, open_source
from ds_tft.data.prepare import TrainingData, prepare_training
from ds_tft.data.split import SPLITS
from ds_tft.data.times import time_text
from ds_tft.errors import ConfigError
from ds_tft.export import ModelDescription, load_weights, write_export
from ds_tft.forecast.baselines import make_baselines
from ds_tft.forecast.evaluate import Evaluation, evaluate, write_evaluation
from ds_tft.forecast.scaled_errors import seasonal_scale
from ds_tft.forecast.summary import RunSummary, print_summary
from ds_tft.memory.chunks import StreamingSettings
from ds_tft.memory.meter import MemoryMeter
from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.inputs import ModelSize
from ds_tft.model.tft import TemporalFusionTransformer, parameter_table
from ds_tft.model_size import derive_size
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.checkpoint import BEST_WEIGHTS, find_checkpoint, load_checkpoint
from ds_tft.training.engine import build_engine, choose_device, start_process_group, whole_weights
from ds_tft.training.environment import ProcessPlace
from ds_tft.training.log import RunLog
from ds_tft.training.run_folder import (
    check_same_run,
    choose_folder,
    fingerprint,
    refuse_used_folder,
    tensorboard_folder,
    write_settings,
)
from ds_tft.training.start import label_quantiles, start_at_label_quantiles
from ds_tft.training.tensorboard import TensorBoardWriter
from ds_tft.training.trainer import Recorders, Trainer, TrainingWindows


def train(arguments: TrainArguments, place: ProcessPlace) -> None:
    """Trains, evaluates and exports a model.

    Args:
        arguments: The command line.
        place: This process among those of the run.

    Raises:
        UserError: Something in the arguments, the settings or the data that the user can mend.
    """
    _refuse_unavailable(arguments)
    run_settings, changes = read_run_settings(
        arguments.config,
        arguments.overrides,
        RunFlags(targets=arguments.targets, epochs=arguments.epochs, seed=arguments.seed),
    )
    engine_settings, engine_changes = read_deepspeed_settings(arguments.deepspeed_config, arguments.overrides)
    batch = resolve_batch(engine_settings, place.world_size, arguments.batch_size)
    source = open_source(arguments.parquet)
    inferred = infer_roles(source, run_settings.data)
    data = prepare_training(source, inferred, run_settings)
    check_fills(batch, _windows_per_epoch(data, run_settings))
    device = choose_device(place)
    check_machine(engine_settings, device.type == "cuda")
    start_process_group(device)
    folder = choose_folder(arguments.output_dir, place)
    if arguments.resume is None:
        refuse_used_folder(folder, place)
    run = _Run(arguments, run_settings, engine_settings, batch, data, folder, place, device)
    with RunLog(folder, enabled=place.is_first) as log:
        _introduce(log, source, inferred, data, (*changes, *engine_changes, *batch.notes))
        run.go(log)


class _Run:
    """The parts of one run that belong together once everything is settled."""

    def __init__(
        self,
        arguments: TrainArguments,
        settings: RunSettings,
        engine_settings: DeepSpeedSettings,
        batch: BatchSizes,
        data: TrainingData,
        folder: Path,
        place: ProcessPlace,
        device: torch.device,
    ) -> None:
        self.arguments = arguments
        self.settings = settings
        self.engine_settings = engine_settings
        self.batch = batch
        self.data = data
        self.folder = folder
        self.place = place
        self.device = device
        self.quantiles = tuple(sorted(settings.model.quantiles))
        self.size = model_size(data, settings, self.quantiles)
        self.builder = BatchBuilder(data.table, settings.window, data.preprocessor.target_scaler)
        self.meter = MemoryMeter(device)

    def go(self, log: RunLog) -> None:
        """Trains, exports the best model, evaluates it and prints the summary."""
        torch.manual_seed(self.settings.training.seed)
        model = TemporalFusionTransformer(self.size)
        start_at_label_quantiles(
            model, label_quantiles(self.builder, self.data.windows["train"], self.quantiles)
        )
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        steps = self._total_steps()
        for line in (
            *_model_lines(model, num_parameters),
            f"batch: {self.batch}",
            *engine_notes(
                self.engine_settings, self.batch, steps, num_parameters, self.device.type == "cuda"
            ),
        ):
            log.say(line)
        self._stream(model, log)
        config = engine_config(self.engine_settings, self.batch, steps, num_parameters)
        resumed_from = self._open_folder(log, config)
        engine = build_engine(model, config)
        log.say(f"engine: ZeRO stage {engine.zero_optimization_stage()}, {self.engine_settings.precision}, "
                f"{engine.optimizer.__class__.__name__} on {_device_name(self.device)}")  # fmt: skip
        started = perf_counter()
        trainer = self._train(engine, log, resumed_from)
        seconds = perf_counter() - started
        model = self._export(engine, trainer)
        evaluation = self._evaluate(model)
        if self.place.is_first:
            self._finish(log, trainer, seconds, evaluation, num_parameters)
        engine.destroy()

    def _stream(self, model: TemporalFusionTransformer, log: RunLog) -> None:
        """Lets variable selection stream, unless the settings say otherwise."""
        product = self.engine_settings.ds_tft
        if not product.streaming:
            log.say("streaming variable selection: off (ds_tft.streaming)")
            return
        chunk = product.variables_per_chunk
        settings = StreamingSettings(variables_per_chunk=chunk if isinstance(chunk, int) else None)
        log.say(stream_variable_selection(model, settings).line())

    @property
    def evaluation_batch_size(self) -> int:
        """Windows per forward in evaluation."""
        return self.settings.training.evaluation_batch_size or self.batch.micro_batch

    def _total_steps(self) -> int:
        """Updates of the whole run."""
        used = _windows_per_epoch(self.data, self.settings)
        return -(-used // self.batch.global_batch) * self.settings.training.epochs

    def _open_folder(self, log: RunLog, config: dict[str, Any]) -> Path | None:
        """Makes the run folder, or checks that a resumed run is the one that it holds."""
        settings = {
            "arguments": asdict(self.arguments),
            **self.settings.model_dump(mode="json"),
            "layout": self.data.preprocessor.layout.model_dump(mode="json"),
            "prepared": fingerprint(self.data),
            "processes": self.place.world_size,
            "engine": config,
        }
        if self.arguments.resume is None:
            if self.place.is_first:
                write_settings(self.folder, settings)
                log.say(f"settings: all of them are in {self.folder / 'settings.json'}")
            return None
        checkpoint = find_checkpoint(self.folder, self.arguments.resume)
        for line in check_same_run(self.folder, settings):
            log.say(f"changed since the run began: {line}")
        return checkpoint

    def _train(self, engine: Any, log: RunLog, resumed_from: Path | None) -> Trainer:
        """Runs the loop."""
        windows = TrainingWindows(
            builder=self.builder,
            train=self.data.windows["train"],
            validation=self.data.windows["validation"],
        )
        state = None
        if resumed_from is not None:
            state = load_checkpoint(engine, resumed_from, self.folder)
            log.rewind(state.step)
            log.say(f"resumed from {resumed_from}: step {state.step}, epoch {state.epoch}")
            if state.epoch >= self.settings.training.epochs:
                log.say(f"nothing is left to train, {state.epoch} epochs are done; a larger --epochs goes on")
        with TensorBoardWriter(
            tensorboard_folder(self.engine_settings.tensorboard, self.folder),
            enabled=self.place.is_first and self.engine_settings.tensorboard.enabled,
            resumed_step=None if state is None else state.step,
        ) as tensorboard:
            trainer = Trainer(
                engine,
                windows,
                self.settings.training,
                self.quantiles,
                self.batch,
                self.folder,
                self.place,
                Recorders(log=log, tensorboard=tensorboard, meter=self.meter),
            )
            if state is not None:
                trainer.state = state
            for line in trainer.lines():
                log.say(line)
            log.start(trainer.total_steps, trainer.state.step)
            trainer.train()
        log.close()  # takes the progress bar off before the summary; a later record opens the file again
        return trainer

    def _export(self, engine: Any, trainer: Trainer) -> TemporalFusionTransformer:
        """Writes the export and returns the model in it, the best one where there was a validation.

        Raises:
            ConfigError: Training diverged: there is nothing to export.
        """
        best = self.folder / BEST_WEIGHTS
        state = trainer.state
        model = TemporalFusionTransformer(self.size)
        if state.best_step is not None:
            torch.distributed.barrier()
            load_weights(model, best)
        else:
            if len(self.data.windows["validation"]):
                raise _diverged("no validation had a finite loss")
            trainer.recorders.log.say("export: the weights of the last step; there is no validation period")
            with whole_weights(engine) as trained:
                weights = {name: tensor.float().cpu() for name, tensor in trained.state_dict().items()}
            if not all(bool(tensor.isfinite().all()) for tensor in weights.values()):
                raise _diverged("weights are not finite")
            model.load_state_dict(weights)
        if self.place.is_first:
            description = ModelDescription(
                settings=self.settings,
                size=self.size,
                preprocessor=self.data.preprocessor,
                bounds=self.data.bounds,
                step=state.best_step or state.step,
                validation_loss=state.best_loss,
                batch_size=self.evaluation_batch_size,
            )
            write_export(self.folder / "export", model, description)
        return model.to(self.device)

    def _evaluate(self, model: TemporalFusionTransformer) -> Evaluation | None:
        """Evaluates the exported model on the test period, where there is one."""
        windows = self.data.windows["test"]
        if not len(windows):
            return None
        stream_variable_selection(model)
        table, train_rows = self.data.table, self.data.train_rows
        season = self.data.preprocessor.layout.step.seasonal_periods()
        baselines = make_baselines(
            table,
            train_rows,
            horizon=self.settings.window.horizon,
            quantiles=self.quantiles,
            season=season,
        )
        return evaluate(
            model,
            self.builder,
            windows,
            self.quantiles,
            baselines,
            batch_size=self.evaluation_batch_size,
            scale=seasonal_scale(table, self.builder.target, train_rows, season),
            rank=self.place.rank,
            world_size=self.place.world_size,
        )

    def _finish(
        self,
        log: RunLog,
        trainer: Trainer,
        seconds: float,
        evaluation: Evaluation | None,
        num_parameters: int,
    ) -> None:
        """Writes the evaluation and prints the summary."""
        if evaluation is not None:
            write_evaluation(self.folder / "evaluation.json", evaluation)
        memory = self.meter.read()
        timing = trainer.timing
        summary = RunSummary(
            rows=int((~self.data.table.synthetic).sum()),
            series=len(self.data.table.series_keys),
            windows=tuple((split, len(index)) for split, index in self.data.windows.items()),
            dropped=self.data.lines,
            parameters=num_parameters,
            parameter_bytes=4 * num_parameters,
            epochs=trainer.state.epoch,
            steps=trainer.state.step,
            resumed_step=trainer.first_step,
            training_seconds=seconds,
            seconds_per_step=timing.seconds_per_step,
            windows_per_second=timing.windows_per_second,
            device=_device_name(self.device),
            peak_host_bytes=memory.host_rss_peak,
            peak_cuda_bytes=None if memory.cuda is None else memory.cuda.allocated_peak,
            targets=self.data.preprocessor.layout.roles.target,
            model=None if evaluation is None else evaluation.model,
            baselines=() if evaluation is None else evaluation.baselines,
            scaled=None if evaluation is None else evaluation.scaled,
            run_folder=str(self.folder),
            next_commands=self._next_commands(),
        )
        print_summary(summary, log.console)

    def _next_commands(self) -> tuple[str, ...]:
        """What a user types next."""
        folder, file = shlex.quote(str(self.folder)), shlex.quote(self.arguments.parquet)
        events = tensorboard_folder(self.engine_settings.tensorboard, self.folder)
        windows = self.data.windows
        split = next(split for split in reversed(SPLITS) if len(windows[split]))
        period = "" if split == "test" else f" --split {split}"
        roles = self.data.preprocessor.layout.roles
        # What is known in advance is seldom in the file beyond the last target: forecast what has passed.
        start = time_text(self.data.bounds.period(split)[0], self.data.bounds.kind)
        origins = f" --from {start}" if roles.known_reals or roles.known_categories else ""
        return (
            f"tensorboard --host 127.0.0.1 --logdir {shlex.quote(str(events))}",
            f"python launch/predict.py --model {folder} --parquet-file {file}{origins}",
            f"python launch/evaluate.py --model {folder} --parquet-file {file}{period}",
        )


def model_size(data: TrainingData, settings: RunSettings, quantiles: tuple[float, ...]) -> ModelSize:
    """Derives the shapes of the model from the data and the `model` section.

    Args:
        data: The prepared data.
        settings: The run JSON.
        quantiles: Levels, ascending.
    """
    return replace(derive_size(data.preprocessor, settings), quantiles=quantiles)


def _diverged(got: str) -> ConfigError:
    """Says that there is no model."""
    return ConfigError(
        f"optimizer.params.lr: training diverged and left no model to export, got {got}; "
        "lower the rate, or look for extreme values in the data"
    )


def _windows_per_epoch(data: TrainingData, settings: RunSettings) -> int:
    """Training windows that an epoch uses."""
    windows = len(data.windows["train"])
    return min(windows, settings.training.windows_per_epoch or windows)


def _refuse_unavailable(arguments: TrainArguments) -> None:
    """Refuses flags whose feature does not exist yet, rather than train without it."""
    for flag, asked in (
        ("--use-gradient-checkpointing", arguments.use_gradient_checkpointing),
        ("--use-int8", arguments.use_int8),
    ):
        if asked:
            raise ConfigError(f"{flag}: not available yet; leave it out")


def _introduce(
    log: RunLog,
    source: ParquetSource,
    inferred: InferredRoles,
    data: TrainingData,
    changes: tuple[str, ...],
) -> None:
    """Says what was read, in which roles, and what was done to it."""
    log.say(f"ds_tft {ds_tft.__version__}: {source.path}")
    log.console.print(roles_table(inferred))
    for line in (*changes, *inferred.notes, *data.lines, *_known_hint(inferred)):
        log.say(line)


def _known_hint(inferred: InferredRoles) -> tuple[str, ...]:
    """Says that no column is known in advance, which is never inferred."""
    if inferred.roles.known_reals or inferred.roles.known_categories:
        return ()
    return (
        "known in advance: no column of the file; name those that are in data.known_reals or known_categories",
    )


def _model_lines(model: TemporalFusionTransformer, num_parameters: int) -> tuple[str, ...]:
    """Parameters of the model and of its blocks."""
    size = model.size
    total = size.num_static + size.num_observed + size.num_known
    blocks = ", ".join(f"{name} {count:,}" for name, count in parameter_table(model) if count)
    return (
        f"model: {total} inputs ({size.num_static} static, {size.num_observed} observed, "
        f"{size.num_known} known), encoder {size.encoder_length}, horizon {size.horizon}, "
        f"hidden {size.hidden_size}",
        f"model: {num_parameters:,} parameters: {blocks}",
    )


def _device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return f"{properties.name}, {properties.total_memory / 2**30:.1f} GiB"
    return f"CPU, {torch.get_num_threads()} threads"
