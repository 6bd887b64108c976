"""One training run from arguments to an evaluated, exported model."""

from __future__ import annotations

import gc
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch

from ds_tft.config.engine_config import engine_config
from ds_tft.config.engine_notes import engine_notes
from ds_tft.errors import ConfigError
from ds_tft.memory.meter import MemoryMeter
from ds_tft.memory.out_of_memory import is_out_of_memory
from ds_tft.memory.passes import MemoryPasses, attach_passes
from ds_tft.memory.trace.failure import first_line
from ds_tft.memory.trace.files import TraceFiles
from ds_tft.memory.trace.settings import trace_settings
from ds_tft.memory.trace.tracer import StepTracer
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.block_check import refuse_useless_blocks
from ds_tft.training.checkpoint import find_checkpoint, load_checkpoint
from ds_tft.training.conclusion import evaluate_on_test, export_best, sum_up
from ds_tft.training.engine import build_engine, start_process_group
from ds_tft.training.environment import ProcessPlace
from ds_tft.training.exhaustion import BATCH, Exhaustion, explain, may_halve
from ds_tft.training.introduction import device_name, introduce, model_lines
from ds_tft.training.log import RunLog
from ds_tft.training.memory_fit import fit_memory
from ds_tft.training.run_folder import (
    check_same_run,
    choose_folder,
    fingerprint,
    refuse_used_folder,
    tensorboard_folder,
    write_settings,
)
from ds_tft.training.setup import RunSetup, set_up
from ds_tft.training.start import label_quantiles, start_at_label_quantiles
from ds_tft.training.tensorboard import TensorBoardWriter
from ds_tft.training.trainer import At, Recorders, Trainer, TrainingWindows


def train(arguments: TrainArguments, place: ProcessPlace) -> None:
    """Trains, evaluates and exports a model.

    Args:
        arguments: The command line.
        place: This process among those of the run.

    Raises:
        UserError: Something in the arguments, the settings or the data that the user can mend.
    """
    _refuse_unavailable(arguments)
    setup = set_up(arguments, place)
    start_process_group(setup.device)
    folder = choose_folder(arguments.output_dir, place)
    if arguments.resume is None:
        refuse_used_folder(folder, place)
    with RunLog(folder, enabled=place.is_first) as log:
        introduce(log, setup)
        _Run(fit_memory(setup, log.say), folder, log).go()


class _Built(NamedTuple):
    """A model made ready to train."""

    engine: Any
    passes: MemoryPasses


