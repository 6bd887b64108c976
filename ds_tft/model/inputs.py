"""What goes into the model and how large it is.

Letters: B batch, L encoder length, K horizon steps, V variables of a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class ModelInputs(NamedTuple):
    """One batch of windows as the model sees them. A group without variables has a last dimension of 0.

    The history of a window occupies positions `0 .. encoder_lengths[b] - 1`; positions from there up to L are
    padding, whose values are ignored. A length is at least 1. The horizon is always positions
    L .. L+K-1 of the known groups.
    """

    static_reals: Tensor  # (B, V) float
    static_categories: Tensor  # (B, V) int64
    observed_reals: Tensor  # (B, L, V) float; the targets' own history comes first
    observed_categories: Tensor  # (B, L, V) int64
    known_reals: Tensor  # (B, L+K, V) float; the relative time index comes first
    known_categories: Tensor  # (B, L+K, V) int64
    encoder_lengths: Tensor  # (B,) int64, always on the CPU: it decides shapes, so no device sync is paid

    def to(self, device: torch.device, dtype: torch.dtype) -> ModelInputs:
        """Moves to `device`; real inputs also become `dtype`. The encoder lengths stay on the CPU."""
        moved = {
            name: tensor.to(device, dtype if tensor.is_floating_point() else None, non_blocking=True)
            for name, tensor in zip(self._fields, self, strict=True)
            if name != "encoder_lengths"
        }
        return self._replace(**moved)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """Everything that fixes the shapes of the model's parameters.

    Categories are given as one cardinality per variable, the slot of unseen values included.
    """

    static_reals: int = 0
    static_categories: tuple[int, ...] = ()
    observed_reals: int = 1
    observed_categories: tuple[int, ...] = ()
    known_reals: int = 1
    known_categories: tuple[int, ...] = ()
    encoder_length: int = 60
    horizon: int = 10
    num_targets: int = 1
    quantiles: tuple[float, ...] = (0.1, 0.5, 0.9)
    hidden_size: int = 64
    num_heads: int = 4
    lstm_layers: int = 1
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.observed_reals < 1 or self.known_reals < 1:
            raise ValueError(
                "observed_reals and known_reals must be at least 1, for the target's history and the "
                f"relative time index, got {self.observed_reals} and {self.known_reals}"
            )
        if min(self.hidden_size, self.num_heads, self.lstm_layers, self.encoder_length, self.horizon) < 1:
            raise ValueError(
                "hidden_size, num_heads, lstm_layers, encoder_length and horizon must be at least 1, got "
                f"{self.hidden_size}, {self.num_heads}, {self.lstm_layers}, {self.encoder_length} and "
                f"{self.horizon}"
            )
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of num_heads ({self.num_heads})"
            )

    @property
    def num_static(self) -> int:
        """Number of static variables."""
        return self.static_reals + len(self.static_categories)

    @property
    def num_observed(self) -> int:
        """Number of variables known for the past only."""
        return self.observed_reals + len(self.observed_categories)

    @property
    def num_known(self) -> int:
        """Number of variables known for the past and the horizon."""
        return self.known_reals + len(self.known_categories)
