"""The second stage of a run with INT8: the best model is folded, calibrated, fine-tuned and exported as INT8.

Fine-tuning is ordinary training of the folded model, whose products are those of the INT8 model. It has its own
folder in the run folder, `int8`, with checkpoints and metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console

from ds_tft.config.int8 import Int8Plan, int8_plan
from ds_tft.export import (
    INT8_EXPORT,
    Int8Description,
    LoadedModel,
    read_export,
    write_export,
)
from ds_tft.forecast.evaluate import write_evaluation
from ds_tft.memory.meter import MemoryMeter
from ds_tft.memory.passes import MemoryPasses, attach_blocks, attach_streaming
from ds_tft.model.fold import build_folded
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.quantization.attach import Covered, Quantisation, attach_quantisation
from ds_tft.quantization.coverage import cover
from ds_tft.quantization.stored import build_stored
from ds_tft.training.checkpoint import CHECKPOINTS, find_checkpoint
from ds_tft.training.checkpoint_files import list_checkpoints
from ds_tft.training.conclusion import Weights, best_weights, evaluate_on_test
from ds_tft.training.int8_outcome import Int8Outcome
from ds_tft.training.int8_settings import fine_tuning_setup, fine_tuning_steps
from ds_tft.training.int8_start import Int8Start
from ds_tft.training.interruption import Interruption
from ds_tft.training.log import RunLog
from ds_tft.training.run_folder import tensorboard_folder
from ds_tft.training.setup import RunSetup
from ds_tft.training.stage import Stage, StageModel, StagePlaces, release

FOLDER = "int8"
"""Folder in the run folder."""
EVALUATION = "evaluation_int8.json"


class SwitchedOn:
    """Switches fake quantisation on when its step has come, and for every validation.

    Args:
        quantisation: What is switched.
        plan: The settings.
    """

    def __init__(self, quantisation: Quantisation, plan: Int8Plan) -> None:
        self._quantisation, self._plan = quantisation, plan

    def before_update(self, step: int) -> None:
        """Quantises what the schedule says for the update after `step` of them."""
        plan = self._plan
        self._quantisation.turn(weights=step >= plan.weight_offset, inputs=step >= plan.activation_offset)

    def before_validation(self) -> None:
        """Quantises everything."""
        self._quantisation.turn(weights=True, inputs=True)


def quantisable(
    setup: RunSetup, covered: Covered
) -> tuple[TemporalFusionTransformer, MemoryPasses, Quantisation]:
    """Builds a model that can be fine-tuned for INT8.

    Args:
        setup: The run, with the memory passes that its settings ask for.
        covered: The modules to quantise.

    Returns:
        The folded model, the passes, and its quantised modules, which are switched off.

    Raises:
        ConfigError: A pass cannot be carried out as asked for.
    """
    model, settings, device = build_folded(setup.size), setup.engine_settings, setup.device
    streaming = attach_streaming(model, settings, device)
    quantisation = attach_quantisation(model, covered)
    passes = MemoryPasses(streaming=streaming, recompute=attach_blocks(model, settings, device))
    return model, passes, quantisation


def check_int8(setup: RunSetup, say: Callable[[str], None]) -> None:
    """Makes sure before training that the second stage can do what it is asked for.

    Args:
        setup: The run.
        say: Writes a line to the log.

    Raises:
        ConfigError: A pattern or a block matches nothing, or quantisation would never switch on.
    """
    plan = int8_plan(setup.engine_settings)
    if plan is None:
        return
    steps = fine_tuning_steps(setup)
    quantisable(setup, cover(plan, build_folded(setup.size)))
    after = f"{steps:,} updates of fine-tuning" if steps else "no fine-tuning"
    say(f"int8: the trained model will be folded, calibrated and exported as INT8, with {after}")


def quantise_model(
    setup: RunSetup,
    source: LoadedModel,
    run_folder: Path,
    meter: MemoryMeter,
    console: Console,
    interruption: Interruption,
) -> Int8Outcome:
    """Quantises a trained model. Every process must call this.

    Args:
        setup: The run.
        source: The model, in floating point.
        run_folder: Where the stage makes its folder, and the export.
        meter: Of the whole run.
        console: Where to print.
        interruption: What may end the run early.

    Raises:
        Stopped: The run was asked to leave early, and has saved.
        UserError: Calibration or training cannot go on.
    """
    folder = run_folder / FOLDER
    with RunLog(folder, enabled=setup.place.is_first, console=console) as log:
        return _Int8Stage(setup, source, run_folder, log, meter, interruption).go()


class _Int8Stage:
    """The parts of the stage that belong together."""

    def __init__(
        self,
        setup: RunSetup,
        source: LoadedModel,
        run_folder: Path,
        log: RunLog,
        meter: MemoryMeter,
        interruption: Interruption,
    ) -> None:
        plan = int8_plan(setup.engine_settings)
        assert plan is not None
        self._plan: Int8Plan = plan
        self._setup, self._source = setup, source
        self._run_folder, self._folder = run_folder, run_folder / FOLDER
        self._log, self._meter, self._interruption = log, meter, interruption
        self._covered = cover(plan, build_folded(setup.size))
        self._start: Weights = {}
        """Folded weights and measured ranges, in fp32 on the CPU."""

    def go(self) -> Int8Outcome:
        """Does everything."""
        start = Int8Start(self._setup, self._plan, self._covered, self._folder, self._log)
        self._start = start.weights(self._source.model)
        weights, steps = self._fine_tune()
        if self._setup.place.is_first:
            self._export(weights, steps)
        torch.distributed.barrier()
        exported = read_export(self._run_folder / INT8_EXPORT)
        evaluation = evaluate_on_test(self._setup, exported.model.to(self._setup.device))
        if evaluation is not None and self._setup.place.is_first:
            write_evaluation(self._run_folder / EVALUATION, evaluation)
        assert exported.description.int8 is not None
        return Int8Outcome(
            folder=self._run_folder / INT8_EXPORT,
            line=exported.description.int8.line,
            bytes=exported.bytes,
            evaluation=evaluation,
        )

    def _fine_tune(self) -> tuple[Weights, int]:
        """Trains with fake quantisation; returns the best weights and the updates behind them.

        Where nothing was better than the start, these are its own weights: the engine had them in bf16, perhaps.
        """
        steps = fine_tuning_steps(self._setup)
        if not steps:
            return self._start, 0
        places = StagePlaces(
            folder=self._folder,
            log=self._log,
            events=tensorboard_folder(self._setup.engine_settings.tensorboard, self._run_folder) / FOLDER,
        )
        setup = fine_tuning_setup(self._setup)
        stage = Stage(setup, places, self._meter, self._build, self._interruption)
        count = sum(parameter.numel() for parameter in build_folded(self._setup.size).parameters())
        trainer = stage.run(count, self._checkpoint())
        best = trainer.state.best_step
        weights, behind = best_weights(trainer), trainer.state.step if best is None else best
        trainer.engine.destroy()
        del trainer
        release(self._setup.device)
        return (weights, behind) if behind else (self._start, 0)

    def _build(self) -> StageModel:
        """Makes the folded model with its ranges, ready to learn."""
        model, passes, quantisation = quantisable(self._setup, self._covered)
        model.load_state_dict(self._start)
        return StageModel(model, passes, SwitchedOn(quantisation, self._plan))

    def _checkpoint(self) -> Path | None:
        """Where a resumed run goes on; `None` where this stage had not saved anything."""
        if self._setup.arguments.resume is None or not list_checkpoints(self._folder / CHECKPOINTS):
            return None
        return find_checkpoint(self._folder, "auto", self._log.warn)

    def _export(self, weights: Weights, steps: int) -> None:
        """Writes the INT8 model."""
        int8 = Int8Description(
            weights=tuple(sorted(self._covered.weights)),
            inputs=tuple(sorted(self._covered.inputs)),
            calibration=self._setup.engine_settings.ds_tft.int8.calibration,
            fine_tuned_steps=steps,
        )
        description = self._source.description.model_copy(update={"int8": int8})
        model = build_stored(self._setup.size, self._covered, weights)
        write_export(self._run_folder / INT8_EXPORT, model, description)
