"""Shape of the distribution of returns: higher moments, extremes, ranks and memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import talib

from ds_tft.data.indicators.bars import PreparedBars
from ds_tft.data.indicators.indicator import Indicator
from ds_tft.data.indicators.returns import log_return
from ds_tft.data.indicators.rolling import (
    Floats,
    lag,
    ratio,
    rolling_correlation,
    rolling_mean,
    rolling_moment,
    rolling_rank,
    rolling_std,
    rolling_sum,
)
from ds_tft.data.indicators.volatility import volatility


def indicators() -> Iterator[Indicator]:
    """Yields the columns of this family."""
    yield from _moments()
    yield from _memory()
    for n in (20, 60):
        largest, smallest = f"TA-Lib MAX(r, {n})", f"TA-Lib MIN(r, {n})"
        yield Indicator(f"largest_return_{n}", n + 1, largest, partial(_largest_return, n=n))
        yield Indicator(f"smallest_return_{n}", n + 1, smallest, partial(_smallest_return, n=n))
    yield Indicator("jump_share_20", 21, "max(r^2, 20) / sum(r^2, 20)", _jump_share)
    formula = "share of the 59 rows before with a smaller {}"
    ranks = (
        ("close_rank_60", 60, "close", lambda bars: rolling_rank(bars.close, 60)),
        ("return_rank_60", 61, "return", lambda bars: rolling_rank(bars.change, 60)),
        ("range_rank_60", 60, "high_low_range", lambda bars: rolling_rank(bars.log_range, 60)),
        ("volatility_rank_60", 80, "volatility_20", lambda bars: rolling_rank(volatility(bars, 20), 60)),
    )
    for name, window, what, compute in ranks:
        yield Indicator(name, window, formula.format(what), compute)


def _moments() -> Iterator[Indicator]:
    """Moments of returns in units of their standard deviation; 0 where nothing moved."""
    for n in (20, 60, 120):
        formula = f"mean(r, {n}) / std(r, {n})"
        yield Indicator(f"sharpe_ratio_{n}", n + 1, formula, partial(_sharpe_ratio, n=n))
    for n in (20, 60, 120):
        formula = f"mean((r - mean(r, {n}))^3, {n}) / std(r, {n})^3"
        yield Indicator(f"skewness_{n}", n + 1, formula, partial(_standardised_moment, n=n, order=3))
    for n in (60, 120):
        formula = f"mean((r - mean(r, {n}))^4, {n}) / std(r, {n})^4"
        yield Indicator(f"kurtosis_{n}", n + 1, formula, partial(_standardised_moment, n=n, order=4))


def _memory() -> Iterator[Indicator]:
    """Dependence of a return on those before it, and on its bar's range."""
    for n, k in ((20, 1), (60, 1), (120, 1), (60, 2)):
        formula = f"correlation of r and r[{k}] within the last {n} returns"
        yield Indicator(f"autocorrelation_{n}_lag_{k}", n + 1, formula, partial(_autocorrelation, n=n, k=k))
    formula = "the same of |r|"
    yield Indicator("absolute_autocorrelation_60_lag_1", 61, formula, _absolute_autocorrelation)
    for k in (5, 10):
        formula = f"var(ln(C / C[{k}]), {61 - k}) / ({k} var(r, 60))"
        yield Indicator(f"variance_ratio_{k}_60", 61, formula, partial(_variance_ratio, k=k))
    formula = "correlation of r and ln(H / L), 60"
    yield Indicator("return_range_correlation_60", 61, formula, _return_range_correlation)


def _sharpe_ratio(bars: PreparedBars, n: int) -> Floats:
    """Mean return in standard deviations."""
    return ratio(rolling_mean(bars.change, n), volatility(bars, n))


def _standardised_moment(bars: PreparedBars, n: int, order: int) -> Floats:
    """Central moment of the returns once their deviation is 1."""
    result, deviation = rolling_moment(bars.change, n, order), volatility(bars, n)
    for _ in range(order):  # a power of a small deviation would pass for 0
        result = ratio(result, deviation)
    return result


def _autocorrelation(bars: PreparedBars, n: int, k: int) -> Floats:
    """Correlation with the returns k rows before."""
    return rolling_correlation(bars.change, lag(bars.change, k), n - k)


def _absolute_autocorrelation(bars: PreparedBars) -> Floats:
    """Whether large moves follow large moves."""
    size = np.abs(bars.change)
    return rolling_correlation(size, lag(size, 1), 59)


def _variance_ratio(bars: PreparedBars, k: int) -> Floats:
    """Above 1 where returns run on, below where they revert; 1 where nothing moved."""
    of_sums = rolling_std(log_return(bars, k), 61 - k)  # sums of k returns that lie within the last 60
    return ratio(of_sums, volatility(bars, 60) * np.sqrt(k), otherwise=1.0) ** 2


def _largest_return(bars: PreparedBars, n: int) -> Floats:
    """Highest return of the window."""
    return talib.MAX(bars.change, n)


def _smallest_return(bars: PreparedBars, n: int) -> Floats:
    """Lowest return of the window."""
    return talib.MIN(bars.change, n)


def _jump_share(bars: PreparedBars) -> Floats:
    """Part of the squared returns due to the largest."""
    size = np.abs(bars.change)
    return ratio(talib.MAX(size, 20), np.sqrt(rolling_sum(size**2, 20))) ** 2


def _return_range_correlation(bars: PreparedBars) -> Floats:
    """Whether wide bars fall or rise."""
    return rolling_correlation(bars.change, bars.log_range, 60)
