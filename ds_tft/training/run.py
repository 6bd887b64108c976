"""One training run from arguments to an evaluated, exported model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from ds_tft.config.engine_notes import engine_notes
from ds_tft.export import read_export
from ds_tft.memory.meter import MemoryMeter
from ds_tft.memory.passes import attach_passes
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.block_check import refuse_useless_blocks
from ds_tft.training.checkpoint import find_checkpoint
from ds_tft.training.conclusion import evaluate_on_test, export_best, sum_up
from ds_tft.training.engine import start_process_group
from ds_tft.training.environment import ProcessPlace
from ds_tft.training.int8 import check_int8, quantise_model
from ds_tft.training.int8_outcome import Int8Outcome
from ds_tft.training.interruption import Interruption
from ds_tft.training.introduction import introduce, model_lines
from ds_tft.training.log import RunLog
from ds_tft.training.memory_fit import fit_memory
from ds_tft.training.run_folder import (
    check_same_run,
    choose_folder,
    fingerprint,
    held_folder,
    refuse_used_folder,
    tensorboard_folder,
    write_settings,
)
from ds_tft.training.setup import RunSetup, set_up
from ds_tft.training.stage import Stage, StageModel, StagePlaces, release
from ds_tft.training.start import label_quantiles, start_at_label_quantiles
from ds_tft.training.trainer import Trainer


def train(arguments: TrainArguments, place: ProcessPlace) -> None:
    """Trains, evaluates and exports a model.

    Args:
        arguments: The command line.
        place: This process among those of the run.

    Raises:
        UserError: Something in the arguments, the settings or the data that the user can mend.
    """
    setup = set_up(arguments, place)
    start_process_group(setup.device)
    folder = choose_folder(arguments.output_dir)
    with (
        RunLog(folder, enabled=place.is_first) as log,
        held_folder(folder, log.warn),
        Interruption(arguments.max_seconds) as interruption,
    ):
        if arguments.resume is None:
            refuse_used_folder(folder)
        introduce(log, setup)
        _Run(fit_memory(setup, log.say), folder, log, interruption).go()


class _Run:
    """The parts of one run that belong together once everything is settled."""

    def __init__(self, setup: RunSetup, folder: Path, log: RunLog, interruption: Interruption) -> None:
        self.setup = setup
        self.folder = folder
        self.log = log
        self.interruption = interruption
        self.meter = MemoryMeter(setup.device)

    def go(self) -> None:
        """Trains, exports the best model, evaluates it, quantises it where asked for, and prints the summary."""
        model = self._make_model()
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        for line in self._lines(model, num_parameters):
            self.log.say(line)
        refuse_useless_blocks(model, self.setup)
        check_int8(self.setup, self.log.say)
        del model  # it is made again for training, which may have to let go of it
        started = perf_counter()
        trainer = self._train(num_parameters)
        seconds = perf_counter() - started
        best = export_best(self.setup, trainer)
        evaluation = evaluate_on_test(self.setup, best)
        outcome = trainer.outcome
        trainer.engine.destroy()
        del trainer, best  # two engines at a time would not fit
        int8 = self._quantise()
        if self.setup.place.is_first:
            sum_up(
                self.setup,
                outcome,
                self.log,
                seconds=seconds,
                evaluation=evaluation,
                int8=int8,
                num_parameters=num_parameters,
                memory=self.meter.read(),
            )

    def _train(self, num_parameters: int) -> Trainer:
        """Trains in floating point."""
        places = StagePlaces(
            folder=self.folder,
            log=self.log,
            events=tensorboard_folder(self.setup.engine_settings.tensorboard, self.folder),
        )
        stage = Stage(self.setup, places, self.meter, self._build, self.interruption)
        trainer = stage.run(num_parameters, self._open_folder(stage.config(num_parameters)))
        self.setup = stage.setup
        return trainer

    def _build(self) -> StageModel:
        """Makes the model and attaches the passes."""
        model = self._make_model()
        return StageModel(model, attach_passes(model, self.setup.engine_settings, self.setup.device))

    def _quantise(self) -> Int8Outcome | None:
        """Goes on to INT8 where the settings ask for it."""
        if not self.setup.engine_settings.quantises:
            return None
        release(self.setup.device)
        torch.distributed.barrier()  # the first process has written the export
        source = read_export(self.folder)
        return quantise_model(
            self.setup, source, self.folder, self.meter, self.log.console, self.interruption
        )

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
        if setup.engine_settings.compression_training is not None:
            section = setup.engine_settings.compression_training
            settings["compression_training"] = section.model_dump(mode="json")
        if resume is None:
            if setup.place.is_first:
                write_settings(self.folder, settings)
                self.log.say(f"settings: all of them are in {self.folder / 'settings.json'}")
            return None
        checkpoint = find_checkpoint(self.folder, resume, self.log.warn)
        for line in check_same_run(self.folder, settings):
            self.log.say(f"changed since the run began: {line}")
        return checkpoint
