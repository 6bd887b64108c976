"""Interpretable multi-head attention (section 4.4 of the paper): heads differ in where they look only.

Letters: B batch, L encoder length, K horizon steps, S keys (L + K in the model), H hidden size, N heads,
D = H / N.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ds_tft.model.initialisation import dense


class InterpretableAttention(nn.Module):
    """Attention with queries and keys per head, one value projection for all, and the mean over heads.

    Because the values are shared, the mean of the heads' weights is itself an attention pattern that explains
    the output. Scores and softmax are taken in float32 at least, whatever the model's precision. A query that
    may see no key gets zeros.

    Shape: queries (B, K, H), keys (B, S, H), visible (B, K, S) -> mixed (B, K, H), weights (B, N, K, S)
    """

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        head_size = hidden_size // num_heads
        self.query = dense(hidden_size, hidden_size, parts=num_heads, bias=False)
        self.key = dense(hidden_size, hidden_size, parts=num_heads, bias=False)
        self.value = dense(hidden_size, head_size, bias=False)
        self.output = dense(head_size, hidden_size, bias=False)

    def forward(self, queries: Tensor, keys: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what each query gathers, and each head's weights of the keys."""
        query = self._split_heads(self.query(queries))  # (B, N, K, D)
        key = self._split_heads(self.key(keys))  # (B, N, S, D)
        value = self.value(keys)  # (B, S, D)
        precision = torch.promote_types(query.dtype, torch.float32)
        with torch.autocast(queries.device.type, enabled=False):
            scores = query.to(precision) @ key.to(precision).transpose(-2, -1) / math.sqrt(query.shape[-1])
            weights = masked_softmax(scores, visible.unsqueeze(1))  # (B, N, K, S)
        mixed = weights.mean(1).to(value.dtype) @ value  # (B, K, D)
        return self.output(mixed), weights

    def _split_heads(self, x: Tensor) -> Tensor:
        """Turns (B, T, H) into (B, N, T, D)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


def masked_softmax(scores: Tensor, visible: Tensor) -> Tensor:
    """Softmax over the last dimension among visible entries; the rest, or a row of none, is exactly 0."""
    lowest = torch.finfo(scores.dtype).min  # -inf would make a row without visible entries NaN
    weights = scores.masked_fill(~visible, lowest).softmax(-1)
    return weights.masked_fill(~visible, 0.0)


def visible_keys(present: Tensor, num_steps: int) -> Tensor:
    """Says which keys each horizon step may attend to: real history, and the horizon up to that step itself.

    Args:
        present: True at history positions that hold a row, shape (B, L).
        num_steps: Horizon steps, K.

    Returns:
        True where visible, shape (B, K, L + K).
    """
    batch, length = present.shape
    causal = torch.ones(num_steps, num_steps, dtype=torch.bool, device=present.device).tril()
    history = present.unsqueeze(1).expand(batch, num_steps, length)
    return torch.cat([history, causal.expand(batch, num_steps, num_steps)], dim=-1)
