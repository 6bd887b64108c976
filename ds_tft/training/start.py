"""Where training starts: at the quantiles that the labels have without any input.

Letters: n sampled windows, K horizon steps, O targets, Q quantiles.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ds_tft.data.batches import BatchBuilder
from ds_tft.data.windows import WindowIndex
from ds_tft.model.tft import TemporalFusionTransformer

SAMPLED_WINDOWS = 4096
HEAD_SHRINKAGE = 0.1
"""Factor on the last layer's weights, so that the first forecasts lie near its bias."""


def label_quantiles(
    builder: BatchBuilder, windows: WindowIndex, quantiles: tuple[float, ...]
) -> NDArray[np.float64]:
    """Returns the quantiles of training labels in model units, over all steps: (O, Q).

    Args:
        builder: Makes batches of windows.
        windows: Training windows; at most `SAMPLED_WINDOWS` evenly spaced ones are looked at.
        quantiles: Levels, ascending.
    """
    sample = windows.spaced(SAMPLED_WINDOWS)
    labels, weights = builder.labels(sample)  # (n, K, O) each
    found = np.zeros((labels.shape[-1], len(quantiles)))
    for o in range(labels.shape[-1]):
        known = labels[..., o][weights[..., o] > 0]
        if len(known):
            found[o] = np.quantile(known, quantiles)
    return found


@torch.no_grad()
def start_at_label_quantiles(model: TemporalFusionTransformer, levels: NDArray[np.float64]) -> None:
    """Makes the untrained model forecast these quantiles, nearly.

    Training then begins with learning from inputs, not with finding the level of each quantile.

    Args:
        model: A model as built.
        levels: (O, Q) in model units.
    """
    model.quantile_head.weight.mul_(HEAD_SHRINKAGE)
    model.quantile_head.bias.copy_(torch.from_numpy(levels.ravel()))
