"""Errors of quantile forecasts, summed batch by batch: memory does not grow with the number of windows.

Letters: n windows, K steps of the horizon, O targets, Q quantile levels, P level pairs, S series.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """Errors of one target, or of all of them. A figure without any label behind it is NaN.

    Over several targets every label counts alike, so targets in large units decide the overall figures.
    """

    labels: int
    unknown_labels: int
    """Labels that are NaN; they count nowhere."""
    pinball: tuple[float, ...]
    """Mean quantile loss per level (paper eq. 25)."""
    mean_pinball: float
    q_risk: tuple[float, ...]
    """Normalised quantile loss per level, `2 * sum(loss) / sum(|y|)` (paper eq. 26)."""
    wql: float
    """Mean of `q_risk` over the levels."""
    mae: float
    """Mean absolute error of the report's `median_level`."""
    rmse: float
    """Root of the mean squared error of the report's `median_level`."""
    coverage: tuple[float, ...]
    """Share of labels at or below the forecast, per level; ideally the level itself."""
    interval_coverage: tuple[float, ...]
    """Share of labels within each of the report's `intervals`, ends included."""
    crossings: int
    """Neighbouring levels that came out of order; forecasts are sorted before errors are taken."""
    sql: float | None
    """Scaled quantile loss: twice the mean loss over levels and steps, in units of the series' scale, then the
    mean over windows. `None` where no scales were given."""
    mase: float | None
    """Absolute error of `median_level`, scaled and averaged like `sql`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorReport:
    """What `ForecastErrors.result` returns."""

    quantiles: tuple[float, ...]
    median_level: float
    """The level nearest to 0.5, whose forecast stands for the median."""
    intervals: tuple[tuple[float, float], ...]
    """Pairs of levels that lie symmetrically about 0.5, widest first."""
    overall: Errors
    targets: tuple[Errors, ...]
    series_sql: Floats | None
    """(S, O), NaN for a series without windows or without a scale."""
    series_mase: Floats | None
    notes: tuple[str, ...]
    """What was left out, one line each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sums:
    """Sums over the known labels, one row per target."""

    labels: NDArray[np.int64]  # (O,)
    unknown_labels: NDArray[np.int64]  # (O,)
    nonfinite_forecasts: NDArray[np.int64]  # (O,)
    crossings: NDArray[np.int64]  # (O,)
    pinball: Floats  # (O, Q)
    covered: NDArray[np.int64]  # (O, Q)
    inside: NDArray[np.int64]  # (O, P)
    absolute_label: Floats  # (O,)
    absolute_error: Floats  # (O,)
    squared_error: Floats  # (O,)

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def over(self, targets: slice) -> _Sums:
        """Sums over some targets, without the target axis."""
        return _Sums(**{f.name: getattr(self, f.name)[targets].sum(axis=0) for f in fields(self)})


