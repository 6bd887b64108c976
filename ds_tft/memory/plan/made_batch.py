"""A micro-batch of zeros, for its shapes.

Letters: B batch, L encoder length, K horizon steps, O targets.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ds_tft.data.batches import Batch
from ds_tft.memory.meter import tensor_bytes
from ds_tft.model.inputs import ModelInputs, ModelSize


def made_batch(size: ModelSize, count: int) -> Batch:
    """Returns windows with full histories.

    Args:
        size: Shapes of the model.
        count: Windows, B.
    """
    length, steps = size.encoder_length, size.encoder_length + size.horizon
    labels = torch.zeros(count, size.horizon, size.num_targets)  # (B, K, O)
    inputs = ModelInputs(
        static_reals=torch.zeros(count, size.static_reals),
        static_categories=_whole(count, len(size.static_categories)),
        observed_reals=torch.zeros(count, length, size.observed_reals),
        observed_categories=_whole(count, length, len(size.observed_categories)),
        known_reals=torch.zeros(count, steps, size.known_reals),
        known_categories=_whole(count, steps, len(size.known_categories)),
        encoder_lengths=torch.full((count,), length),
    )
    return Batch(inputs, labels, torch.zeros_like(labels), _whole(count))


def batch_bytes(batch: Batch) -> int:
    """Returns the bytes of a batch."""
    return tensor_bytes((*batch.inputs, *batch[1:]))


def _whole(*shape: int) -> Tensor:
    """Zeros as whole numbers."""
    return torch.zeros(*shape, dtype=torch.int64)
