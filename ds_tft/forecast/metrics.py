"""Errors of quantile forecasts, summed batch by batch: memory does not grow with the number of windows.

Letters: n windows, K steps of the horizon, O targets, Q quantile levels, P level pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


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
    notes: tuple[str, ...]
    """What was not counted and what was put right, one line each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sums:
    """Sums over the known labels, one row per target."""

    labels: Counts  # (O,)
    unknown_labels: Counts  # (O,)
    nonfinite_forecasts: Counts  # (O,)
    crossings: Counts  # (O,)
    pinball: Floats  # (O, Q)
    covered: Counts  # (O, Q)
    inside: Counts  # (O, P)
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
    """

    def __init__(self, quantiles: Sequence[float], num_targets: int) -> None:
        assert list(quantiles) == sorted(set(quantiles)), "levels must rise"
        self.quantiles = tuple(quantiles)
        self.num_targets = num_targets
        self._median = median_index(quantiles)
        self._pairs = _symmetric_pairs(quantiles)
        self._sums = self._sum(np.empty((0, 1, num_targets)), np.empty((0, 1, num_targets, len(quantiles))))

    def add(self, labels: ArrayLike, forecasts: ArrayLike) -> None:
        """Adds a batch of windows.

        Args:
            labels: (n, K, O), NaN where unknown.
            forecasts: (n, K, O, Q) in the same units, in the order of `quantiles`; they are sorted here.
        """
        labels, forecasts = as_batch(labels, forecasts)
        assert forecasts.shape[2:] == (self.num_targets, len(self.quantiles))
        self._sums = self._sums + self._sum(labels, forecasts)

    def merge(self, other: ForecastErrors) -> None:
        """Adds what another accumulator of the same levels and targets has summed."""
        assert (self.quantiles, self.num_targets) == (other.quantiles, other.num_targets)
        self._sums = self._sums + other._sums

    def result(self) -> ErrorReport:
        """Returns the metrics of everything added so far."""
        overall = _means(self._sums.over(slice(None)))
        return ErrorReport(
            quantiles=self.quantiles,
            median_level=self.quantiles[self._median],
            intervals=tuple((self.quantiles[low], self.quantiles[high]) for low, high in self._pairs),
            overall=overall,
            targets=tuple(_means(self._sums.over(slice(o, o + 1))) for o in range(self.num_targets)),
            notes=_notes(overall, int(self._sums.nonfinite_forecasts.sum())),
        )

    def _sum(self, labels: Floats, forecasts: Floats) -> _Sums:
        """Sums over the windows and steps of a batch."""
        known = ~np.isnan(labels)  # (n, K, O)
        ordered, _ = sort_quantiles(forecasts)
        error = np.where(known, labels - ordered[..., self._median], 0.0)
        low = ordered[..., [low for low, _ in self._pairs]]  # (n, K, O, P)
        high = ordered[..., [high for _, high in self._pairs]]
        y = labels[..., None]  # comparisons with NaN are False: unknown labels are neither covered nor inside
        return _Sums(
            labels=known.sum((0, 1)),
            unknown_labels=(~known).sum((0, 1)),
            nonfinite_forecasts=(~np.isfinite(forecasts)).sum((0, 1, 3)),
            crossings=(np.diff(forecasts) < 0).sum((0, 1, 3)),
            pinball=pinball_loss(labels, ordered, self.quantiles).sum((0, 1)),
            covered=(y <= ordered).sum((0, 1)),
            inside=((low <= y) & (y <= high)).sum((0, 1)),
            absolute_label=np.where(known, np.abs(labels), 0.0).sum((0, 1)),
            absolute_error=np.abs(error).sum((0, 1)),
            squared_error=(error**2).sum((0, 1)),
        )


def pinball_loss(labels: Floats, forecasts: Floats, quantiles: Sequence[float]) -> Floats:
    """Returns the quantile loss of every forecast, 0 where the label is NaN (paper eq. 25).

    Args:
        labels: (n, K, O).
        forecasts: (n, K, O, Q).
        quantiles: Q levels.

    Returns:
        (n, K, O, Q) `q * max(y - f, 0) + (1 - q) * max(f - y, 0)`.
    """
    levels = np.asarray(quantiles)
    error = labels[..., None] - forecasts
    return np.where(np.isnan(labels)[..., None], 0.0, np.maximum(levels * error, (levels - 1) * error))


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


def as_batch(labels: ArrayLike, forecasts: ArrayLike) -> tuple[Floats, Floats]:
    """Brings labels (n, K, O) and forecasts (n, K, O, Q) to float64 and checks that they belong together."""
    labels = np.asarray(labels, dtype=np.float64)
    forecasts = np.asarray(forecasts, dtype=np.float64)
    assert labels.ndim == 3
    assert forecasts.shape[:-1] == labels.shape
    return labels, forecasts


def or_nan(divisor: ArrayLike) -> Floats:
    """Returns the divisor with NaN for 0, so that a mean of nothing is NaN."""
    divisor = np.asarray(divisor, dtype=np.float64)
    return np.where(divisor == 0, np.nan, divisor)


def _means(sums: _Sums) -> Errors:
    """Turns sums into means."""
    count = or_nan(sums.labels)
    pinball = sums.pinball / count
    q_risk = 2 * sums.pinball / or_nan(sums.absolute_label)
    return Errors(
        labels=int(sums.labels),
        unknown_labels=int(sums.unknown_labels),
        pinball=tuple(pinball.tolist()),
        mean_pinball=float(pinball.mean()),
        q_risk=tuple(q_risk.tolist()),
        wql=float(q_risk.mean()),
        mae=float(sums.absolute_error / count),
        rmse=float(np.sqrt(sums.squared_error / count)),
        coverage=tuple((sums.covered / count).tolist()),
        interval_coverage=tuple((sums.inside / count).tolist()),
        crossings=int(sums.crossings),
    )


def _notes(overall: Errors, nonfinite: int) -> tuple[str, ...]:
    """Says what was not counted and what was put right."""
    notes = []
    if overall.unknown_labels:
        total = overall.labels + overall.unknown_labels
        notes.append(f"labels: {overall.unknown_labels} of {total} are unknown and not counted")
    if nonfinite:
        notes.append(f"forecasts: {nonfinite} values are not finite, and so are the errors that they enter")
    if overall.crossings:
        notes.append(f"forecasts: {overall.crossings} neighbouring levels out of order, put in order")
    return tuple(notes)


def _symmetric_pairs(quantiles: Sequence[float]) -> list[tuple[int, int]]:
    """Positions of levels q < 0.5 and 1 - q that both occur, widest pair first."""
    places = range(len(quantiles))
    pairs = [(low, high) for low in places for high in places if low < high]
    return [(low, high) for low, high in pairs if abs(quantiles[low] + quantiles[high] - 1) < 1e-9]