class ForecastErrors:
    """Adds up the errors of forecasts, in float64, and turns the sums into metrics.

    Instances can be pickled, so those of several processes can be gathered and merged.

    Args:
        quantiles: Q levels in rising order.
        num_targets: O.
        num_series: S, where SQL and MASE are wanted.
    """

    def __init__(self, quantiles: Sequence[float], num_targets: int, num_series: int | None = None) -> None:
        self.quantiles = tuple(quantiles)
        assert self.quantiles == tuple(sorted(set(quantiles))), "levels must rise"
        self.num_targets = num_targets
        self.median = median_index(self.quantiles)
        self.pairs = _symmetric_pairs(self.quantiles)
        no_windows = np.empty((0, 1, num_targets))
        self._sums = self._batch_sums(no_windows, np.empty((0, 1, num_targets, len(self.quantiles))))
        # Sums over windows of the window's mean loss, mean absolute error, and 1.
        self._series_sums = None if num_series is None else np.zeros((3, num_series, num_targets))

    def add(self, labels: ArrayLike, forecasts: ArrayLike, series: NDArray[np.integer] | None = None) -> None:
        """Adds a batch of windows.

        Args:
            labels: (n, K, O), NaN where unknown.
            forecasts: (n, K, O, Q) in the same units, levels in the order of `quantiles`; they are sorted here.
            series: (n,) series of each window, needed where `num_series` was given.
        """
        labels = np.asarray(labels, dtype=np.float64)  # (n, K, O)
        forecasts = np.asarray(forecasts, dtype=np.float64)  # (n, K, O, Q)
        assert labels.ndim == 3 and forecasts.shape == (*labels.shape, len(self.quantiles))
        assert labels.shape[2] == self.num_targets
        assert (series is None) == (self._series_sums is None), "series and num_series belong together"
        self._sums = self._sums + self._batch_sums(labels, forecasts)
        if series is not None and self._series_sums is not None:
            np.add.at(self._series_sums, (slice(None), series), self._window_means(labels, forecasts))

    def merge(self, other: ForecastErrors) -> None:
        """Adds what another accumulator of the same levels, targets and series has summed."""
        assert (self.quantiles, self.num_targets) == (other.quantiles, other.num_targets)
        assert (self._series_sums is None) == (other._series_sums is None)
        self._sums = self._sums + other._sums
        if self._series_sums is not None:
            self._series_sums += other._series_sums

    def result(self, series_scale: Floats | None = None) -> ErrorReport:
        """Returns the metrics of everything added so far.

        Args:
            series_scale: (S, O) in-sample mean absolute error of the seasonal naive forecast, in the units of the
                labels. Series whose scale is 0 or NaN are left out of SQL and MASE; a note counts them.
        """
        sql, mase, windows = self._scaled_sums(series_scale)
        everything, each = slice(None), [slice(o, o + 1) for o in range(self.num_targets)]
        overall, *targets = [
            self._errors(
                self._sums.over(part), *(_scaled_mean(sums, windows, part) for sums in (2 * sql, mase))
            )
            for part in (everything, *each)
        ]
        has_scale = series_scale is not None
        with np.errstate(invalid="ignore"):
            series_sql, series_mase = 2 * sql / windows, mase / windows  # (S, O)
        return ErrorReport(
            quantiles=self.quantiles,
            median_level=self.quantiles[self.median],
            intervals=tuple((self.quantiles[low], self.quantiles[high]) for low, high in self.pairs),
            overall=overall,
            targets=tuple(targets),
            series_sql=series_sql if has_scale else None,
            series_mase=series_mase if has_scale else None,
            notes=tuple(self._notes(overall, series_scale)),
        )

    def _batch_sums(self, labels: Floats, forecasts: Floats) -> _Sums:
        """Sums over the windows and steps of a batch."""
        known = ~np.isnan(labels)  # (n, K, O)
        ordered, _ = sort_quantiles(forecasts)
        error = np.where(known, labels - ordered[..., self.median], 0.0)
        low, high = (ordered[..., list(side)] for side in _columns(self.pairs))  # (n, K, O, P)
        y = labels[..., None]  # a comparison with NaN is False, so unknown labels are never counted
        steps = (0, 1)
        return _Sums(
            labels=known.sum(steps),
            unknown_labels=(~known).sum(steps),
            nonfinite_forecasts=(~np.isfinite(forecasts)).sum((0, 1, 3)),
            crossings=(np.diff(forecasts) < 0).sum((0, 1, 3)),
            pinball=self._pinball(labels, ordered).sum(steps),
            covered=(y <= ordered).sum(steps),
            inside=((low <= y) & (y <= high)).sum(steps),
            absolute_label=np.where(known, np.abs(labels), 0.0).sum(steps),
            absolute_error=np.abs(error).sum(steps),
            squared_error=(error**2).sum(steps),
        )

    def _pinball(self, labels: Floats, ordered: Floats) -> Floats:
        """Quantile loss of every forecast, 0 where the label is unknown."""
        levels = np.asarray(self.quantiles)
        error = labels[..., None] - ordered  # (n, K, O, Q)
        loss = np.maximum(levels * error, (levels - 1) * error)
        return np.where(np.isnan(labels)[..., None], 0.0, loss)

    def _window_means(self, labels: Floats, forecasts: Floats) -> Floats:
        """Mean loss, mean absolute error and 1 per window and target; 0 where a window has no label."""
        ordered, _ = sort_quantiles(forecasts)
        known = ~np.isnan(labels)  # (n, K, O)
        counts = np.maximum(known.sum(1), 1)  # (n, O)
        loss = self._pinball(labels, ordered).mean(-1).sum(1) / counts
        error = np.where(known, np.abs(labels - ordered[..., self.median]), 0.0).sum(1) / counts
        return np.stack([loss, error, known.any(1).astype(np.float64)])  # (3, n, O)

    def _scaled_sums(self, series_scale: Floats | None) -> tuple[Floats, Floats, Floats]:
        """Loss and absolute error in units of the scale, and windows: (S, O), 0 where a series has no scale."""
        if series_scale is None or self._series_sums is None:
            assert series_scale is None, "SQL and MASE need num_series"
            nothing = np.zeros((0, self.num_targets))
            return nothing, nothing, nothing
        usable = series_scale > 0
        scale = np.where(usable, series_scale, 1.0)
        loss, error, windows = np.where(usable, self._series_sums, 0.0)
        return loss / scale, error / scale, windows

    def _errors(self, sums: _Sums, sql: float | None, mase: float | None) -> Errors:
        """Turns sums into means."""
        count = _or_nan(sums.labels)
        pinball = sums.pinball / count
        q_risk = 2 * sums.pinball / _or_nan(sums.absolute_label)
        return Errors(
            labels=int(sums.labels),
            unknown_labels=int(sums.unknown_labels),
            pinball=_floats(pinball),
            mean_pinball=float(pinball.mean()),
            q_risk=_floats(q_risk),
            wql=float(q_risk.mean()),
            mae=float(sums.absolute_error / count),
            rmse=float(np.sqrt(sums.squared_error / count)),
            coverage=_floats(sums.covered / count),
            interval_coverage=_floats(sums.inside / count),
            crossings=int(sums.crossings),
            sql=sql,
            mase=mase,
        )

    def _notes(self, overall: Errors, series_scale: Floats | None) -> list[str]:
        """Says what was not counted and what came out of order."""
        notes = []
        if overall.unknown_labels:
            total = overall.labels + overall.unknown_labels
            notes.append(f"labels: {overall.unknown_labels} of {total} are unknown and not counted")
        nonfinite = int(self._sums.nonfinite_forecasts.sum())
        if nonfinite:
            notes.append(
                f"forecasts: {nonfinite} values are not finite; errors that they enter are not either"
            )
        if overall.crossings:
            notes.append(f"forecasts: {overall.crossings} neighbouring levels out of order before sorting")
        if series_scale is not None and self._series_sums is not None:
            seen = (self._series_sums[2] > 0).any(axis=1)
            no_scale = ~(series_scale > 0).all(axis=1) & seen
            if no_scale.any():
                notes.append(
                    f"SQL and MASE: {no_scale.sum()} of {seen.sum()} series left out (of the targets concerned): "
                    "their seasonal naive error in training is 0 or unknown"
                )
        return notes


