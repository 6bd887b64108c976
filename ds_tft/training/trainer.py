"""The loop: updates, validations, early stopping, checkpoints.

Everything that decides what the next update does is in `TrainingState`, in the engine, or a pure function of
(seed, epoch, update): a run can be left and taken up again at any update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray

from ds_tft.config.batch import BatchSizes
from ds_tft.config.run import TrainingSettings
from ds_tft.data.batches import Batch, BatchBuilder, Loader
from ds_tft.data.sampler import EpochPlan
from ds_tft.data.schema import TimeKind
from ds_tft.data.windows import WindowIndex
from ds_tft.errors import ConfigError, Stopped, UserError
from ds_tft.export import save_weights
from ds_tft.forecast.metrics import level_name
from ds_tft.memory.meter import MemoryMeter
from ds_tft.memory.recompute_report import RecomputeReport
from ds_tft.memory.trace.timeline import BACKWARD, FORWARD, OPTIMIZER
from ds_tft.memory.trace.tracer import StepTracer
from ds_tft.model.loss import pinball_loss
from ds_tft.training.adam8bit import check_8bit
from ds_tft.training.checkpoint import BEST_WEIGHTS, CHECKPOINTS, save_checkpoint
from ds_tft.training.checkpoint_files import list_checkpoints
from ds_tft.training.engine import whole_weights
from ds_tft.training.environment import ProcessPlace
from ds_tft.training.interruption import Cause, Interruption
from ds_tft.training.log import RunLog
from ds_tft.training.outcome import TrainingOutcome
from ds_tft.training.recent import Recent, Timing
from ds_tft.training.scalars import memory_scalars
from ds_tft.training.state import TrainingState
from ds_tft.training.tensorboard import TensorBoardWriter
from ds_tft.training.validation import ValidationLoss, validation_loss
from ds_tft.training.window_names import describe_windows


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingWindows:
    """What the loop learns from and is checked on."""

    builder: BatchBuilder
    train: WindowIndex
    validation: WindowIndex
    time_kind: TimeKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorders:
    """Where the loop writes what it sees."""

    log: RunLog
    tensorboard: TensorBoardWriter
    meter: MemoryMeter
    tracer: StepTracer
    recompute: RecomputeReport | None = None
    """Counts what ran again in backward; `None` where nothing does."""


class Schedule(Protocol):
    """What changes in the model itself while it is trained."""

    def before_update(self, step: int) -> None:
        """Makes the model what it is in the update after `step` of them."""

    def before_validation(self) -> None:
        """Makes the model what will be exported."""


class At(Enum):
    """Where the loop is."""

    BATCH = "building the batches of an update"
    UPDATE = "an update"
    ELSEWHERE = "validation, saving and the rest"


class Trainer:
    """Trains a DeepSpeed engine on windows until the epochs are over or nothing improves."""

    def __init__(
        self,
        engine: Any,
        windows: TrainingWindows,
        settings: TrainingSettings,
        quantiles: tuple[float, ...],
        batch: BatchSizes,
        folder: Path,
        place: ProcessPlace,
        recorders: Recorders,
        schedule: Schedule | None = None,
        interruption: Interruption | None = None,
    ) -> None:
        """Prepares the loop; `train` runs it.

        Args:
            engine: The DeepSpeed engine around the model.
            windows: Training and validation windows.
            settings: The `training` section.
            quantiles: The model's levels, ascending.
            batch: Sizes of an update.
            folder: The run folder.
            place: This process among those of the run.
            recorders: Log, TensorBoard and meter.
            schedule: What changes in the model; with one, the model as it starts may be the best.
            interruption: What may end the run early; None lets nothing.
        """
        self.engine = engine
        self.windows = windows
        self.settings = settings
        self.quantiles = quantiles
        self.batch = batch
        self.folder = folder
        self.place = place
        self.recorders = recorders
        self.schedule = schedule
        self.interruption = interruption or Interruption()
        self.plan = EpochPlan(
            num_windows=len(windows.train),
            global_batch=batch.global_batch,
            windows_per_epoch=settings.windows_per_epoch,
            seed=settings.seed,
        )
        self.window_weights = windows.builder.window_weights(windows.train)  # (n,)
        self.validation = windows.validation.spaced(settings.validation_windows)
        self.state = TrainingState()
        self.at = At.ELSEWHERE
        """Where the loop is, or where it failed."""
        self.first_step = 0
        """Step that this process began at."""
        self.timing = Timing()
        self._optimizer_checked = False
        self._saved_step: int | None = None
        self._recent = Recent()
        self._rate = 0.0  # of the last update

    @property
    def total_steps(self) -> int:
        """Updates of the whole run when nothing stops it early."""
        return self.plan.updates_per_epoch * self.settings.epochs

    @property
    def outcome(self) -> TrainingOutcome:
        """How far it went, and how fast."""
        return TrainingOutcome(
            folder=self.folder, state=self.state, timing=self.timing, first_step=self.first_step
        )

    def lines(self) -> list[str]:
        """Describes what the run learns from and is checked on, for the log."""
        used, there = len(self.validation), len(self.windows.validation)
        if not there:
            return [*self.plan.lines(), "validation: off, there are no validation windows"]
        return [*self.plan.lines(), f"validation: {used:,} of {there:,} windows while training"]

    @property
    def _epoch_of_step(self) -> int:
        """Epoch, counted from 1, that the last update belongs to."""
        return max(self.state.epoch + (self.state.update > 0), 1)

    def train(self) -> TrainingState:
        """Runs to the end and returns the final state.

        Raises:
            Stopped: It was asked to leave early, and has saved.
            UserError: It cannot go on.
        """
        with self.interruption.listening():
            self._train()
        return self.state

    def _train(self) -> None:
        """Runs to the end."""
        self.first_step = self.state.step
        self.engine.train()
        if self.state.step == 0 and len(self.validation):
            self._validate()  # before anything is learnt: there is memory for it, and a number to start from
        self.state.stopped_early = self._is_out_of_patience()  # a resumed run may have been given more
        self._recent = Recent(self.state.unlogged_losses)
        while self.state.epoch < self.settings.epochs and not self.state.stopped_early:
            self._train_epoch()
        for line in self.recorders.tracer.lines():
            self.recorders.log.say(line)

    def _train_epoch(self) -> None:
        """Does the rest of the current epoch."""
        state, updates = self.state, self.plan.updates_per_epoch
        loader = Loader(
            self.windows.builder,
            self.windows.train,
            workers=self.settings.workers,
            pin_memory=self.engine.device.type == "cuda",
        )
        micro_batches = self.plan.micro_batches(state.epoch, self.batch, self.place.rank)  # (U*A, B)
        batches = loader.batches(micro_batches, start=state.update * self.batch.accumulation)
        windows = self.plan.updates(state.epoch)  # (U, global batch)
        while state.update < updates:
            self.at = At.BATCH
            micro = [next(batches) for _ in range(self.batch.accumulation)]
            self.at = At.UPDATE
            with self.recorders.tracer.update(state.step + 1):
                self._update(micro, windows[state.update])
            self.at = At.ELSEWHERE
            self._recent.restart_clock()  # the time in which a trace was written
            end_of_epoch = state.update == updates
            if end_of_epoch:
                state.epoch, state.update = state.epoch + 1, 0
            self._look_up(end_of_epoch)
            self._leave_if_asked()
            if end_of_epoch or state.stopped_early:
                return

    def _look_up(self, end_of_epoch: bool) -> None:
        """Logs, validates and saves, where one of them is due after this update."""
        settings, step = self.settings, self.state.step
        self.recorders.log.advance(step)
        logs = end_of_epoch or _is_due(step, settings.log_every_steps)
        if logs:
            self._log_progress()
        if len(self.validation) and (end_of_epoch or _is_due(step, settings.validate_every_steps)):
            self._validate()
        if self.state.stopped_early and not logs:
            self._log_progress()
        if end_of_epoch or self.state.stopped_early or _is_due(step, settings.checkpoint_every_steps):
            self.save()

    def save(self) -> None:
        """Saves everything from which the run can go on."""
        self.state.unlogged_losses = self._recent.losses()
        save_checkpoint(self.engine, self.folder, self.state, self.settings.keep_checkpoints)
        self._saved_step = self.state.step
        self._recent.restart_clock()

    def _leave_if_asked(self) -> None:
        """Saves and leaves, where the run should.

        Raises:
            Stopped: It should.
        """
        cause = self.interruption.requested(self.engine.device)
        if cause is Cause.NONE:
            return
        if self._saved_step != self.state.step:
            self.save()
        raise Stopped(
            f"stopped at step {self.state.step}: {self.interruption.describe(cause)}; everything is saved in "
            f"'{self.folder / CHECKPOINTS}', --resume auto goes on",
            cause.exit_code,
        )

    def _update(self, micro_batches: list[Batch], windows: NDArray[np.int64]) -> None:
        """One optimizer update over its windows (global batch,); this process has `micro_batches` of them."""
        state, recompute = self.state, self.recorders.recompute
        if self.schedule is not None:
            self.schedule.before_update(state.step)
        if recompute is not None:
            recompute.reset()
        used = windows[windows >= 0]
        total_weight = float(self.window_weights[used].sum())
        # DeepSpeed divides by the micro-batches and averages over the processes; undone here, so that an
        # update is the weighted mean over its windows, however they are spread.
        factor = self.batch.accumulation * self.batch.world_size / max(total_weight, math.ulp(0.0))
        loss = torch.zeros((), device=self.engine.device)
        self._rate = self.engine.get_lr()[0]
        for position, batch in enumerate(micro_batches):
            torch.manual_seed(self._dropout_seed(position))
            loss += self._forward_backward(batch, factor)
            with self.recorders.tracer.phase(OPTIMIZER):
                self.engine.step()
        if recompute is not None and state.step == self.first_step:
            self._check_effect(recompute)
            self.recorders.log.say(f"step {state.step + 1}: {recompute.step_line()}")
        self._check_optimizer()
        state.step += 1
        state.update += 1
        self._count_skips(micro_batches, used)
        self._recent.add(loss / (self.batch.accumulation * self.batch.world_size), len(used))

    def _check_optimizer(self) -> None:
        """Makes sure once, as soon as there are states, that an 8-bit optimizer is one."""
        if self._optimizer_checked:
            return
        line = check_8bit(self.engine)
        if line is not None:
            self._optimizer_checked = True
            self.recorders.log.say(f"step {self.state.step + 1}: {line}")

    def _check_effect(self, recompute: RecomputeReport) -> None:
        """Makes sure that what was asked for did something.

        Raises:
            ConfigError: It did not, with the micro-batch that was given. One that was chosen is not the user's
                mistake: there it is said.
        """
        try:
            recompute.check_effect()
        except ConfigError as error:
            if not self.batch.chosen:
                raise
            self.recorders.log.warn(f"with the micro-batch that was chosen: {error}")

    def _forward_backward(self, batch: Batch, factor: float) -> torch.Tensor:
        """Returns the loss of one micro-batch, times `factor`, after its backward."""
        device = self.engine.device
        dtype = next(self.engine.module.parameters()).dtype
        tracer = self.recorders.tracer
        with tracer.phase(FORWARD):
            batch = batch.to(device, dtype)
            prediction = self.engine(batch.inputs)  # (B, K, O, Q)
            total, _ = pinball_loss(prediction, batch.labels, batch.weights, self.quantiles)
            loss = total * factor
        with tracer.phase(BACKWARD):
            self.engine.backward(loss)
        return loss.detach()

    def _dropout_seed(self, position: int) -> int:
        """Seed of one micro-batch: the same for the same windows, whichever process has them."""
        part = position * self.batch.world_size + self.place.rank
        seed = np.random.SeedSequence([self.settings.seed, self.state.step, part])
        return int(seed.generate_state(1, np.uint64)[0] >> np.uint64(1))

    def _count_skips(self, micro_batches: list[Batch], used: NDArray[np.int64]) -> None:
        """Notices updates that were left out for a non-finite gradient.

        Raises:
            UserError: When too many were left out in a row.
        """
        state, skipped = self.state, self.engine.skipped_steps
        if skipped == state.skipped_steps:
            state.skipped_in_a_row = 0
            return
        state.skipped_in_a_row += skipped - state.skipped_steps
        state.skipped_steps = skipped
        windows = self.windows
        where = describe_windows(windows.builder, windows.train, used, windows.time_kind)
        self.recorders.log.warn(
            f"step {state.step}: update left out, its loss or a gradient is not finite ({where})"
        )
        # Loss scaling in fp16 finds its scale by leaving out updates: those are expected.
        if state.skipped_in_a_row >= self.settings.max_nonfinite_steps and not self.engine.fp16_enabled():
            raise self._nonfinite_error(micro_batches, where)

    def _nonfinite_error(self, micro_batches: list[Batch], where: str) -> UserError:
        """Says what the last update looked like and what there is to go on from."""
        state, kept = self.state, [path.name for path in list_checkpoints(self.folder / CHECKPOINTS)[-1:]]
        if state.best_step is not None:
            kept.append(f"{BEST_WEIGHTS} of step {state.best_step}")
        label = max(float(batch.labels.abs().max()) for batch in micro_batches)
        with whole_weights(self.engine) as model:
            weight = max(float(parameter.detach().abs().max()) for parameter in model.parameters())
        return UserError(
            f"training: loss or gradients not finite, got {state.skipped_in_a_row} such updates in a row at "
            f"step {state.step}, with weights up to {weight:.3g} and scaled labels up to {label:.3g}; "
            f"lower the learning rate or look for extreme values in the data, the last in {where} "
            f"(kept in '{self.folder}': {', '.join(kept) or 'nothing yet'})"
        )

    def _log_progress(self) -> None:
        """Writes what happened since the last time."""
        losses, timing = self._recent.losses(), self._recent.timing
        self._recent = Recent()
        self.timing = self.timing + timing
        state, scalars = self.state, {}
        scalars["loss/train"] = sum(losses) / len(losses)
        scalars["optimizer/learning_rate"] = self._rate
        if (norm := self.engine.get_global_grad_norm()) is not None:
            scalars["optimizer/gradient_norm"] = float(norm)
        scalars["optimizer/skipped_steps"] = float(state.skipped_steps)
        scalars["throughput/windows_per_second"] = timing.windows_per_second
        tracer = self.recorders.tracer
        scalars |= memory_scalars(self.recorders.meter.read(), tracer.take_phase_peaks(), tracer.states)
        if self.recorders.recompute is not None:
            scalars |= self.recorders.recompute.scalars()
            for line in self.recorders.recompute.profile_lines():
                self.recorders.log.say(f"step {state.step}: {line}")
        self.recorders.tensorboard.write(state.step, scalars)
        self.recorders.log.progress(state.step, self._epoch_of_step, scalars, timing.seconds_per_step)

    def _validate(self) -> None:
        """Validates, keeps the best weights, and decides whether to stop."""
        if self.schedule is not None:
            self.schedule.before_validation()
        result = validation_loss(
            self.engine.module,
            self.windows.builder,
            self.validation,
            self.quantiles,
            self.settings.evaluation_batch_size or self.batch.micro_batch,
            self.place,
        )
        counts = self.state.step > 0 or self.schedule is not None
        best = counts and self.state.record_validation(result.mean)
        if best:
            with whole_weights(self.engine) as model:
                if self.place.is_first:
                    save_weights(model, self.folder / BEST_WEIGHTS)
        self.state.stopped_early = self._is_out_of_patience()
        self._log_validation(result, best)
        self._recent.restart_clock()

    def _is_out_of_patience(self) -> bool:
        """Whether enough validations in a row brought no improvement."""
        patience = self.settings.patience
        return patience > 0 and self.state.validations_without_improvement >= patience

    def _log_validation(self, result: ValidationLoss, best: bool) -> None:
        """Writes one validation."""
        scalars = {"loss/validation": result.mean}
        for level, loss in zip(self.quantiles, result.per_quantile, strict=True):
            scalars[f"loss/validation_{level_name(level)}"] = loss
        self.recorders.tensorboard.write(self.state.step, scalars)
        self.recorders.log.validation(self.state.step, self._epoch_of_step, scalars, best)
        if self.state.stopped_early:
            self.recorders.log.say(
                f"stopped early: {self.settings.patience} validations without improvement over "
                f"step {self.state.best_step}"
            )


def _is_due(step: int, every: int | None) -> bool:
    """True at multiples of a cadence that is set."""
    return every is not None and step % every == 0
