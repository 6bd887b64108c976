"""Bars of all series to indicator columns and bar statics. Letters: N rows, S series, V columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ds_tft.config.run import BarColumns
from ds_tft.data.bar_statics import bar_static_names, bar_statics
from ds_tft.data.indicators import (
    WARM_UP_ROWS,
    Bars,
    compute_indicators,
    fill_missing_bars,
    indicator_names,
)
from ds_tft.data.rows import Rows
from ds_tft.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class BarFeatures:
    """Indicators of every row."""

    names: tuple[str, ...]
    values: NDArray[np.float64]  # (N, V) NaN in warm-up rows
    completed_rows: int
    """Incomplete bars of the file that were taken for bars without a trade."""
    contradictory_rows: int
    """Bars whose open or close lies outside low and high; taken as they are."""

    def lines(self) -> list[str]:
        """Describes what was computed."""
        lines = [
            f"bars: {len(self.names)} indicators; those that look back furthest have no value in the first "
            f"{WARM_UP_ROWS} rows of a series and stand at their mean there"
        ]
        if self.completed_rows:
            lines.append(f"bars: {self.completed_rows:,} incomplete bars taken for bars without a trade")
        if self.contradictory_rows:
            lines.append(
                f"bars: {self.contradictory_rows:,} bars have a price above their high or below their low, "
                "taken as they are"
            )
        return lines


def bar_feature_columns(bars: BarColumns) -> tuple[str, ...]:
    """The columns of the file that bar features are computed from."""
    prices = (bars.open, bars.high, bars.low, bars.close)
    return prices if bars.volume is None else (*prices, bars.volume)


def compute_bar_features(rows: Rows, bars: BarColumns) -> BarFeatures:
    """Computes the indicators of each series over all of its rows, across segments.

    Args:
        rows: Rows before missing values were filled.
        bars: Names of the columns.

    Returns:
        The indicators.

    Raises:
        DataError: A price is not positive, or a volume is negative.
    """
    names = indicator_names(bars.volume is not None)
    values = np.full((rows.num_rows, len(names)), np.nan)
    completed = contradictory = 0
    for series, where in _series_slices(rows):
        of_series = _bars_of(rows, bars, where)
        filled, _ = fill_missing_bars(of_series)
        completed += _num_incomplete(of_series, rows.synthetic[where])
        contradictory += _num_contradictory(of_series)
        try:
            values[where] = compute_indicators(filled)
        except DataError as error:
            name = rows.series_names[series]
            raise DataError(f"series '{name}': {error}" if name else str(error)) from None
    return BarFeatures(names=names, values=values, completed_rows=completed, contradictory_rows=contradictory)


def compute_bar_statics(rows: Rows, bars: BarColumns, train: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Computes the statics of each series from its training rows: (S, V), NaN for a series without any."""
    values = np.full((len(rows.series_names), len(bar_static_names(bars.volume is not None))), np.nan)
    for series, where in _series_slices(rows):
        of_series = _bars_of(rows, bars, where).rows(train[where])
        if of_series.whole().any():
            values[series] = bar_statics(of_series.rows(of_series.whole()))
    return values


def _num_incomplete(bars: Bars, synthetic: NDArray[np.bool_]) -> int:
    """Counts incomplete bars after the first whole one, those of synthetic rows (N,) left out."""
    whole = bars.whole()
    return int((np.maximum.accumulate(whole) & ~whole & ~synthetic).sum())


def _num_contradictory(bars: Bars) -> int:
    """Counts bars with a price above the high or below the low; a missing price contradicts nothing."""
    prices = (bars.open, bars.close, bars.low, bars.high)
    outside = [(price > bars.high) | (price < bars.low) for price in prices]
    return int(np.logical_or.reduce(outside).sum())


def _series_slices(rows: Rows) -> list[tuple[int, slice]]:
    """Where the rows of each series are."""
    first = np.flatnonzero(rows.starts_series())
    stop = np.append(first[1:], rows.num_rows)
    return [(int(rows.series[a]), slice(int(a), int(b))) for a, b in zip(first, stop, strict=True)]


def _bars_of(rows: Rows, bars: BarColumns, where: slice) -> Bars:
    """The bars of one series."""
    return Bars(
        open=rows.reals[bars.open][where],
        high=rows.reals[bars.high][where],
        low=rows.reals[bars.low][where],
        close=rows.reals[bars.close][where],
        volume=None if bars.volume is None else rows.reals[bars.volume][where],
    )
