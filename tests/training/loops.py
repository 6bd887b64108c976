"""A trainer in this process, small enough for a test, and what it left behind."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch
from datasets import panel, prepare, settings_of
from rich.console import Console

from ds_tft.config.batch import resolve_batch
from ds_tft.config.deepspeed import engine_config, read_deepspeed_settings
from ds_tft.config.run import RunSettings
from ds_tft.data.batches import BatchBuilder
from ds_tft.data.prepare import TrainingData
from ds_tft.memory.chunks import StreamingSettings
from ds_tft.memory.meter import MemoryMeter
from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.memory.trace.files import TraceFiles
from ds_tft.memory.trace.settings import TraceSettings
from ds_tft.memory.trace.tracer import StepTracer
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.model_size import derive_size
from ds_tft.training.engine import build_engine
from ds_tft.training.environment import ProcessPlace
from ds_tft.training.log import RunLog
from ds_tft.training.tensorboard import TensorBoardWriter
from ds_tft.training.trainer import Recorders, Trainer, TrainingWindows

PLACE = ProcessPlace(0, 0, 1)
QUANTILES = (0.1, 0.5, 0.9)
MODEL = {"hidden_size": 8, "num_heads": 2, "dropout": 0.1}
CONSTANT_RATE = "deepspeed.scheduler=null"


def make_data(folder: Path, **sections: dict[str, Any]) -> TrainingData:
    """Prepared data of a small panel, which has 108 training windows and 21 for validation."""
    return prepare(folder, panel(), **sections)


def make_trainer(
    folder: Path,
    data: TrainingData,
    *,
    deepspeed: tuple[str, ...] = (CONSTANT_RATE,),
    batch_size: int = 16,
    model: dict[str, Any] = MODEL,
    **training: Any,
) -> Trainer:
    """A trainer whose record of every step is in `folder`.

    `deepspeed` holds `--set` arguments for the DeepSpeed JSON, `training` settings of that section.
    """
    folder.mkdir(exist_ok=True)
    defaults = {"epochs": 1, "log_every_steps": 1, "patience": 0}
    settings: RunSettings = settings_of(model=model, training=defaults | training)
    engine_settings, _ = read_deepspeed_settings(None, deepspeed)
    batch = resolve_batch(engine_settings, 1, batch_size)
    torch.manual_seed(settings.training.seed)
    network = TemporalFusionTransformer(derive_size(data.preprocessor, settings))
    if engine_settings.ds_tft.streaming:
        stream_variable_selection(network, StreamingSettings())
    windows = TrainingWindows(
        builder=BatchBuilder(data.table, data.preprocessor.window, data.preprocessor.target_scaler),
        train=data.windows["train"],
        validation=data.windows["validation"],
        time_kind=data.preprocessor.layout.time_kind,
    )
    used = min(len(windows.train), settings.training.windows_per_epoch or len(windows.train))
    steps = -(-used // batch.global_batch) * settings.training.epochs
    count = sum(parameter.numel() for parameter in network.parameters())
    engine = build_engine(network, engine_config(engine_settings, batch, steps, count))
    log, tensorboard = (
        RunLog(folder, console=Console(file=io.StringIO(), width=200)),
        TensorBoardWriter(folder / "tensorboard", enabled=False),
    )
    meter, files = MemoryMeter(torch.device("cpu")), TraceFiles(run_folder=folder, tensorboard=tensorboard)
    tracer = StepTracer(
        engine, torch.device("cpu"), meter, files, TraceSettings(), say=log.say, is_first=False
    )
    recorders = Recorders(log=log, tensorboard=tensorboard, meter=meter, tracer=tracer)
    return Trainer(engine, windows, settings.training, QUANTILES, batch, folder, PLACE, recorders)


def records(folder: Path, tag: str) -> dict[int, dict[str, Any]]:
    """Records of the metrics file that hold a tag, by step; a step must not have two."""
    found: dict[int, dict[str, Any]] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if tag in record:
            assert record["step"] not in found, f"two records of {tag} at step {record['step']}"
            found[record["step"]] = record
    return found


def series_of(folder: Path, tag: str) -> list[float]:
    """Values of one tag in the order of steps."""
    return [record[tag] for _, record in sorted(records(folder, tag).items())]


def said(trainer: Trainer) -> str:
    """What the console got."""
    file = trainer.recorders.log.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    """A copy of the model's parameters."""
    return {name: tensor.detach().clone() for name, tensor in trainer.engine.module.state_dict().items()}
