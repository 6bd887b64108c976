"""The memory passes that the DeepSpeed JSON asks for, attached to a model in their order.

Streaming first, then recomputation, which takes over what streams. Both attach from outside and rename nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.memory.chunks import StreamingSettings
from ds_tft.memory.recompute import attach_recompute, detach_recompute
from ds_tft.memory.recompute_report import RecomputeReport
from ds_tft.memory.recompute_settings import recompute_settings
from ds_tft.memory.streaming import StreamingReport, stream_variable_selection, unstream


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
    blocks = recompute_settings(settings, device)
    return MemoryPasses(
        streaming=attach_streaming(model, settings, device),
        recompute=None if blocks is None else attach_recompute(model, blocks),
    )


def attach_streaming(
    model: nn.Module, settings: DeepSpeedSettings, device: torch.device
) -> StreamingReport | None:
    """Attaches the first pass alone; returns `None` where the settings switch it off."""
    product = settings.ds_tft
    if not product.streaming:
        return None
    chunk = product.variables_per_chunk
    chunks = StreamingSettings(variables_per_chunk=chunk if isinstance(chunk, int) else None)
    return stream_variable_selection(model, chunks, device)


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
