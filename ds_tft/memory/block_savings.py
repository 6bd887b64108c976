"""What recomputing each block of a model frees, measured: kept for backward with the block recomputed or not.

Recomputing pays where a block keeps much more than its inputs. Elsewhere it costs time and frees nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ds_tft.errors import ConfigError
from ds_tft.formatting import format_bytes
from ds_tft.memory.meter import kept_for_backward
from ds_tft.memory.recompute import attach_recompute, detach_recompute
from ds_tft.memory.recompute_settings import RecomputeSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockSaving:
    """Bytes kept for backward by the whole model."""

    block: str
    plain_bytes: int
    recomputed_bytes: int
    """With this block recomputed, and no other."""

    @property
    def saved_bytes(self) -> int:
        """What recomputing the block frees; 0 or less where its inputs are as large as what it keeps."""
        return self.plain_bytes - self.recomputed_bytes


def measure_blocks(
    model: nn.Module,
    forward: Callable[[], object],
    blocks: Sequence[str],
    excluded: Sequence[Tensor] = (),
) -> tuple[BlockSaving, ...]:
    """Runs one forward, and one more per block. Random generators stand as before afterwards.

    Args:
        model: In training mode, nothing recomputed yet.
        forward: Runs the model and returns what backward starts from.
        blocks: Names of submodules.
        excluded: Tensors that live anyway, such as the batch; the parameters are left out, too.
    """
    excluded = [*model.parameters(), *excluded]
    device = excluded[0].device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        plain = kept_for_backward(forward, excluded)
        return tuple(
            BlockSaving(
                block=block,
                plain_bytes=plain,
                recomputed_bytes=_kept_without(model, block, forward, excluded),
            )
            for block in blocks
        )


def _kept_without(
    model: nn.Module, block: str, forward: Callable[[], object], excluded: Sequence[Tensor]
) -> int:
    """Returns what is kept with one block recomputed."""
    attach_recompute(model, RecomputeSettings(blocks=(block,)))
    try:
        return kept_for_backward(forward, excluded)
    finally:
        detach_recompute(model)


def refuse_useless(savings: Sequence[BlockSaving]) -> None:
    """Refuses blocks whose recomputation frees nothing.

    Raises:
        ConfigError: Names the first of them.
    """
    for saving in savings:
        if saving.saved_bytes <= 0:
            raise ConfigError(
                f"ds_tft.recompute: recomputing '{saving.block}' frees no memory, got "
                f"{format_bytes(saving.plain_bytes)} kept for backward without and "
                f"{format_bytes(saving.recomputed_bytes)} with it; remove it"
            )
