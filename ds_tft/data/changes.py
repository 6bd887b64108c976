"""Size of the changes that an anchored label consists of: `target[t+k] - anchor[t]` for k = 1..H.

Letters: N rows, M segments, G groups (series), H horizon.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ds_tft.config.run import WindowSettings
from ds_tft.data.statistics import (
    MIN_COUNT,
    Floats,
    GroupStatistics,
    Kind,
    group_medians,
    is_constant,
)

MEDIAN_TO_STD = 1.4826
"""Standard deviation of a normal distribution whose median magnitude is 1."""


@dataclass(frozen=True, slots=True)
class Anchored:
    """One target beside what its labels are measured from."""

    labels: Floats  # (N,) transformed target; NaN where it is no training label
    anchors: Floats  # (N,) what labels after the row are measured from; NaN where no window ends
    segment: NDArray[np.int64]  # (N,) -1 for rows in none
    series: NDArray[np.integer]  # (N,)


def segment_of_rows(segments: NDArray[np.int64], num_rows: int) -> NDArray[np.int64]:
    """Segment of each row, (N,), -1 for rows in none; the segments (M, 3) are in the order of rows."""
    rows = np.arange(num_rows)
    segment = np.searchsorted(segments[:, 1], rows, side="right") - 1
    return np.where((segment >= 0) & (rows < segments[segment, 2]), segment, -1)


@np.errstate(over="ignore", invalid="ignore")  # as in `group_statistics`
def running_mean(history: Floats, segments: NDArray[np.int64], window: WindowSettings) -> Floats:
    """Mean of the history of the window that ends at each row.

    Args:
        history: (N,) one target as an input; NaN where nothing is known yet.
        segments: (M, 3) series, first row, row after the last.
        window: Encoder length, and the shortest history for which there is a mean.

    Returns:
        (N,) means; NaN where no window ends.
    """
    rows = np.arange(len(history))
    segment = segment_of_rows(segments, len(history))
    known = np.isfinite(history) & (segment >= 0)
    total = np.bincount(segment[known], history[known], minlength=len(segments))
    offset = (total / np.maximum(np.bincount(segment[known], minlength=len(segments)), 1))[segment]
    # Without its offset the running sum stays small, so that differences of it keep their digits.
    sums = np.append(0.0, np.cumsum(np.where(known, history - offset, 0.0)))
    counts = np.append(0, np.cumsum(known))
    start = np.maximum(segments[segment, 1], rows + 1 - window.encoder_length)
    start = np.minimum(start, rows + 1)
    count = counts[rows + 1] - counts[start]
    mean = offset + (sums[rows + 1] - sums[start]) / np.maximum(count, 1)
    # What rounding leaves of a mean of 0 would pass for the changes of a series that stays at 0.
    noise = 4 * np.finfo(np.float64).eps * (np.abs(offset) + np.abs(sums[rows + 1]) + np.abs(sums[start]))
    mean = np.where(np.abs(mean) <= noise, 0.0, mean)
    ends_window = (segment >= 0) & (rows + 1 - start >= window.shortest_history) & (count > 0)
    return np.where(ends_window, mean, np.nan)


@np.errstate(over="ignore", invalid="ignore")  # as in `group_statistics`
def change_statistics(level: GroupStatistics, target: Anchored, horizon: int, kind: Kind) -> GroupStatistics:
    """Keeps the centres of `level` and replaces its scales by the size of changes.

    The size is the root mean square over all labels within the horizon; for `robust`, the median magnitude at
    each step times 1.4826, averaged over the steps in the same way. A group with fewer than `MIN_COUNT`
    labels, or without change, takes the median over the other groups, and so does a group not seen here.

    Args:
        level: Statistics of the target itself, for the same groups.
        target: Labels and anchors.
        horizon: H.
        kind: `standard` or `robust`.

    Returns:
        Statistics of the same shape as `level`.
    """
    num_groups = len(level.fell_back)
    count, spread, rms = _spread(target, max(num_groups, 1), num_groups == 0, horizon, kind)
    center = level.center[: len(count)]
    spread = np.where(is_constant(center, spread), rms, spread)
    enough = (count >= (MIN_COUNT if num_groups else 1)) & ~is_constant(center, spread)
    if enough.any():
        overall, constant = float(np.median(spread[enough])), False
    else:
        pooled = np.sqrt(np.sum(rms**2 * count) / max(count.sum(), 1))
        constant = bool(is_constant(level.center[-1], pooled))
        overall = 1.0 if constant else float(pooled)
    scale = np.where(enough, spread, overall)[:num_groups]
    few = count[:num_groups] < MIN_COUNT
    return GroupStatistics(level.center, np.append(scale, overall), few, constant, level.count)


def _spread(
    target: Anchored, num_groups: int, together: bool, horizon: int, kind: Kind
) -> tuple[Floats, Floats, Floats]:
    """Number of labels, size of changes by `kind`, and their root mean square: (G,) each."""
    count, square, robust = np.zeros((3, num_groups))
    for k in range(1, horizon + 1):
        same = (target.segment[k:] == target.segment[:-k]) & (target.segment[k:] >= 0)
        changes = target.labels[k:] - target.anchors[:-k]
        known = same & np.isfinite(changes)
        changes = changes[known]
        groups = np.zeros(len(changes), dtype=np.int64) if together else target.series[k:][known]
        step_count = np.bincount(groups, minlength=num_groups)
        count += step_count
        square += np.bincount(groups, changes * changes, minlength=num_groups)
        if kind == "robust":
            medians = group_medians(np.abs(changes), groups, num_groups)
            robust += step_count * (MEDIAN_TO_STD * medians) ** 2
    divisor = np.maximum(count, 1)
    rms = np.sqrt(square / divisor)
    return count, np.sqrt(robust / divisor) if kind == "robust" else rms, rms
