"""Bars of one series, their checks, and the arrays that several indicators share.

Letters: N rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import talib
from numpy.typing import NDArray

from ds_tft.data.indicators.rolling import Floats, lag
from ds_tft.errors import DataError

PRICE_FIELDS = ("open", "high", "low", "close")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars:
    """Rows of one series that follow each other, oldest first. NaN where a value is missing."""

    open: Floats  # (N,)
    high: Floats  # (N,)
    low: Floats  # (N,)
    close: Floats  # (N,)
    volume: Floats | None = None  # (N,)

    def __post_init__(self) -> None:
        shapes = {name: array.shape for name, array in self.columns().items()}
        if len(set(shapes.values())) > 1 or self.close.ndim != 1:
            raise ValueError(f"bars must be arrays of one length, got {shapes}")

    def __len__(self) -> int:
        return len(self.close)

    def columns(self) -> dict[str, Floats]:
        """The arrays by field name; without `volume` where there is none."""
        prices = {name: getattr(self, name) for name in PRICE_FIELDS}
        return prices if self.volume is None else prices | {"volume": self.volume}

    def rows(self, selection: slice | NDArray[np.bool_]) -> Bars:
        """The selected rows."""
        return Bars(**{name: array[selection] for name, array in self.columns().items()})

    def whole(self) -> NDArray[np.bool_]:
        """(N,) True where every value of the row is finite."""
        return np.logical_and.reduce([np.isfinite(array) for array in self.columns().values()])

    def check(self) -> None:
        """Refuses values that have no logarithm.

        Raises:
            DataError: A price is 0 or less, or a volume is negative.
        """
        for name, values in self.columns().items():
            wrong = values < 0 if name == "volume" else values <= 0
            if wrong.any():
                limit = "negative" if name == "volume" else "0 or less, which has no logarithm"
                raise DataError(
                    f"data.bars.{name}: {wrong.sum()} of {len(values)} rows are {limit}, got "
                    f'{values[wrong].min():g}; remove these rows or set data.features to "none"'
                )


def fill_missing_bars(bars: Bars) -> tuple[Bars, int]:
    """Completes rows after the first whole one as bars in which nothing was traded.

    A missing close is the last one, a missing open the close before, a missing high (low) the larger
    (smaller) of open and close, a missing volume 0.

    Args:
        bars: Bars, NaN or infinite where a value is missing.

    Returns:
        The bars, and the number of rows that were completed. Rows before the first whole one stay as they
        are.
    """
    whole = bars.whole()
    first = int(whole.argmax()) if whole.any() else len(bars)
    after = np.arange(len(bars)) >= first

    def fill(values: Floats, fallback: Floats) -> Floats:
        return np.where(after & ~np.isfinite(values), fallback, values)

    known = np.where(np.isfinite(bars.close), np.arange(len(bars)), 0)
    close = fill(bars.close, bars.close[np.maximum.accumulate(known)] if len(bars) else bars.close)
    open_ = fill(bars.open, lag(close, 1))
    high = fill(bars.high, np.maximum(open_, close))
    low = fill(bars.low, np.minimum(open_, close))
    volume = None if bars.volume is None else fill(bars.volume, np.zeros(len(bars)))
    filled = replace(bars, open=open_, high=high, low=low, close=close, volume=volume)
    return filled, int((after & ~whole).sum())


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedBars:
    """What indicators are computed from: whole bars, and quantities that several of them use.

    Prices are divided by the power of two below the first close, volumes by the one below the first volume
    above 0. That loses no digit, and puts both near 1, where absolute thresholds inside TA-Lib do no harm.
    """

    open: Floats  # (N,)
    high: Floats  # (N,)
    low: Floats  # (N,)
    close: Floats  # (N,)
    volume: Floats  # (N,) NaN where the bars have none
    log_close: Floats  # (N,)
    change: Floats  # (N,) ln(C / C[1]); NaN in the first row
    log_range: Floats  # (N,) ln(H / L)
    true_range: Floats  # (N,) NaN in the first row


def prepare(bars: Bars) -> PreparedBars:
    """Anchors whole, positive bars and computes the shared quantities."""
    scale = _power_of_two_below(bars.close)
    open_, high, low, close = (getattr(bars, name) / scale for name in PRICE_FIELDS)
    volume = np.full(len(bars), np.nan)
    if bars.volume is not None:
        volume = bars.volume / _power_of_two_below(bars.volume[bars.volume > 0])
    log_close = np.log(close)
    return PreparedBars(
        open=open_,
        high=high,
        low=low,
        close=close,
        volume=volume,
        log_close=log_close,
        change=log_close - lag(log_close, 1),
        log_range=np.log(high / low),
        true_range=talib.TRANGE(high, low, close),
    )


def _power_of_two_below(values: Floats) -> float:
    """Largest power of two that is not above the first value; 1 where there is none."""
    return float(np.exp2(np.floor(np.log2(values[0])))) if len(values) else 1.0