def sort_quantiles(forecasts: Floats) -> tuple[Floats, int]:
    """Puts the levels of every forecast in rising order.

    Args:
        forecasts: (..., Q), levels in rising order on the last axis.

    Returns:
        The sorted forecasts, and how many pairs of neighbouring levels were out of order.
    """
    return np.sort(forecasts, axis=-1), int((np.diff(forecasts, axis=-1) < 0).sum())


def median_index(quantiles: Sequence[float]) -> int:
    """Returns the position of the level nearest to 0.5, the lower one of two as near."""
    return min(range(len(quantiles)), key=lambda index: (round(abs(quantiles[index] - 0.5), 9), index))


def level_name(quantile: float) -> str:
    """Returns how a level is written in tags and columns: `p10` for 0.1, `p2.5` for 0.025."""
    return f"p{100 * quantile:.10g}"


def _symmetric_pairs(quantiles: Sequence[float]) -> tuple[tuple[int, int], ...]:
    """Positions of levels q < 0.5 and 1 - q that both occur."""
    last = len(quantiles)
    return tuple(
        (low, high)
        for low in range(last)
        for high in range(low + 1, last)
        if abs(quantiles[low] + quantiles[high] - 1) < 1e-9
    )


def _columns(pairs: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Splits pairs into their first and second members."""
    return [low for low, _ in pairs], [high for _, high in pairs]


def _scaled_mean(sums: Floats, windows: Floats, part: slice) -> float | None:
    """Mean over the windows of some targets; `None` without any series."""
    if not len(sums):
        return None
    return float(sums[:, part].sum() / _or_nan(windows[:, part].sum()))


def _or_nan(divisor: ArrayLike) -> Floats:
    """The divisor, with NaN for 0."""
    divisor = np.asarray(divisor, dtype=np.float64)
    return np.where(divisor == 0, np.nan, divisor)


def _floats(values: Floats) -> tuple[float, ...]:
    """Plain numbers, fit for JSON."""
    return tuple(float(value) for value in values)
