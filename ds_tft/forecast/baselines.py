"""Forecasts without a model, in the shape of the model's: what a forecast has to beat to be worth its cost.

All of them are in units of the table's targets: transformed (log, where asked), neither anchored nor scaled.
The transforms rise, so the inverse transform of a quantile is the quantile in original units.

Letters: N rows, n origins, K steps of the horizon, O targets, Q quantile levels, S series, G different lags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ds_tft.data.table import Table
from ds_tft.forecast.rows import Rows, rows_with_earlier, segment_of_row

Floats = NDArray[np.float64]

FEWEST_SAMPLES = 30
"""A series with fewer training samples than this takes its quantiles from all series."""


class Baseline(Protocol):
    """A forecast made without a model."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was put in place of missing training data, one line each."""

    def forecast(self, origins: Rows) -> Floats:
        """Returns forecasts (n, K, O, Q) for windows whose last history rows are `origins` (n,)."""

    def fallbacks(self, origins: Rows) -> int:
        """Counts the steps that get the last value because the row they need lies before the segment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierValue:
    """The value at an earlier row of the segment, plus quantiles of how much it changed since, in training.

    Step k is forecast from row t + k - lag[k]. Where that lies before the segment, row t takes its place; the
    quantiles of change stay those of the lag.
    """

    history: Floats  # (N, O) target, missing values carried forward
    series_of_row: NDArray[np.int32]  # (N,)
    first_row: Rows  # (N,) first row of each row's segment
    lags: Rows  # (K,) lag of each step, at least k, so that no row after the origin is read
    lag_index: Rows  # (K,) place of the step's lag among the G different ones
    changes: Floats  # (S, G, O, Q) quantiles of change; zeros for a point forecast
    notes: tuple[str, ...] = ()

    def forecast(self, origins: Rows) -> Floats:
        """Returns forecasts (n, K, O, Q), the same value at all levels where there are no changes."""
        rows = self._rows(origins)  # (n, K)
        rows = np.where(rows < self.first_row[origins, None], origins[:, None], rows)
        series = self.series_of_row[origins, None]
        return self.history[rows][..., None] + self.changes[series, self.lag_index]

    def fallbacks(self, origins: Rows) -> int:
        """Counts the steps whose earlier row lies before the segment."""
        return int((self._rows(origins) < self.first_row[origins, None]).sum())

    def _rows(self, origins: Rows) -> Rows:
        """Rows that hold the earlier values, (n, K)."""
        return origins[:, None] + np.arange(1, len(self.lags) + 1) - self.lags


@dataclass(frozen=True, kw_only=True, slots=True)
class Unconditional:
    """The quantiles of the target in the training rows of the series, whatever came before."""

    quantiles: Floats  # (S, O, Q)
    series_of_row: NDArray[np.int32]  # (N,)
    horizon: int
    notes: tuple[str, ...] = ()

    def forecast(self, origins: Rows) -> Floats:
        """Returns forecasts (n, K, O, Q), the same at every step."""
        values = self.quantiles[self.series_of_row[origins]]  # (n, O, Q)
        return np.repeat(values[:, None], self.horizon, axis=1)

    def fallbacks(self, origins: Rows) -> int:  # noqa: ARG002 - part of the protocol
        """Returns 0: no earlier row is read."""
        return 0


def make_baselines(
    table: Table,
    train_rows: NDArray[np.bool_],
    *,
    horizon: int,
    quantiles: Sequence[float],
    season: int | None = None,
) -> dict[str, Baseline]:
    """Builds the baselines that a forecast is compared with.

    Args:
        table: The prepared data.
        train_rows: (N,) rows whose targets may be learned from.
        horizon: Steps to forecast, K.
        quantiles: Q levels in rising order.
        season: Rows per season, where there is one.

    Returns:
        Baselines by name: `last value`, `naive quantiles` (last value plus quantiles of its k-step changes),
        `unconditional quantiles`; with a season also `seasonal naive` (the value of the last season that is
        known at the origin) and `seasonal quantiles` (that, plus quantiles of its changes). Without any
        training row, those with quantiles are left out.
    """
    levels = np.asarray(quantiles, dtype=np.float64)
    steps = np.arange(1, horizon + 1)
    can_learn = bool(train_rows.any())
    baselines: dict[str, Baseline] = {"last value": _point(table, steps, levels)}
    if can_learn:
        baselines["naive quantiles"] = _with_changes(table, train_rows, steps, levels)
        baselines["unconditional quantiles"] = _unconditional(table, train_rows, horizon, levels)
    if season is not None:
        assert season >= 1
        lags = season * -(-steps // season)  # the fewest whole seasons that reach back to the origin
        baselines["seasonal naive"] = _point(table, lags, levels)
        if can_learn:
            baselines["seasonal quantiles"] = _with_changes(table, train_rows, lags, levels)
    return baselines


def _earlier_value(
    table: Table, lags: Rows, lag_index: Rows, changes: Floats, notes: tuple[str, ...]
) -> EarlierValue:
    """Adds what the table knows."""
    segments = segment_of_row(table)
    first_row = np.arange(table.num_rows)
    inside = segments >= 0
    first_row[inside] = table.segments[segments[inside], 1]
    return EarlierValue(
        history=table.history,
        series_of_row=table.series_of_row,
        first_row=first_row,
        lags=lags,
        lag_index=lag_index,
        changes=changes,
        notes=notes,
    )


def _point(table: Table, lags: Rows, levels: Floats) -> EarlierValue:
    """An earlier value for every level."""
    changes = np.zeros((len(table.series_keys), 1, table.targets.shape[1], len(levels)))
    return _earlier_value(table, lags, np.zeros_like(lags), changes, ())


def _with_changes(table: Table, train_rows: NDArray[np.bool_], lags: Rows, levels: Floats) -> EarlierValue:
    """An earlier value plus the quantiles of training changes over the same lag."""
    different, lag_index = np.unique(lags, return_inverse=True)
    segments = segment_of_row(table)
    changes = np.empty((len(table.series_keys), len(different), table.targets.shape[1], len(levels)))
    short = np.zeros(len(table.series_keys), dtype=np.bool_)
    for place, lag in enumerate(different.tolist()):
        later = rows_with_earlier(segments, train_rows, lag)
        samples = np.full_like(table.targets, np.nan)
        samples[later] = table.targets[later] - table.targets[later - lag]
        changes[:, place], few = _series_quantiles(table, samples, levels, np.zeros_like(table.center))
        short |= few
    return _earlier_value(table, lags, lag_index, changes, _short_note("changes", short))


def _unconditional(
    table: Table, train_rows: NDArray[np.bool_], horizon: int, levels: Floats
) -> Unconditional:
    """Quantiles of the training targets."""
    samples = np.where(train_rows[:, None], table.targets, np.nan)
    quantiles, short = _series_quantiles(table, samples, levels, table.center)
    return Unconditional(
        quantiles=quantiles,
        series_of_row=table.series_of_row,
        horizon=horizon,
        notes=_short_note("targets", short),
    )


def _series_quantiles(
    table: Table, samples: Floats, levels: Floats, center: Floats
) -> tuple[Floats, NDArray[np.bool_]]:
    """Quantiles (S, O, Q) of the samples (N, O) that are not NaN, and which series (S,) had too few of them.

    These get the quantiles of all series, taken in units of each series' center and scale.
    """
    bounds = np.searchsorted(table.series_of_row, np.arange(len(table.series_keys) + 1))
    quantiles, counts = _quantiles_between(samples, bounds, levels)
    few = counts < FEWEST_SAMPLES  # (S, O)
    if few.any():
        scale = np.where(table.scale > 0, table.scale, 1.0)
        pool = (samples - center[table.series_of_row]) / scale[table.series_of_row]
        pooled, pool_counts = _quantiles_between(pool, np.array([0, len(pool)]), levels)  # (1, O, Q)
        pooled = np.where(pool_counts[..., None] == 0, 0.0, pooled)
        quantiles = np.where(few[..., None], center[..., None] + scale[..., None] * pooled, quantiles)
    return quantiles, np.asarray(few.any(axis=1))


def _quantiles_between(samples: Floats, bounds: Rows, levels: Floats) -> tuple[Floats, Rows]:
    """Quantiles (linear between samples) of the rows from each bound to the next, and numbers of samples."""
    ordered = samples.copy()
    for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        ordered[first:end].sort(axis=0)  # NaN comes last
    known = np.vstack([np.zeros_like(samples[:1], dtype=np.int64), np.cumsum(~np.isnan(samples), axis=0)])
    counts = known[bounds[1:]] - known[bounds[:-1]]  # (S, O)
    place = np.maximum(counts - 1, 0)[..., None] * levels  # (S, O, Q)
    lower = np.floor(place).astype(np.int64)
    first_row = bounds[:-1, None, None]
    column = np.arange(samples.shape[1])[:, None]
    below = ordered[np.minimum(first_row + lower, len(ordered) - 1), column]
    above = ordered[np.minimum(first_row + np.ceil(place).astype(np.int64), len(ordered) - 1), column]
    return below + (place - lower) * (above - below), counts


def _short_note(what: str, short: NDArray[np.bool_]) -> tuple[str, ...]:
    """Says how many series borrow their quantiles."""
    if not short.any():
        return ()
    return (
        f"{short.sum()} of {len(short)} series have fewer than {FEWEST_SAMPLES} {what} in training; "
        "they take the quantiles of all series, in units of their own scale (0 where no series has any)",
    )
