"""Ranges and steps of quantised inputs, from histograms of their magnitudes.

Whatever was seen, a range is finite and positive, and no larger than the largest magnitude of its group.

Letters: G groups, K bins, k a candidate: the range ends behind bin `k - 1`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ds_tft.memory.exact_product import LARGEST_CODE
from ds_tft.quantization.histogram import SMALLEST_EXPONENT, MagnitudeHistogram

CalibrationMethod = Literal["percentile", "min_max", "mse"]

SMALLEST_CLIP = 2.0**SMALLEST_EXPONENT
"""A group whose range would be smaller is dead. Products of its step must stay normal numbers."""
LARGEST_CLIP = 2.0**127
"""Beyond it, a code times its step could leave the range of float32."""
DEAD_CLIP = 1.0
"""Range of a dead group: all its codes are 0."""
CANDIDATES_AT_ONCE = 64


def clip_values(histogram: MagnitudeHistogram, method: CalibrationMethod, percentile: float) -> Tensor:
    """Returns the magnitude at which the range of each group ends, (G,) float32.

    - `percentile`: the upper edge of the bin that holds the percentile, so that at least this share of the values
      lies within the range.
    - `min_max`: the largest magnitude, exactly.
    - `mse`: the upper edge of the bin that leaves the smallest expected squared error.

    A group of zeros, of magnitudes below `SMALLEST_CLIP`, or without finite values gets 1, and none gets more than
    `LARGEST_CLIP`.

    Args:
        histogram: What was seen.
        method: How to choose.
        percentile: Share of values within the range, in per cent; only `percentile` asks for it.

    Raises:
        ValueError: The percentile is none.
    """
    if method == "min_max":
        clips = histogram.largest
    else:
        ends = _best_ends(histogram) if method == "mse" else _percentile_ends(histogram, percentile)
        clips = torch.minimum(ends * histogram.width, histogram.largest.double()).float()
    return clips.where(clips >= SMALLEST_CLIP, DEAD_CLIP).clamp_max_(LARGEST_CLIP)


def activation_scale(clip: Tensor) -> Tensor:
    """Returns the step with which the largest code stands for the end of the range."""
    return clip / LARGEST_CODE


def unreached(histogram: MagnitudeHistogram) -> bool:
    """Says whether nothing was ever added, finite or not."""
    return not (histogram.finite + histogram.not_finite).any()


def _percentile_ends(histogram: MagnitudeHistogram, percentile: float) -> Tensor:
    """Returns the bins behind those that hold a percentile, (G,)."""
    if not 0 < percentile <= 100:
        raise ValueError(f"percentile: must be above 0 and at most 100, got {percentile:g}; 99.99 is usual")
    rank = (histogram.finite.double() * percentile / 100).ceil().clamp_min(1)  # (G,)
    below = histogram.counts.cumsum(1) < rank.unsqueeze(1)  # (G, K)
    return below.sum(1) + 1


def _best_ends(histogram: MagnitudeHistogram) -> Tensor:
    """Returns the bins behind the ranges with the smallest expected squared error, (G,).

    Values count as spread evenly over their bin. With steps of `k / 127` bins, the error of a bin is then a difference
    of `_error_integral` at its edges. Summed by parts over the bins, that is a product of two matrices: one knows
    the groups, the other the candidates. A magnitude is clipped at 127 steps; that a negative value may take one
    step more is left out.
    """
    used = int(histogram.last_bin.max()) + 1
    counts = histogram.counts[:, :used].double()
    at_edges = -torch.diff(
        counts, prepend=counts.new_zeros(len(counts), 1), append=counts.new_zeros(len(counts), 1)
    )
    edges = torch.arange(used + 1, dtype=torch.float64, device=counts.device)
    candidates = edges[1:]
    errors = []
    for some in candidates.split(CANDIDATES_AT_ONCE):
        integral = _error_integral(edges * (LARGEST_CODE / some.unsqueeze(1)))  # (candidates, K + 1)
        errors.append(at_edges @ integral.t() * some**3)  # of step k / 127, less a factor that all share
    beyond = candidates > histogram.last_bin.unsqueeze(1) + 1
    return torch.cat(errors, 1).masked_fill_(beyond, torch.inf).argmin(1) + 1


def _error_integral(steps: Tensor) -> Tensor:
    """Returns the integral of `(t - code(t))**2` over t from 0 to `steps`, which is overwritten; codes end at 127."""
    codes = steps.round().clamp_max_(LARGEST_CODE)
    rest = steps.sub_(codes)
    return codes.div_(12).addcmul_(rest.square().div_(3), rest)
