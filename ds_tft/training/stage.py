"""One stage of a run: a model is trained through DeepSpeed from the first update to the last.

A run has one stage in floating point and, where it is asked for, another that fine-tunes for INT8.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ds_tft.config.engine_config import engine_config
from ds_tft.memory.meter import MemoryMeter
from ds_tft.memory.out_of_memory import is_out_of_memory
from ds_tft.memory.passes import MemoryPasses
from ds_tft.memory.trace.failure import first_line
from ds_tft.memory.trace.files import TraceFiles
from ds_tft.memory.trace.settings import trace_settings
from ds_tft.memory.trace.tracer import StepTracer
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.training.checkpoint import find_checkpoint, load_checkpoint
from ds_tft.training.engine import build_engine
from ds_tft.training.exhaustion import BATCH, Exhaustion, explain, may_halve
from ds_tft.training.interruption import Interruption
from ds_tft.training.introduction import device_name
from ds_tft.training.log import RunLog
from ds_tft.training.setup import RunSetup
from ds_tft.training.tensorboard import TensorBoardWriter
from ds_tft.training.trainer import At, Recorders, Schedule, Trainer, TrainingWindows


class StageModel(NamedTuple):
    """A model with everything that is attached to it."""

    model: TemporalFusionTransformer
    passes: MemoryPasses
    schedule: Schedule | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlaces:
    """Where a stage writes."""

    folder: Path
    log: RunLog
    events: Path
    """Folder of the TensorBoard events."""


class _Built(NamedTuple):
    """A stage made ready to train."""

    engine: Any
    passes: MemoryPasses
    schedule: Schedule | None


class Stage:
    """Trains a model, and where memory runs out and it is allowed, goes on with smaller micro-batches.

    Args:
        setup: The run; its settings are those of the stage.
        places: Where the stage writes.
        meter: Of the whole run.
        build: Makes the model as training begins; called again where it starts anew with less memory.
        interruption: What may end the run early; None lets nothing.
    """

    def __init__(
        self,
        setup: RunSetup,
        places: StagePlaces,
        meter: MemoryMeter,
        build: Callable[[], StageModel],
        interruption: Interruption | None = None,
    ) -> None:
        self.setup = setup
        self._folder, self._log, self._events = places.folder, places.log, places.events
        self._meter = meter
        self._build = build
        self._interruption = interruption

    def config(self, num_parameters: int) -> dict[str, Any]:
        """The settings as DeepSpeed takes them."""
        setup = self.setup
        return engine_config(setup.engine_settings, setup.batch, setup.total_steps, num_parameters)

    def run(self, num_parameters: int, checkpoint: Path | None) -> Trainer:
        """Trains to the end; the trainer holds the engine.

        Args:
            num_parameters: Of the model.
            checkpoint: Where to go on from.

        Raises:
            UserError: Training cannot go on.
        """
        while True:
            trainer, exhaustion = self._train(self._make_engine(self.config(num_parameters)), checkpoint)
            if exhaustion is None:
                return trainer
            checkpoint = self._make_room(trainer, exhaustion)
            del trainer  # two engines at a time would not fit
            release(self.setup.device)

    def _make_engine(self, config: dict[str, Any]) -> _Built:
        """Makes the model and builds the engine, and says what they are."""
        setup = self.setup
        model, passes, schedule = self._build()
        for line in passes.lines():
            self._log.say(line)
        engine = build_engine(model, config)
        self._log.say(
            f"engine: ZeRO stage {engine.zero_optimization_stage()}, {setup.engine_settings.precision}, "
            f"{engine.optimizer.__class__.__name__} on {device_name(setup.device)}"
        )
        return _Built(engine, passes, schedule)

    def _make_room(self, trainer: Trainer, exhaustion: Exhaustion) -> Path:
        """Takes smaller micro-batches after memory has run out; returns the checkpoint to go on from.

        Raises:
            ConfigError: It is not allowed or of no use; names settings to change.
        """
        if not may_halve(self.setup, exhaustion):
            self._log.warn(f"step {exhaustion.step}: out of memory; planning what would fit")
            raise explain(self.setup, exhaustion)
        batch = self.setup.batch.halved()
        self._log.warn(
            f"step {exhaustion.step}: out of memory in {exhaustion.phase}; going on with {batch}: windows and "
            "learning rates of every update stay, dropout masks are others"
        )
        trainer.engine.optimizer.zero_grad()
        trainer.save()
        checkpoint = find_checkpoint(self._folder, "auto", self._log.warn)
        trainer.engine.destroy()
        self.setup = replace(self.setup, batch=batch)
        return checkpoint

    def _train(self, built: _Built, resumed_from: Path | None) -> tuple[Trainer, Exhaustion | None]:
        """Runs the loop, and says what happened where memory ran out in an update."""
        setup, log, engine = self.setup, self._log, built.engine
        windows = TrainingWindows(
            builder=setup.batch_builder(),
            train=setup.data.windows["train"],
            validation=setup.data.windows["validation"],
            time_kind=setup.data.preprocessor.layout.time_kind,
        )
        state = None
        if resumed_from is not None:
            state = load_checkpoint(engine, resumed_from, self._folder, log.say)
            log.rewind(state.step)
            log.say(f"resumed from {resumed_from}: step {state.step}, epoch {state.epoch}")
            if state.epoch >= setup.settings.training.epochs:
                log.say(f"nothing is left to train, {state.epoch} epochs are done; a larger --epochs goes on")
        with TensorBoardWriter(
            self._events,
            enabled=setup.place.is_first and setup.engine_settings.tensorboard.enabled,
            resumed_step=None if state is None else state.step,
        ) as tensorboard:
            trainer = Trainer(
                engine,
                windows,
                setup.settings.training,
                setup.quantiles,
                setup.batch,
                self._folder,
                setup.place,
                self._recorders(built, tensorboard),
                built.schedule,
                self._interruption,
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
            self._meter,
            TraceFiles(run_folder=self._folder, tensorboard=tensorboard, suffix=suffix),
            trace_settings(setup.engine_settings.ds_tft, setup.device),
            say=self._log.say,
            is_first=place.is_first,
        )
        return Recorders(
            log=self._log,
            tensorboard=tensorboard,
            meter=self._meter,
            tracer=tracer,
            recompute=built.passes.recompute,
        )


def release(device: torch.device) -> None:
    """Gives back the memory of what is no longer in use: DeepSpeed leaves cycles."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


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
