"""Where quantisation starts: the trained model folded, with its ranges measured on training windows.

It is kept in the folder of the stage, so that a resumed run goes on from the same one. A start that belongs to another
model, or was measured with other settings, is made anew, and so is one whose fine-tuning had epochs of another length:
positions in them mean other windows.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from ds_tft.config.int8 import Int8Plan
from ds_tft.data.sampler import evaluation_batches
from ds_tft.data.windows import WindowIndex
from ds_tft.export import read_weights, save_weights
from ds_tft.formatting import format_bytes
from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.fold import fold
from ds_tft.model.inputs import ModelInputs
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.quantization.attach import Covered, Quantisation, attach_quantisation
from ds_tft.quantization.calibration import calibrate
from ds_tft.quantization.coverage import describe_coverage
from ds_tft.quantization.layer_errors import layer_error_lines, measure_layer_errors, write_layer_errors
from ds_tft.training.checkpoint import CHECKPOINTS
from ds_tft.training.int8_settings import updates_per_epoch
from ds_tft.training.log import RunLog
from ds_tft.training.setup import RunSetup

START = "start.safetensors"
CHECKSUM = "checksum"
IDENTITY = "start.json"
LAYERS = "layers.json"
LAYER_WINDOWS = 64
"""Training windows on which the error of each module is measured."""


class Int8Start:
    """Makes the start, or finds the one that is there.

    Args:
        setup: The run.
        plan: What to quantise.
        covered: The same, as names of modules.
        folder: Of the stage.
        log: Of the stage.
    """

    def __init__(self, setup: RunSetup, plan: Int8Plan, covered: Covered, folder: Path, log: RunLog) -> None:
        self._setup, self._plan, self._covered = setup, plan, covered
        self._folder, self._log = folder, log

    def weights(self, source: TemporalFusionTransformer) -> dict[str, Tensor]:
        """Returns the folded weights and measured steps, in fp32 on the CPU. Every process must call this.

        Args:
            source: The trained model, on the CPU.

        Raises:
            ConfigError: A module sees no input.
        """
        model = fold(source).to(self._setup.device)
        stream_variable_selection(model)
        quantisation = attach_quantisation(model, self._covered)
        count = sum(parameter.numel() for parameter in model.parameters())
        self._log.say(f"int8: folded to {count:,} parameters, {format_bytes(4 * count)} in fp32")
        coverage = describe_coverage(model, quantisation, verbose=self._plan.verbose)
        self._log.console.print(coverage.table())
        identity = self._identity(source)
        if self._is_there(identity):
            self._log.say(f"int8: ranges as measured before, in {self._folder / START}")
            return read_weights(self._folder / START)
        self._begin_anew()
        self._calibrate(model, quantisation)
        if self._setup.place.is_first:
            save_weights(model, self._folder / START)
            self._measure_layers(model, quantisation)
            # Last: a start that has it is whole.
            whole = {**identity, CHECKSUM: self._checksum()}
            (self._folder / IDENTITY).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        torch.distributed.barrier()
        return read_weights(self._folder / START)

    def _identity(self, source: nn.Module) -> dict[str, Any]:
        """What the start follows from."""
        section = self._setup.engine_settings.ds_tft.int8
        return {
            "model": _digest(source.state_dict()),
            "weights": sorted(self._covered.weights),
            "inputs": sorted(self._covered.inputs),
            "calibration": section.calibration,
            "percentile": section.percentile,
            "calibration_windows": section.calibration_windows,
            "updates_per_epoch": updates_per_epoch(self._setup),
        }

    def _is_there(self, identity: Mapping[str, Any]) -> bool:
        """Whether the start in the folder is the one that would be made."""
        try:
            found = json.loads((self._folder / IDENTITY).read_text(encoding="utf-8"))
            return bool(found == {**identity, CHECKSUM: self._checksum()})
        except (OSError, ValueError):
            return False

    def _checksum(self) -> str:
        """Returns the checksum of the start's weights."""
        with (self._folder / START).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _begin_anew(self) -> None:
        """Makes room for a start; what was fine-tuned from another one is of no more use."""
        torch.distributed.barrier()  # all have looked
        if self._setup.place.is_first:
            if (self._folder / CHECKPOINTS).exists():
                self._log.warn(
                    "int8: the model or the settings of its quantisation have changed; what was fine-tuned "
                    f"before is removed from {self._folder}"
                )
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
        torch.distributed.barrier()

    def _calibrate(self, model: nn.Module, quantisation: Quantisation) -> None:
        """Measures the ranges."""
        section = self._setup.engine_settings.ds_tft.int8
        windows = self._setup.data.windows["train"].spaced(section.calibration_windows)
        report = calibrate(
            model, quantisation, self._batches(windows), section.calibration, section.percentile
        )
        self._log.say(f"calibration: {len(windows):,} training windows, {section.calibration}")
        for line in report.lines():
            self._log.say(line)

    def _measure_layers(self, model: nn.Module, quantisation: Quantisation) -> None:
        """Measures what each module costs."""
        sample = self._setup.data.windows["train"].spaced(LAYER_WINDOWS)
        errors = measure_layer_errors(model, quantisation, list(self._batches(sample, alone=True)))
        write_layer_errors(self._folder / LAYERS, errors)
        for line in layer_error_lines(errors):
            self._log.say(line)

    def _batches(self, windows: WindowIndex, *, alone: bool = False) -> Iterator[ModelInputs]:
        """Yields this process's share of windows, or all of them."""
        setup, builder = self._setup, self._setup.batch_builder()
        rank, world_size = (0, 1) if alone else (setup.place.rank, setup.place.world_size)
        for indices in evaluation_batches(len(windows), setup.evaluation_batch_size, rank, world_size):
            used = indices[indices >= 0]
            if len(used):
                yield builder.build(windows, used).inputs.to(setup.device, torch.float32)


def _digest(weights: Mapping[str, Tensor]) -> str:
    """Names weights by their values."""
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode())
        found.update(weights[name].contiguous().numpy().tobytes())
    return found.hexdigest()[:16]
