"""The memory passes that the DeepSpeed JSON asks for, attached to a model in their order.

Streaming first, then recomputation, which takes over what streams. Both attach from outside and rename nothing.
Quantisation (`ds_tft/quantization`) attaches between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ds_tft.config.deepspeed_sections import DeepSpeedSettings, ProductSettings
from ds_tft.memory.chunks import BUFFERS, StreamingSettings
from ds_tft.memory.recompute import attach_recompute, detach_recompute
from ds_tft.memory.recompute_report import RecomputeReport
from ds_tft.memory.recompute_settings import recompute_settings
from ds_tft.memory.streaming import StreamingReport, stream_variable_selection, unstream

BUDGET_PARTS = 16
"""A budget is this many times the streaming workspace at least."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPasses:
    """What was attached; `None` where the settings ask for nothing."""

    streaming: StreamingReport | None
    recompute: RecomputeReport | None

    def lines(self) -> list[str]:
        """Says for the log what is on and what is off."""
        off = "streaming variable selection: off (ds_tft.streaming)"
        return [
            off if self.streaming is None else self.streaming.line(),
            "recompute: off" if self.recompute is None else self.recompute.line(),
        ]


def attach_passes(model: nn.Module, settings: DeepSpeedSettings, device: torch.device) -> MemoryPasses:
    """Attaches the passes.

    Args:
        model: The plain model.
        settings: The DeepSpeed JSON.
        device: Where the model will be trained; it need not be there yet.

    Raises:
        ConfigError: A pass cannot be carried out as asked for.
    """
    return MemoryPasses(
        streaming=attach_streaming(model, settings, device),
        recompute=attach_blocks(model, settings, device),
    )


def attach_streaming(
    model: nn.Module, settings: DeepSpeedSettings, device: torch.device
) -> StreamingReport | None:
    """Attaches the first pass alone; returns `None` where the settings switch it off."""
    if not settings.ds_tft.streaming:
        return None
    return stream_variable_selection(model, streaming_settings(settings.ds_tft, device), device)


def attach_blocks(
    model: nn.Module, settings: DeepSpeedSettings, device: torch.device
) -> RecomputeReport | None:
    """Attaches the second pass alone; returns `None` where the settings recompute nothing."""
    blocks = recompute_settings(settings, device)
    return None if blocks is None else attach_recompute(model, blocks)


def streaming_settings(product: ProductSettings, device: torch.device) -> StreamingSettings:
    """Reads how large chunks are: as the JSON says, or as suits the device and a share of the memory budget.

    Args:
        product: Section `ds_tft`.
        device: Where the model will be trained.
    """
    if isinstance(product.variables_per_chunk, int):
        return StreamingSettings(variables_per_chunk=product.variables_per_chunk)
    limit = StreamingSettings().limit(device)
    if product.memory_budget_gib is not None:
        workers = torch.get_num_threads() if device.type == "cpu" else 1
        share = product.memory_budget_gib * 2**30 / BUDGET_PARTS / (BUFFERS * workers)
        limit = max(1, min(limit, int(share)))
    return StreamingSettings(buffer_bytes=limit)


def detach_passes(model: nn.Module, passes: MemoryPasses) -> None:
    """Makes a model plain again.

    Args:
        model: What the passes are attached to.
        passes: What `attach_passes` returned.
    """
    if passes.recompute is not None:
        detach_recompute(model)
    if passes.streaming is not None:
        unstream(model)
