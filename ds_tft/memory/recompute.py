"""Recomputes blocks of a model in backward, instead of keeping what they computed (activation checkpointing).

`attach_recompute(model, settings)` gives each named block another `forward`. Nothing else changes: no
wrapper, no parameter, no name; a checkpoint written with it loads without it.

What is kept of a block is its inputs: as they are, in host memory (`offload.py`), or as INT8
(`compression.py`). What it costs: the block's forward runs again. For a streamed variable selection
(`streaming.py`) that is next to nothing: its networks run again in backward anyway, so that only its
selection weights are computed twice. Stream a model first, then recompute it.

Exact: losses and gradients are bit-equal to those without, dropout included, and so is the state of the
random generators afterwards. INT8 is the exception: the loss of a step is the same, its gradients are not.
"""

from __future__ import annotations

import torch
from torch import nn

from ds_tft.errors import ConfigError, suggestion
from ds_tft.memory.compression import Int8Compression
from ds_tft.memory.input_store import InputStore
from ds_tft.memory.offload import HostOffload
from ds_tft.memory.recompute_report import RecomputeReport
from ds_tft.memory.recompute_settings import RecomputeSettings
from ds_tft.memory.recomputed_block import RecomputedBlock, RecomputeState
from ds_tft.memory.streaming import is_streamed

WHERE = "ds_tft.recompute"
DEFAULT_BLOCKS = (
    "history_selection",
    "lstm_encoder",
    "lstm_decoder",
    "lstm_gate",
    "static_enrichment",
    "attention",
    "position_wise",
)
"""What pays: see the table in docs/activation_checkpointing.md."""


def attach_recompute(model: nn.Module, settings: RecomputeSettings | None = None) -> RecomputeReport:
    """Recomputes blocks of a model in backward.

    Args:
        model: Holds the blocks. Variable selections that are to stream must do so already.
        settings: Which blocks, and how.

    Returns:
        What is recomputed; it counts from now on.

    Raises:
        ConfigError: A name is unknown, given twice or within another block; the model recomputes already; or
            inputs are to be kept in two ways.
    """
    settings = settings or RecomputeSettings()
    found = _find_blocks(model, settings.blocks)
    device = settings.device or next(model.parameters()).device
    state = RecomputeState(
        path=settings.chosen_path,
        device=device,
        store=_choose_store(settings, device),
        synchronize=settings.synchronize,
        profile=settings.profile,
    )
    report = RecomputeReport(blocks=tuple(found), state=state)
    report.reset()
    for name, module in found.items():
        module.forward = RecomputedBlock(name, module, state, saves_only=is_streamed(module))
    return report


def detach_recompute(model: nn.Module) -> None:
    """Gives the blocks of a model the forward back that they had.

    Raises:
        ConfigError: If none of them is recomputed.
    """
    blocks = [block for module in model.modules() if (block := _block_of(module))]
    if not blocks:
        raise ConfigError(
            f"{WHERE}: nothing to undo, got a {type(model).__name__} that recomputes nothing; attach it first"
        )
    for block in blocks:
        block.undo()


def is_recomputed(module: nn.Module) -> bool:
    """Says whether a module is a recomputed block."""
    return _block_of(module) is not None


def _choose_store(settings: RecomputeSettings, device: torch.device) -> InputStore | None:
    """Returns what takes the inputs of blocks."""
    if settings.offload and settings.compress:
        raise ConfigError(
            f"{WHERE}: inputs of blocks are kept in one way, got offload and compress; give one of them"
        )
    if settings.offload:
        return HostOffload(device, settings.min_bytes)
    return Int8Compression(device, settings.min_bytes) if settings.compress else None


def _block_of(module: nn.Module) -> RecomputedBlock | None:
    """Returns what took the place of a module's forward."""
    forward = vars(module).get("forward")
    return forward if isinstance(forward, RecomputedBlock) else None


def _find_blocks(model: nn.Module, names: tuple[str, ...] | None) -> dict[str, nn.Module]:
    """Returns the blocks by name, in the model's order."""
    modules = {name: module for name, module in model.named_modules() if name}
    attached = next((name for name, module in modules.items() if is_recomputed(module)), None)
    if attached is not None:
        raise ConfigError(
            f"{WHERE}: attached already, got '{attached}' recomputed; attach once, or detach first"
        )
    if names is None:
        names = tuple(name for name in DEFAULT_BLOCKS if name in modules)
    if not names:
        raise ConfigError(
            f"{WHERE}: the model has none of the blocks recomputed by default, got a {type(model).__name__}; "
            "name blocks of it"
        )
    _check_names(names, modules)
    return {name: module for name, module in modules.items() if name in names}


def _check_names(names: tuple[str, ...], modules: dict[str, nn.Module]) -> None:
    """Refuses names that are unknown, given twice, or within each other."""
    for position, name in enumerate(names):
        if name not in modules:
            near = suggestion(name, modules) if name else ""
            if not near.startswith("did you"):
                near = suggestion(name, [known for known in modules if "." not in known])
            raise ConfigError(f"{WHERE}: the model has no such block, got '{name}'; {near}")
        if name in names[:position]:
            raise ConfigError(f"{WHERE}: a block is named twice, got '{name}'; name it once")
        outer = next((other for other in names if name.startswith(f"{other}.")), None)
        if outer is not None:
            raise ConfigError(
                f"{WHERE}: a block is within another, got '{name}' and '{outer}'; name one of the two"
            )
