"""Returns over many lags, gaps between bars, and returns in units of their volatility."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ds_tft.data.indicators.bars import PreparedBars
from ds_tft.data.indicators.indicator import Indicator
from ds_tft.data.indicators.rolling import Floats, lag, ratio, rolling_std, rolling_sum


def indicators() -> Iterator[Indicator]:
    """Yields the columns of this family."""
    for k in (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 40, 60, 90, 120):
        yield Indicator(f"return_{k}", k + 1, f"ln(C / C[{k}])", partial(log_return, k=k))
    for k in (1, 5, 10, 20):
        formula = f"ln(C / C[{k}]) / (std(r, 60) sqrt({k}))"
        yield Indicator(f"return_{k}_over_volatility_60", 61, formula, partial(_scaled_return, k=k))
    yield Indicator("high_return_1", 2, "ln(H / H[1])", lambda bars: _log_change(bars.high))
    yield Indicator("low_return_1", 2, "ln(L / L[1])", lambda bars: _log_change(bars.low))
    yield Indicator("opening_gap", 2, "ln(O / C[1])", _gap)
    yield Indicator(
        "opening_gap_sum_20", 21, "sum(ln(O / C[1]), 20)", lambda bars: rolling_sum(_gap(bars), 20)
    )


def log_return(bars: PreparedBars, k: int) -> Floats:
    """(N,) Log return over k rows."""
    return bars.log_close - lag(bars.log_close, k)


def _scaled_return(bars: PreparedBars, k: int) -> Floats:
    """Return over k rows in standard deviations."""
    return ratio(log_return(bars, k), rolling_std(bars.change, 60) * np.sqrt(k))


def _log_change(prices: Floats) -> Floats:
    """Log change from the row before."""
    return np.log(prices / lag(prices, 1))


def _gap(bars: PreparedBars) -> Floats:
    """Log change from the close before to the open."""
    return np.log(bars.open / lag(bars.close, 1))
