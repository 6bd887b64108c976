"""Errors in units of what a seasonal naive forecast would make: comparable between series of any size.

Letters: N rows, n windows, K steps of the horizon, O targets, Q quantile levels, S series.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ds_tft.data.scaling import TargetScaler
from ds_tft.data.table import Table
from ds_tft.forecast.metrics import Floats, as_batch, median_index, or_nan, pinball_loss, sort_quantiles
from ds_tft.forecast.rows import rows_with_earlier, segment_of_row


@dataclass(frozen=True, slots=True)
class SeasonalScale:
    """What the seasonal naive forecast gets wrong within the training rows of each series."""

    season: int
    """Rows per season."""
    error: Floats  # (S, O) mean absolute error in original units


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledReport:
    """Scaled quantile loss (SQL) and mean absolute scaled error (MASE), both means over windows.

    Within a window, SQL is twice the mean loss over known steps and levels, in units of the series' scale;
    MASE is the mean absolute error of the level nearest to 0.5, likewise. Without any window a figure is NaN.
    """

    sql: float
    mase: float
    target_sql: tuple[float, ...]
    target_mase: tuple[float, ...]
    series_sql: Floats  # (S, O)
    series_mase: Floats  # (S, O)
    notes: tuple[str, ...]
    """Series left out, if any."""


class ScaledErrors:
    """Adds up SQL and MASE per series; memory grows with the series, not with the windows.

    Args:
        quantiles: Q levels in rising order.
        scale: (S, O) in-sample error of the seasonal naive forecast, in the units of the labels, as
            `seasonal_naive_error` returns it. Where it is 0 or NaN the series is left out of that target.
    """

    def __init__(self, quantiles: Sequence[float], scale: Floats) -> None:
        self.quantiles = tuple(quantiles)
        self.scale = scale
        self._loss = np.zeros_like(scale)  # (S, O) sums over windows of the window's mean
        self._error = np.zeros_like(scale)
        self._windows = np.zeros_like(scale)

    def add(self, labels: ArrayLike, forecasts: ArrayLike, series: NDArray[np.integer]) -> None:
        """Adds a batch of windows.

        Args:
            labels: (n, K, O), NaN where unknown. A window without a known label does not count.
            forecasts: (n, K, O, Q) in the same units, in the order of `quantiles`; they are sorted here.
            series: (n,) series of each window.
        """
        labels, forecasts = as_batch(labels, forecasts)
        ordered, _ = sort_quantiles(forecasts)
        known = ~np.isnan(labels)  # (n, K, O)
        counts = np.maximum(known.sum(1), 1)  # (n, O)
        loss = pinball_loss(labels, ordered, self.quantiles).mean(-1)  # (n, K, O)
        error = np.where(known, np.abs(labels - ordered[..., median_index(self.quantiles)]), 0.0)
        np.add.at(self._loss, series, loss.sum(1) / counts)
        np.add.at(self._error, series, error.sum(1) / counts)
        np.add.at(self._windows, series, known.any(1))

    def merge(self, other: ScaledErrors) -> None:
        """Adds what another accumulator of the same levels and scales has summed."""
        assert self.quantiles == other.quantiles
        assert np.array_equal(self.scale, other.scale, equal_nan=True)
        self._loss += other._loss
        self._error += other._error
        self._windows += other._windows

    def result(self) -> ScaledReport:
        """Returns SQL and MASE of everything added so far."""
        usable = self.scale > 0
        scale = np.where(usable, self.scale, 1.0)
        sql, mase, windows = (
            np.where(usable, sums, 0.0)  # (S, O) sums over windows
            for sums in (2 * self._loss / scale, self._error / scale, self._windows)
        )
        total, target_total = or_nan(windows.sum()), or_nan(windows.sum(0))
        return ScaledReport(
            sql=float(sql.sum() / total),
            mase=float(mase.sum() / total),
            target_sql=tuple((sql.sum(0) / target_total).tolist()),
            target_mase=tuple((mase.sum(0) / target_total).tolist()),
            series_sql=sql / or_nan(windows),
            series_mase=mase / or_nan(windows),
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        """Counts the series that have windows but no scale."""
        seen = self._windows > 0  # (S, O)
        left_out = (seen & ~(self.scale > 0)).any(1).sum()
        if not left_out:
            return ()
        return (
            f"SQL and MASE: {left_out} of {seen.any(1).sum()} series left out; "
            "the seasonal naive error in their training rows is 0 or unknown",
        )


def seasonal_scale(
    table: Table, target: TargetScaler, train_rows: NDArray[np.bool_], season: int | None
) -> SeasonalScale | None:
    """Returns the scale of each series in original units; None where there is no season.

    Args:
        table: The prepared data.
        target: Brings its targets back to original units.
        train_rows: (N,) rows whose targets may be used.
        season: Rows per season.
    """
    if season is None:
        return None
    error = seasonal_naive_error(target.inverse(table.targets), table, train_rows, season)
    return SeasonalScale(season, error)


def seasonal_naive_error(values: Floats, table: Table, train_rows: NDArray[np.bool_], season: int) -> Floats:
    """Returns the mean absolute change over one season in the training rows of each series.

    Args:
        values: (N, O) target in the units in which errors are taken, NaN where unknown.
        table: The rows' series and segments.
        train_rows: (N,) rows whose targets may be used.
        season: Rows per season; 1 for the plain naive forecast.

    Returns:
        (S, O), NaN for a series without such a pair of rows.
    """
    later = rows_with_earlier(segment_of_row(table), train_rows, season)
    change = np.abs(values[later] - values[later - season])  # (pairs, O)
    total = np.zeros((len(table.series_keys), values.shape[1]))
    count = np.zeros_like(total)
    np.add.at(total, table.series_of_row[later], np.nan_to_num(change))
    np.add.at(count, table.series_of_row[later], ~np.isnan(change))
    return total / or_nan(count)
