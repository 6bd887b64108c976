"""The quantile loss (section 5 of the paper) over labels that may be missing or weigh differently.

Letters: B batch, K horizon steps, O targets, Q quantiles.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pinball_loss(
    prediction: Tensor, labels: Tensor, weights: Tensor, quantiles: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Sums the quantile loss, averaged over quantiles, over all labels.

    The mean loss is the first result divided by the second. Kept apart, they add up over batches of unequal
    weight.

    Args:
        prediction: Quantile forecasts, shape (B, K, O, Q), in the order of `quantiles`.
        labels: What came, shape (B, K, O); anything, NaN included, where the weight is 0.
        weights: Weight of each label, not negative, shape (B, K, O).
        quantiles: Levels between 0 and 1.

    Returns:
        The weighted sum of losses and the sum of weights, both 0-dimensional and float32 (float64 if
        `prediction` is).
    """
    sums = pinball_per_quantile(prediction, labels, weights, quantiles)  # (Q,)
    return sums.mean(), weights.to(sums.dtype).sum()


def pinball_per_quantile(
    prediction: Tensor, labels: Tensor, weights: Tensor, quantiles: Sequence[float]
) -> Tensor:
    """Sums the weighted loss of each quantile by itself, shape (Q,). Arguments as in `pinball_loss`."""
    precision = torch.promote_types(prediction.dtype, torch.float32)
    weights = weights.to(precision)
    # Before any arithmetic: 0 * NaN is NaN, in the loss and in its gradient.
    labels = labels.to(precision).masked_fill(weights == 0, 0.0)
    errors = labels.unsqueeze(-1) - prediction.to(precision)  # (B, K, O, Q)
    sums = [
        (weights * torch.maximum(level * error, (level - 1) * error)).sum()
        for level, error in zip(quantiles, errors.unbind(-1), strict=True)
    ]
    return torch.stack(sums)
