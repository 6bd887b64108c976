"""What a command line settles before anything is built: settings, data, device, sizes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ds_tft.config.batch import BatchSizes, check_fills, resolve_batch
from ds_tft.config.deepspeed import check_machine, read_deepspeed_settings
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.resolve import RunFlags, read_run_settings
from ds_tft.config.run import RunSettings
from ds_tft.data.batches import BatchBuilder
from ds_tft.data.infer import InferredRoles, infer_roles
from ds_tft.data.parquet import ParquetSource, open_source
from ds_tft.data.prepare import TrainingData, prepare_training
from ds_tft.errors import ConfigError
from ds_tft.memory.recompute_settings import recompute_settings
from ds_tft.memory.trace.settings import trace_settings
from ds_tft.model.inputs import ModelSize
from ds_tft.model_size import derive_size
from ds_tft.training.adam8bit import check_adamw_8bit
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.engine import choose_device
from ds_tft.training.environment import ProcessPlace


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSetup:
    """A run, settled."""

    arguments: TrainArguments
    place: ProcessPlace
    settings: RunSettings
    engine_settings: DeepSpeedSettings
    batch: BatchSizes
    device: torch.device
    source: ParquetSource
    inferred: InferredRoles | None
    """How the columns got their roles; `None` where they have those of a trained model."""
    data: TrainingData
    changes: tuple[str, ...]
    """One line for each value that the command line changed."""

    @property
    def size(self) -> ModelSize:
        """Shapes of the model."""
        return derive_size(self.data.preprocessor, self.settings)

    @property
    def quantiles(self) -> tuple[float, ...]:
        """Levels, ascending."""
        return self.size.quantiles

    @property
    def total_steps(self) -> int:
        """Updates of the whole run."""
        used = windows_per_epoch(self.data, self.settings)
        return -(-used // self.batch.global_batch) * self.settings.training.epochs

    @property
    def evaluation_batch_size(self) -> int:
        """Windows per forward in evaluation."""
        return self.settings.training.evaluation_batch_size or self.batch.micro_batch

    def batch_builder(self) -> BatchBuilder:
        """Returns what makes batches of windows."""
        return BatchBuilder(self.data.table, self.settings.window, self.data.preprocessor.target_scaler)


def set_up(arguments: TrainArguments, place: ProcessPlace) -> RunSetup:
    """Reads settings and data. Errors about settings come before the data is read.

    Args:
        arguments: The command line.
        place: This process among those of the run.

    Raises:
        UserError: Something in the arguments, the settings or the data that the user can mend.
    """
    settings, changes = read_run_settings(
        arguments.config,
        arguments.overrides,
        RunFlags(targets=arguments.targets, epochs=arguments.epochs, seed=arguments.seed),
    )
    engine_settings, engine_changes = read_deepspeed_settings(
        arguments.deepspeed_config,
        arguments.overrides,
        use_checkpointing=arguments.use_gradient_checkpointing,
        use_int8=arguments.use_int8,
    )
    batch = resolve_batch(engine_settings, place.world_size, arguments.batch_size)
    device = choose_device(place)
    check_settings(engine_settings, device, place.world_size)
    check_adamw_8bit(engine_settings, device)
    source = open_source(arguments.parquet)
    inferred = infer_roles(source, settings.data)
    data = prepare_training(source, inferred, settings)
    check_fills(batch, windows_per_epoch(data, settings))
    return RunSetup(
        arguments=arguments,
        place=place,
        settings=settings,
        engine_settings=engine_settings,
        batch=batch,
        device=device,
        source=source,
        inferred=inferred,
        data=data,
        changes=(*changes, *engine_changes, *batch.notes),
    )


def check_settings(settings: DeepSpeedSettings, device: torch.device, world_size: int) -> None:
    """Refuses what the DeepSpeed JSON asks for and this machine, or this number of processes, cannot do.

    Args:
        settings: The DeepSpeed JSON.
        device: Where training runs.
        world_size: Processes of the run.

    Raises:
        ConfigError: Names the setting.
    """
    check_machine(settings, device.type == "cuda")
    recompute_settings(settings, device)
    trace_settings(settings.ds_tft, device)
    if settings.ds_tft.on_out_of_memory == "halve" and world_size > 1:
        raise ConfigError(
            "ds_tft.on_out_of_memory: 'halve' needs one process, since the others would wait for the one that "
            f"ran out of memory, got {world_size}; use 'stop'"
        )


def windows_per_epoch(data: TrainingData, settings: RunSettings) -> int:
    """Returns how many training windows an epoch uses."""
    windows = len(data.windows["train"])
    return min(windows, settings.training.windows_per_epoch or windows)
