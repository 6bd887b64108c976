"""Trained models that are quantised and fine-tuned in this process, and what that left behind."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import ROLES, WINDOW, panel, write
from loops import MODEL, PLACE, series_of
from safetensors.torch import load_file
from torch import Tensor

from ds_tft.export import INT8_EXPORT, WEIGHTS
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.checkpoint import BEST_WEIGHTS, CHECKPOINTS
from ds_tft.training.checkpoint_files import list_checkpoints
from ds_tft.training.int8 import FOLDER
from ds_tft.training.int8_start import IDENTITY, START
from ds_tft.training.quantise import quantise
from ds_tft.training.run import train

Weights = dict[str, Tensor]
INT8 = "deepspeed.ds_tft.int8."
QUIET = "deepspeed.tensorboard.enabled=false"
BATCH = 16
SMALL = {"hidden_size": 32, "num_heads": 2, "dropout": 0.1}
"""With 64 windows, large enough for inputs of blocks to be offloaded."""
TRAINING = {"epochs": 1, "log_every_steps": 1, "patience": 0}


def make_files(folder: Path, columns: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Path:
    """Writes data, a small panel unless given, and a run JSON into a folder."""
    config = {"data": ROLES, "window": WINDOW, "model": MODEL, "training": TRAINING}
    write(folder / "panel.parquet", panel() if columns is None else columns)
    (folder / "run.json").write_text(json.dumps(config | sections))
    return folder


def train_run(files: Path, output: Path, *overrides: str, **given: Any) -> Path:
    """Trains on those files; returns the run folder."""
    arguments = {
        "parquet": str(files / "panel.parquet"),
        "config": str(files / "run.json"),
        "batch_size": BATCH,
    }
    arguments |= {"output_dir": str(output), "overrides": (QUIET, *overrides)}
    train(TrainArguments(**arguments | given), PLACE)
    return output


def quantise_run(
    files: Path, model: Path, output: Path, *overrides: str, start: Path | None = None, **given: Any
) -> Path:
    """Quantises a trained model as `launch/quantise.py` does; returns the run folder.

    With `start`, the run folder of another one, the ranges measured there are found here too.
    """
    if start is not None:
        (output / FOLDER).mkdir(parents=True)
        for name in (START, IDENTITY):
            shutil.copy(start / FOLDER / name, output / FOLDER / name)
    arguments: dict[str, Any] = {"parquet": str(files / "panel.parquet"), "batch_size": BATCH}
    arguments |= {"output_dir": str(output), "overrides": (QUIET, *overrides)}
    quantise(str(model), TrainArguments(**arguments | given), PLACE)
    return output


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a fine-tuning left in its run folder."""

    losses: list[float]
    """Of every update."""
    start: Weights
    """Folded weights and ranges, before the first update."""
    last: Weights
    """The same after the last one, as the model had them: in bf16 where it was trained in bf16."""
    best: Weights | None
    """The same of the best validation; `None` without validations."""
    export: Weights
    """Codes and scales."""


def tuned(output: Path) -> Tuned:
    """Reads a run folder."""
    folder = output / FOLDER
    best = folder / BEST_WEIGHTS
    last = list_checkpoints(folder / CHECKPOINTS)[-1] / "mp_rank_00_model_states.pt"
    return Tuned(
        losses=series_of(folder, "loss/train"),
        start=load_file(folder / START),
        last=torch.load(last, weights_only=False)["module"],
        best=load_file(best) if best.exists() else None,
        export=load_file(output / INT8_EXPORT / WEIGHTS),
    )


def differing(one: Weights, other: Weights) -> list[str]:
    """Names of tensors that are not equal bit by bit."""
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def gap(start: Weights, end: Weights, other: Weights) -> float:
    """Norm of the difference of two results, relative to how far the first one is from the start."""
    names = [name for name in start if name in end and not name.endswith("input_step")]
    way = torch.cat([(end[name].float() - start[name]).flatten() for name in names])
    off = torch.cat([(end[name].float() - other[name].float()).flatten() for name in names])
    return float(off.norm() / way.norm())
