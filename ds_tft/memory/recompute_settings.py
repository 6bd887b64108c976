"""Which blocks are recomputed and how: the sections `activation_checkpointing` and `ds_tft`, checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ds_tft.config.deepspeed_sections import ActivationCheckpointing, DeepSpeedSettings
from ds_tft.errors import ConfigError
from ds_tft.memory.checkpoint_path import CheckpointPath, choose_path
from ds_tft.memory.input_store import MIN_BYTES

SECTION = "activation_checkpointing"
ONE_PIECE = "it splits inputs over the processes of a model in several parts, and this model is in one part"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecomputeSettings:
    """What `attach_recompute` does."""

    blocks: tuple[str, ...] | None = None
    """Names of submodules; `None` takes those of `DEFAULT_BLOCKS` that the model has."""
    offload: bool = False
    """Keep the inputs of blocks in host memory (`cpu_checkpointing`)."""
    compress: bool = False
    """Keep the inputs of blocks as INT8 (`ds_tft.compress_kept`); not together with `offload`."""
    min_bytes: int = MIN_BYTES
    """Memory that an input keeps alive below which it is neither moved nor compressed."""
    synchronize: bool = False
    """Wait for the GPU before and after each block (`synchronize_checkpoint_boundary`)."""
    profile: bool = False
    """Measure the time of each block."""
    path: CheckpointPath | None = None
    """Which machinery; `None` chooses."""
    device: torch.device | None = None
    """Where the model is trained, if it is not there yet; `None` takes the device it is on."""

    @property
    def chosen_path(self) -> CheckpointPath:
        """Which machinery."""
        return self.path or choose_path(offload=self.offload)


def recompute_settings(settings: DeepSpeedSettings, device: torch.device) -> RecomputeSettings | None:
    """Reads what the DeepSpeed JSON asks for, with the command line laid over it.

    Blocks are recomputed if `ds_tft.recompute` names some (`--use-gradient-checkpointing` is
    `ds_tft.recompute: "default"`), or if `activation_checkpointing` asks for anything: the section alone does
    what it says.

    Args:
        settings: The DeepSpeed JSON.
        device: Where the model is trained.

    Returns:
        What to do; `None` where nothing is asked for.

    Raises:
        ConfigError: An option cannot be carried out here, or would have no effect.
    """
    section, blocks = settings.activation_checkpointing, settings.ds_tft.recompute
    for name, value, reason in _refused(section, device):
        raise ConfigError(f"{SECTION}.{name}: {reason}, got {str(value).lower()}; remove it")
    if blocks == ():
        raise ConfigError("ds_tft.recompute: names no block, got []; name some, or leave it out")
    if not settings.recomputes:
        return None
    return RecomputeSettings(
        blocks=None if blocks == "default" else blocks,
        offload=section.cpu_checkpointing,
        compress=settings.ds_tft.compress_kept == "int8",
        synchronize=section.synchronize_checkpoint_boundary,
        profile=section.profile,
        device=device,
    )


def _refused(section: ActivationCheckpointing, device: torch.device) -> Iterator[tuple[str, object, str]]:
    """Yields options that cannot be carried out: name, value, reason."""
    if section.partition_activations:
        yield "partition_activations", True, ONE_PIECE
    if section.contiguous_memory_optimization:
        reason = "it arranges what partition_activations has split, and that is not available"
        yield "contiguous_memory_optimization", True, reason
    if section.number_checkpoints is not None:
        reason = "it sizes the buffers of contiguous_memory_optimization, and that is not available"
        yield "number_checkpoints", section.number_checkpoints, reason
    if section.synchronize_checkpoint_boundary and device.type != "cuda":
        reason = f"it waits for a GPU, and training runs on the {device.type.upper()}"
        yield "synchronize_checkpoint_boundary", True, reason
