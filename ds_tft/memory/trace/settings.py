"""Which updates are traced: the keys `trace_every_steps` and `trace_snapshot` of section `ds_tft`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ds_tft.config.deepspeed_sections import ProductSettings
from ds_tft.errors import ConfigError

FIRST = 2
"""The first traced update since the start: an earlier one has allocations of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceSettings:
    """Cadence and extent of the traces."""

    every_steps: int | None = None
    """Updates between two traces; `None` traces one update."""
    snapshot: bool = False
    """Write the history of the CUDA allocator, too."""

    def is_due(self, step: int, since_start: int) -> bool:
        """Says whether an update is traced.

        Args:
            step: Number of the update in the whole run, from 1.
            since_start: Its number since this process started, from 1.
        """
        if since_start <= FIRST:
            return since_start == FIRST
        return self.every_steps is not None and step % self.every_steps == 0


def trace_settings(settings: ProductSettings, device: torch.device) -> TraceSettings:
    """Reads section `ds_tft`.

    Raises:
        ConfigError: A snapshot is asked for where there is no CUDA allocator.
    """
    if settings.trace_snapshot and device.type != "cuda":
        raise ConfigError(
            "ds_tft.trace_snapshot: it is the history of the CUDA allocator, and training runs on the "
            f"{device.type.upper()}, got true; leave it out"
        )
    return TraceSettings(every_steps=settings.trace_every_steps, snapshot=settings.trace_snapshot)
