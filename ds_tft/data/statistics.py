"""Centre and scale of groups of numbers, in float64, with a fall back for groups that say too little.

Letters: N numbers, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ds_tft.errors import DataError

Floats = NDArray[np.float64]
Kind = Literal["standard", "robust", "none"]

MIN_COUNT = 10
"""A group with fewer numbers takes the statistics of all groups together."""

RELATIVE_FLOOR = 1e-10
"""A spread below this share of the centre is rounding noise of a constant, not a signal."""

IQR_TO_STD = 0.7413
"""Standard deviation of a normal distribution whose interquartile range is 1."""


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Centre and scale of G groups, then of all numbers together as entry G."""

    center: Floats  # (G+1,)
    scale: Floats  # (G+1,) never 0
    fell_back: NDArray[np.bool_]  # (G,) groups with fewer than MIN_COUNT numbers
    constant: bool  # all numbers together have no spread
    count: int  # finite numbers in all groups

    def check(self, where: str, values: Floats) -> None:
        """Refuses numbers so large that their statistics left the range of float64.

        Args:
            where: What the numbers are, for the message.
            values: (N,) the numbers; NaN where missing.

        Raises:
            DataError: They are.
        """
        if not (np.isfinite(self.center).all() and np.isfinite(self.scale).all()):
            largest = np.abs(values[np.isfinite(values)]).max()
            raise DataError(
                f"{where}: values of the training period are too large to scale, got magnitudes up to "
                f"{largest:g}; correct them, or store them in a larger unit"
            )


@np.errstate(over="ignore", invalid="ignore")  # `GroupStatistics.check` finds an overflow, and says where
def group_statistics(
    values: Floats, groups: NDArray[np.integer], num_groups: int, kind: Kind
) -> GroupStatistics:
    """Fits centre and scale, ignoring what is not finite.

    A group with fewer than `MIN_COUNT` numbers takes centre and scale of all numbers together; a constant
    group keeps its own centre and takes their scale. If all numbers together are constant, that scale is 1.

    Args:
        values: (N,) numbers; NaN where missing.
        groups: (N,) group of each, from 0.
        num_groups: G; with 0 only the numbers together are described.
        kind: `standard` is mean and standard deviation, `robust` median and scaled interquartile range (the
            standard deviation where that range is 0), `none` is 0 and 1.

    Returns:
        G+1 centres and scales.
    """
    finite = np.isfinite(values)
    values, groups = values[finite], groups[finite]
    if kind == "none":
        ones = np.ones(num_groups + 1)
        return GroupStatistics(0 * ones, ones, np.zeros(num_groups, dtype=bool), False, len(values))
    _, all_center, all_scale = _center_and_scale(values, np.zeros(len(values), dtype=np.int64), 1, kind)
    constant = bool(is_constant(all_center, all_scale)[0])
    all_scale = np.ones(1) if constant else all_scale
    in_groups = len(values) if num_groups else 0
    count, center, scale = _center_and_scale(values[:in_groups], groups[:in_groups], num_groups, kind)
    few = count < MIN_COUNT
    center = np.where(few, all_center, center)
    scale = np.where(few | is_constant(center, scale), all_scale, scale)
    return GroupStatistics(
        np.append(center, all_center), np.append(scale, all_scale), few, constant, len(values)
    )


def is_constant(center: Floats, scale: Floats) -> NDArray[np.bool_]:
    """Tells where a spread is no more than the rounding noise of a constant."""
    return scale <= RELATIVE_FLOOR * np.abs(center)


def group_medians(values: Floats, groups: NDArray[np.integer], num_groups: int) -> Floats:
    """Median of each group, (G,); 0 for a group without numbers."""
    return _group_quantiles(values, groups, num_groups, (0.5,))[0]


def _center_and_scale(
    values: Floats, groups: NDArray[np.integer], num_groups: int, kind: Kind
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Count, centre and raw spread of each group: (G,) each."""
    count, mean, std = _moments(values, groups, num_groups)
    if kind == "standard":
        return count, mean, std
    low, median, high = _group_quantiles(values, groups, num_groups, (0.25, 0.5, 0.75))
    spread = (high - low) * IQR_TO_STD
    return count, median, np.where(is_constant(np.maximum(np.abs(median), std), spread), std, spread)


def _moments(
    values: Floats, groups: NDArray[np.integer], num_groups: int
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Count, mean and standard deviation of each group, in two passes over the numbers."""
    count = np.bincount(groups, minlength=num_groups)
    divisor = np.maximum(count, 1)
    mean = np.bincount(groups, values, minlength=num_groups) / divisor
    deviation = values - mean[groups]
    # The second pass also measures what rounding left in the mean, so that a large offset costs nothing.
    error = np.bincount(groups, deviation, minlength=num_groups) / divisor
    square = np.bincount(groups, deviation * deviation, minlength=num_groups) / divisor
    return count, mean + error, np.sqrt(np.maximum(square - error * error, 0))


def _group_quantiles(
    values: Floats, groups: NDArray[np.integer], num_groups: int, levels: tuple[float, ...]
) -> Floats:
    """Quantiles of each group by linear interpolation, (len(levels), G)."""
    if len(values) == 0:
        return np.zeros((len(levels), num_groups))
    # One sort of plain numbers is several times faster than a sort by two keys.
    ordered = np.sort(values) if num_groups == 1 else values[np.lexsort((values, groups))]
    count = np.bincount(groups, minlength=num_groups)
    first = np.minimum(np.cumsum(count) - count, len(values) - 1)
    last = np.maximum(count - 1, 0)
    position = np.asarray(levels)[:, None] * last  # (levels, G)
    below = position.astype(np.int64)
    low, high = ordered[first + below], ordered[first + np.minimum(below + 1, last)]
    return np.where(count > 0, low + (position - below) * (high - low), 0)