class _Run:
    """The parts of one run that belong together once everything is settled."""

    def __init__(self, setup: RunSetup, folder: Path, log: RunLog) -> None:
        self.setup = setup
        self.folder = folder
        self.log = log
        self.meter = MemoryMeter(setup.device)

    def go(self) -> None:
        """Trains, exports the best model, evaluates it and prints the summary."""
        model = self._make_model()
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        for line in self._lines(model, num_parameters):
            self.log.say(line)
        refuse_useless_blocks(model, self.setup)
        del model  # it is made again for training, which may have to let go of it
        started = perf_counter()
        trainer = self._train_to_the_end(num_parameters)
        seconds = perf_counter() - started
        best = export_best(self.setup, trainer.engine, trainer)
        evaluation = evaluate_on_test(self.setup, best)
        if self.setup.place.is_first:
            sum_up(
                self.setup,
                trainer,
                self.log,
                seconds=seconds,
                evaluation=evaluation,
                num_parameters=num_parameters,
                memory=self.meter.read(),
            )
        trainer.engine.destroy()

    def _train_to_the_end(self, num_parameters: int) -> Trainer:
        """Trains, and where memory runs out and it is allowed, goes on with smaller micro-batches."""
        config = self._engine_config(num_parameters)
        checkpoint = self._open_folder(config)
        while True:
            trainer, exhaustion = self._train(self._make_engine(config), checkpoint)
            if exhaustion is None:
                return trainer
            checkpoint = self._make_room(trainer, exhaustion)
            del trainer  # two engines at a time would not fit
            self._release()
            config = self._engine_config(num_parameters)

    def _engine_config(self, num_parameters: int) -> dict[str, Any]:
        """The settings as DeepSpeed takes them."""
        setup = self.setup
        return engine_config(setup.engine_settings, setup.batch, setup.total_steps, num_parameters)

    def _release(self) -> None:
        """Gives back the memory of what is no longer in use: DeepSpeed leaves cycles."""
        gc.collect()
        if self.setup.device.type == "cuda":
            torch.cuda.empty_cache()

    def _make_engine(self, config: dict[str, Any]) -> _Built:
        """Makes the model, attaches the passes and builds the engine, and says what they are."""
        setup, model = self.setup, self._make_model()
        passes = attach_passes(model, setup.engine_settings, setup.device)
        for line in passes.lines():
            self.log.say(line)
        engine = build_engine(model, config)
        self.log.say(
            f"engine: ZeRO stage {engine.zero_optimization_stage()}, {setup.engine_settings.precision}, "
            f"{engine.optimizer.__class__.__name__} on {device_name(setup.device)}"
        )
        return _Built(engine, passes)

    def _make_room(self, trainer: Trainer, exhaustion: Exhaustion) -> Path:
        """Takes smaller micro-batches after memory has run out; returns the checkpoint to go on from.

        Raises:
            ConfigError: It is not allowed or of no use; names settings to change.
        """
        if not may_halve(self.setup, exhaustion):
            self.log.warn(f"step {exhaustion.step}: out of memory; planning what would fit")
            raise explain(self.setup, exhaustion)
        batch = self.setup.batch.halved()
        self.log.warn(
            f"step {exhaustion.step}: out of memory in {exhaustion.phase}; going on with {batch}: windows and "
            "learning rates of every update stay, dropout masks are others"
        )
        trainer.engine.optimizer.zero_grad()
        trainer.save()
        checkpoint = find_checkpoint(self.folder, "auto")
        trainer.engine.destroy()
        self.setup = replace(self.setup, batch=batch)
        return checkpoint

    def _make_model(self) -> TemporalFusionTransformer:
        """Makes the model, in fp32 on the CPU, with the weights that training starts from."""
        setup = self.setup
        torch.manual_seed(setup.settings.training.seed)
        model = TemporalFusionTransformer(setup.size)
        quantiles = label_quantiles(setup.batch_builder(), setup.data.windows["train"], setup.quantiles)
        start_at_label_quantiles(model, quantiles)
        return model

    def _lines(self, model: TemporalFusionTransformer, num_parameters: int) -> list[str]:
        """Describes the model and the batch, and what in the settings is probably not meant."""
        setup, has_cuda = self.setup, self.setup.device.type == "cuda"
        return [
            *model_lines(model, num_parameters),
            f"batch: {setup.batch}",
            *engine_notes(setup.engine_settings, setup.batch, setup.total_steps, num_parameters, has_cuda),
        ]

    def _open_folder(self, config: dict[str, Any]) -> Path | None:
        """Makes the run folder, or checks that a resumed run is the one that it holds."""
        setup, resume = self.setup, self.setup.arguments.resume
        settings = {
            "arguments": asdict(setup.arguments),
            **setup.settings.model_dump(mode="json"),
            "layout": setup.data.preprocessor.layout.model_dump(mode="json"),
            "prepared": fingerprint(setup.data),
            "processes": setup.place.world_size,
            "engine": config,
            "ds_tft": setup.engine_settings.ds_tft.model_dump(mode="json"),
        }
        if resume is None:
            if setup.place.is_first:
                write_settings(self.folder, settings)
                self.log.say(f"settings: all of them are in {self.folder / 'settings.json'}")
            return None
        checkpoint = find_checkpoint(self.folder, resume)
        for line in check_same_run(self.folder, settings):
            self.log.say(f"changed since the run began: {line}")
        return checkpoint

    def _train(self, built: _Built, resumed_from: Path | None) -> tuple[Trainer, Exhaustion | None]:
        """Runs the loop, and says what happened where memory ran out in an update."""
        setup, log, engine = self.setup, self.log, built.engine
        windows = TrainingWindows(
            builder=setup.batch_builder(),
            train=setup.data.windows["train"],
            validation=setup.data.windows["validation"],
        )
        state = None
        if resumed_from is not None:
            state = load_checkpoint(engine, resumed_from, self.folder)
            log.rewind(state.step)
            log.say(f"resumed from {resumed_from}: step {state.step}, epoch {state.epoch}")
            if state.epoch >= setup.settings.training.epochs:
                log.say(f"nothing is left to train, {state.epoch} epochs are done; a larger --epochs goes on")
        events = setup.engine_settings.tensorboard
        with TensorBoardWriter(
            tensorboard_folder(events, self.folder),
            enabled=setup.place.is_first and events.enabled,
            resumed_step=None if state is None else state.step,
        ) as tensorboard:
            trainer = Trainer(
                engine,
                windows,
                setup.settings.training,
                setup.quantiles,
                setup.batch,
                self.folder,
                setup.place,
                self._recorders(built, tensorboard),
            )
            if state is not None:
                trainer.state = state
            for line in trainer.lines():
                log.say(line)
            log.start(trainer.total_steps, trainer.state.step)
            exhaustion = _exhaustion_of(trainer)
        log.close()  # takes the progress bar off before the summary; a later record opens the file again
        return trainer, exhaustion

    def _recorders(self, built: _Built, tensorboard: TensorBoardWriter) -> Recorders:
        """Where the loop writes what it sees."""
        setup, place = self.setup, self.setup.place
        suffix = "" if place.is_first else f"-process-{place.rank}"
        tracer = StepTracer(
            built.engine,
            setup.device,
            self.meter,
            TraceFiles(run_folder=self.folder, tensorboard=tensorboard, suffix=suffix),
            trace_settings(setup.engine_settings.ds_tft, setup.device),
            say=self.log.say,
            is_first=place.is_first,
        )
        return Recorders(
            log=self.log,
            tensorboard=tensorboard,
            meter=self.meter,
            tracer=tracer,
            recompute=built.passes.recompute,
        )


def _exhaustion_of(trainer: Trainer) -> Exhaustion | None:
    """Trains to the end; where an update runs out of memory, holds on to nothing but what to say about it."""
    try:
        trainer.train()
    except Exception as error:
        if not is_out_of_memory(error) or trainer.at is At.ELSEWHERE:
            raise
        phase = BATCH if trainer.at is At.BATCH else trainer.recorders.tracer.last_phase
        return Exhaustion(step=trainer.state.step + 1, phase=phase, message=first_line(error))
    return None


def _refuse_unavailable(arguments: TrainArguments) -> None:
    """Refuses flags whose feature does not exist yet, rather than train without it."""
    if arguments.use_int8:
        raise ConfigError("--use-int8: not available yet; leave it out")
