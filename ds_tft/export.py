"""A trained model as files that are enough to predict anywhere: weights in safetensors, the rest in JSON.

Nothing in them is executed when they are read.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import ds_tft
from ds_tft.config.run import RunSettings
from ds_tft.data.preprocessor import Preprocessor
from ds_tft.data.split import SplitBounds
from ds_tft.errors import ConfigError
from ds_tft.model.inputs import ModelSize
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.model_size import derive_size
from ds_tft.quantization.attach import Covered
from ds_tft.quantization.stored import build_stored

FORMAT = 1
WEIGHTS = "weights.safetensors"
DESCRIPTION = "model.json"
EXPORT = "export"
"""Folder of the floating-point model in a run folder."""
INT8_EXPORT = "export_int8"
"""Folder of the INT8 model in a run folder."""


class Int8Description(BaseModel):
    """What makes a model an INT8 one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weights: tuple[str, ...]
    """Modules whose weights are stored as INT8."""
    inputs: tuple[str, ...]
    """Those of them whose inputs are rounded to INT8 too."""
    calibration: str
    """How the ranges of the inputs were measured."""
    fine_tuned_steps: int
    """Updates of quantisation-aware training behind the weights; 0 where they were only rounded."""

    @property
    def line(self) -> str:
        """Says it in a few words."""
        tuned = (
            f"fine-tuned for {self.fine_tuned_steps:,} steps" if self.fine_tuned_steps else "not fine-tuned"
        )
        return f"INT8, {tuned}"


class ModelDescription(BaseModel):
    """Everything but the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    ds_tft_version: str = ds_tft.__version__
    settings: RunSettings
    size: ModelSize
    preprocessor: Preprocessor
    bounds: SplitBounds
    """Periods of training, validation and test."""
    step: int
    """Optimizer updates behind the weights."""
    validation_loss: float | None
    """Mean pinball loss in scaled units; None where there was no validation."""
    batch_size: int = Field(default=64, ge=1)
    """Windows per forward of the evaluation after training; later ones use it too unless told otherwise."""
    int8: Int8Description | None = None
    """`None` where the weights are in floating point."""

    @model_validator(mode="after")
    def _check(self) -> ModelDescription:
        """The parts must fit each other; a file that was edited may have parts that do not."""
        if self.preprocessor.window != self.settings.window:
            raise ValueError("preprocessor.window and settings.window differ")
        derived = asdict(derive_size(self.preprocessor, self.settings))
        for name, value in asdict(self.size).items():
            if value != derived[name]:
                raise ValueError(f"size.{name} is {value}, and {derived[name]} follows from the rest")
        return self


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to forecast, on the CPU, in evaluation mode."""

    model: TemporalFusionTransformer
    """An INT8 model is in the folded form and streams."""
    description: ModelDescription

    @property
    def bytes(self) -> int:
        """Memory of its weights."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.model.state_dict().values())


def save_weights(model: nn.Module, path: Path) -> None:
    """Writes the weights, those in floating point in fp32, under their names; replaces a file in one step."""
    weights = {
        name: tensor.detach().to("cpu", torch.float32 if tensor.is_floating_point() else None).contiguous()
        for name, tensor in model.state_dict().items()
    }
    unfinished = path.with_name(f".{path.name}.unfinished")
    save_file(weights, str(unfinished))
    unfinished.chmod(0o666 & ~_umask())  # safetensors makes it readable by its owner only
    os.replace(unfinished, path)


def _umask() -> int:
    """What new files of this process may not be."""
    umask = os.umask(0)  # there is no way to ask without setting it
    os.umask(umask)
    return umask


def load_weights(model: nn.Module, path: Path) -> None:
    """Reads weights into a model of the same shape.

    Raises:
        ConfigError: The file cannot be read, or does not fit the model.
    """
    weights = read_weights(path)
    try:
        model.load_state_dict(weights, strict=True)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise ConfigError(
            f"{path}: weights do not fit {DESCRIPTION}, got {reason}; export the model again"
        ) from None


def read_weights(path: Path) -> dict[str, Tensor]:
    """Reads weights by name.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        return load_file(str(path))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give a run folder or an export of a finished run") from None
    except (SafetensorError, OSError) as error:
        raise ConfigError(
            f"{path}: not readable as safetensors, got {error}; export the model again"
        ) from None


def write_export(folder: Path, model: nn.Module, description: ModelDescription) -> None:
    """Writes an export folder and proves that it loads.

    Args:
        folder: Where to; made if it is not there.
        model: Holds the weights to export.
        description: The rest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{DESCRIPTION}.unfinished"
    unfinished.write_text(description.model_dump_json(indent=1), encoding="utf-8")
    save_weights(model, folder / WEIGHTS)
    os.replace(unfinished, folder / DESCRIPTION)
    read_export(folder)


def find_export(path: Path) -> Path:
    """Returns the export folder: the path itself, or the one inside a run folder.

    Raises:
        ConfigError: There is no export.
    """
    held = [path / name for name in (EXPORT, INT8_EXPORT) if (path / name).is_dir()]
    folder = held[0] if held else path
    file = folder / DESCRIPTION
    if not file.is_file():
        raise ConfigError(
            f"{path}: no exported model, looked for '{file}'; give the folder of a finished run or its export"
        )
    return folder


def read_export(path: Path) -> LoadedModel:
    """Loads a model from an export folder, or from a run folder that holds one.

    Raises:
        ConfigError: There is no export, or it cannot be used.
    """
    folder = find_export(path)
    description = _read_description(folder / DESCRIPTION)
    model = _empty_model(description)
    load_weights(model, folder / WEIGHTS)
    return LoadedModel(model=model.eval(), description=description)


def _empty_model(description: ModelDescription) -> TemporalFusionTransformer:
    """Builds the model that the weights belong to."""
    int8 = description.int8
    if int8 is None:
        return TemporalFusionTransformer(description.size)
    covered = Covered(weights=frozenset(int8.weights), inputs=frozenset(int8.inputs))
    return build_stored(description.size, covered)


def _read_description(file: Path) -> ModelDescription:
    """Reads the description.

    Raises:
        ConfigError: It cannot be read, or another release wrote it.
    """
    try:
        content = file.read_bytes()
        found = json.loads(content).get("format")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{file}: not readable as JSON, got {error}; export the model again") from None
    # Before anything else is looked at: another format may well have other keys.
    if found != FORMAT:
        raise ConfigError(
            f"{file}: format {found}, this release reads {FORMAT}; use the release that wrote it"
        )
    try:
        return ModelDescription.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{file}: {where or 'top level'}: {reason}; export the model again") from None
