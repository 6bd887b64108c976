"""Recomputes blocks of a model in backward, instead of keeping what they computed (activation checkpointing).

`attach_recompute(model, settings)` gives each named block another `forward`. Nothing else changes: no wrapper, no
parameter, no name; a checkpoint written with it loads without it.

What is kept of a block is its inputs, on the device or, with `offload`, in host memory. What it costs: the
block's forward runs again. A streamed variable selection (`streaming.py`) costs next to nothing: its networks run
again in backward anyway, so that only its selection weights are computed twice. Stream a model first, then
recompute it.

Exact: losses and gradients are bit-equal to those without, dropout included, and random numbers afterwards are
the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from ds_tft.errors import ConfigError, suggestion
from ds_tft.formatting import format_bytes, format_seconds
from ds_tft.memory.offload import HostOffload, OffloadTraffic
from ds_tft.memory.recompute_settings import RecomputeSettings
from ds_tft.memory.recomputed_block import BlockCounts, RecomputedBlock, RecomputeState
from ds_tft.memory.streaming import is_streamed
from ds_tft.model.variable_selection import VariableSelection

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


@dataclass(frozen=True, kw_only=True, slots=True)
class RecomputeReport:
    """What is recomputed, and counts of what has been."""

    blocks: tuple[str, ...]
    state: RecomputeState

    def line(self) -> str:
        """Says it in one line for the log."""
        text = f"recompute: {', '.join(self.blocks)}; by {self.state.path.value}"
        if self.state.offload is None:
            return text
        least = format_bytes(self.state.offload.min_bytes)
        return f"{text}; inputs of at least {least} are kept in host memory"

    def step_line(self) -> str:
        """Says in one line what was done since the last reset."""
        text = f"recompute: {self.recomputes()} blocks ran again"
        moved = self.traffic()
        if moved is None:
            return text
        return (
            f"{text}; {format_bytes(moved.to_host_bytes)} moved to host memory, "
            f"{format_bytes(moved.to_device_bytes)} back, buffers of {format_bytes(moved.host_bytes)}"
        )

    def recomputes(self, block: str | None = None) -> int:
        """Returns how many times blocks, or one of them, ran again since the last reset."""
        counts = self.state.counts
        return sum(counts[name].recomputes for name in ([block] if block else self.blocks))

    def traffic(self) -> OffloadTraffic | None:
        """Returns what was moved to host memory since the last reset; `None` without offload."""
        return None if self.state.offload is None else self.state.offload.traffic

    def reset(self) -> None:
        """Starts all counts anew, as at the beginning of a step."""
        self.state.counts.update({name: BlockCounts() for name in self.blocks})
        if self.state.offload is not None:
            self.state.offload.reset()

    def profile_lines(self) -> list[str]:
        """Returns a line for each block with its times since the last reset; empty without `profile`."""
        if not self.state.profile:
            return []
        return [
            f"recompute: {name}: forward {format_seconds(count.forward_seconds)} in {count.forwards} runs, "
            f"again {format_seconds(count.recompute_seconds)} in {count.recomputes} runs"
            for name, count in self.state.counts.items()
        ]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Lets the blocks run as if they were not recomputed, for `torch.autograd.grad` in training mode."""
        self.state.paused = True
        try:
            yield
        finally:
            self.state.paused = False

    def check_effect(self) -> None:
        """Makes sure, after a step of training, that every block ran again and offload moved something.

        Raises:
            ConfigError: Names what had no effect.
        """
        for name in self.blocks:
            if not self.recomputes(name):
                raise ConfigError(
                    f"{WHERE}: '{name}' was not run again in backward, got {self.state.counts[name].forwards} "
                    "forwards of it; remove it"
                )
        moved = self.traffic()
        if moved is not None and not moved.to_host_bytes:
            assert self.state.offload is not None
            raise ConfigError(
                "activation_checkpointing.cpu_checkpointing: nothing was moved to host memory, got inputs of at "
                f"most {format_bytes(self.state.offload.largest_seen)}, and less than "
                f"{format_bytes(self.state.offload.min_bytes)} stays on the device; remove it"
            )


def attach_recompute(model: nn.Module, settings: RecomputeSettings | None = None) -> RecomputeReport:
    """Recomputes blocks of a model in backward.

    Args:
        model: Holds the blocks. Variable selections that are to stream must do so already.
        settings: Which blocks, and how.

    Returns:
        What is recomputed; it counts from now on.

    Raises:
        ConfigError: A name is unknown, given twice, or within another block; or a block is recomputed already.
    """
    settings = settings or RecomputeSettings()
    found = _find_blocks(model, settings.blocks)
    device = settings.device or next(model.parameters()).device
    state = RecomputeState(
        path=settings.chosen_path,
        device=device,
        offload=HostOffload(device, settings.min_offload_bytes) if settings.offload else None,
        synchronize=settings.synchronize,
        profile=settings.profile,
    )
    report = RecomputeReport(blocks=tuple(found), state=state)
    report.reset()
    for name, module in found.items():
        streams = isinstance(module, VariableSelection) and is_streamed(module)
        module.forward = RecomputedBlock(name, module, state, saves_only=streams)  # type: ignore[method-assign]
    return report


def detach_recompute(model: nn.Module) -> None:
    """Gives the blocks of a model the forward back that they had.

    Raises:
        ConfigError: If none of them is recomputed.
    """
    blocks = [module for module in model.modules() if is_recomputed(module)]
    if not blocks:
        raise ConfigError(
            f"{WHERE}: nothing to undo, got a {type(model).__name__} without recomputed blocks; attach it first"
        )
    for module in blocks:
        before = module.forward.before  # type: ignore[union-attr]
        if before is None:
            del module.forward
        else:
            module.forward = before  # type: ignore[method-assign]


def is_recomputed(module: nn.Module) -> bool:
    """Says whether a module is a recomputed block."""
    return isinstance(vars(module).get("forward"), RecomputedBlock)


def _find_blocks(model: nn.Module, names: tuple[str, ...] | None) -> dict[str, nn.Module]:
    """Returns the blocks by name, in the model's order."""
    modules = {name: module for name, module in model.named_modules() if name}
    if names is None:
        names = tuple(name for name in DEFAULT_BLOCKS if name in modules)
    if not names:
        raise ConfigError(
            f"{WHERE}: the model has none of the blocks recomputed by default, got a {type(model).__name__}; "
            "name blocks of it"
        )
    _check_names(names, modules)
    for name in names:
        if is_recomputed(modules[name]):
            raise ConfigError(f"{WHERE}: is attached already, got '{name}' again; attach it once, or detach it")
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
