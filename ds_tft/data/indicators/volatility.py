"""How much prices move: realised volatilities of several estimators, their ratios, and channel widths."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import talib

from ds_tft.data.indicators.bars import PreparedBars
from ds_tft.data.indicators.indicator import Indicator
from ds_tft.data.indicators.rolling import (
    Floats,
    balance,
    lag,
    ratio,
    rolling_mean,
    rolling_moment,
    rolling_std,
    rolling_sum,
)


def indicators() -> Iterator[Indicator]:
    """Yields the columns of this family."""
    yield from _estimators()
    for n in (20, 60):
        down, up = f"sqrt(mean(min(r, 0)^2, {n}))", f"sqrt(mean(max(r, 0)^2, {n}))"
        yield Indicator(f"downside_volatility_{n}", n + 1, down, partial(_one_sided, n=n, sign=-1.0))
        yield Indicator(f"upside_volatility_{n}", n + 1, up, partial(_one_sided, n=n, sign=1.0))
    yield Indicator("ewma_volatility_32", 33, "sqrt(TA-Lib EMA(r^2, 32))", _ewma_volatility)
    for n in (14, 28):
        yield Indicator(f"atr_{n}", n + 1, f"TA-Lib NATR(H, L, C, {n}) / 100", partial(_relative_atr, n=n))
    for short, long in ((5, 20), (10, 60), (20, 120)):
        formula = f"std(r, {short}) / std(r, {long})"
        compute = partial(_volatility_ratio, short=short, long=long)
        yield Indicator(f"volatility_ratio_{short}_{long}", long + 1, formula, compute)
    yield Indicator(
        "volatility_of_volatility_20",
        40,
        "std(s, 20) / mean(s, 20), s = std(r, 20)",
        _volatility_of_volatility,
    )
    yield Indicator(
        "range_to_close_volatility_20", 21, "parkinson_volatility_20 / volatility_20", _range_to_close
    )
    yield Indicator("bipower_share_60", 62, "pi/2 sum(|r| |r[1]|, 60) / sum(r^2, 60)", _bipower_share)
    yield Indicator("bollinger_width_20", 20, "4 std(C, 20) / mean(C, 20)", _bollinger_width)
    for n in (20, 60, 120):
        formula = f"ln(TA-Lib MAX(H, {n}) / TA-Lib MIN(L, {n}))"
        yield Indicator(f"donchian_width_{n}", n, formula, partial(_donchian_width, n=n))
    formula = "100 log10(sum(TR, 14) / (max(H, 14) - min(L, 14))) / log10(14)"
    yield Indicator("choppiness_14", 15, formula, _choppiness)
    formula = "sum(E / EMA(E, 9), 25), E = TA-Lib EMA(H - L, 9)"
    yield Indicator("mass_index_25", 41, formula, _mass_index)

    formula = "(E - E[10]) / (E + E[10]), E = TA-Lib EMA(H - L, 10)"
    yield Indicator("chaikin_volatility_10", 20, formula, _chaikin_volatility)


def _estimators() -> Iterator[Indicator]:
    """Volatility per row, estimated from closes or from whole bars."""
    for n in (5, 10, 20, 60, 120):
        yield Indicator(f"volatility_{n}", n + 1, f"std(r, {n})", partial(volatility, n=n))
    for n in (5, 20, 60):
        formula = f"sqrt(mean(ln(H / L)^2, {n}) / (4 ln 2))"
        yield Indicator(f"parkinson_volatility_{n}", n, formula, partial(parkinson_volatility, n=n))
    for n in (10, 40):
        formula = f"sqrt(mean(ln(H / L)^2 / 2 - (2 ln 2 - 1) ln(C / O)^2, {n}))"
        yield Indicator(f"garman_klass_volatility_{n}", n, formula, partial(_garman_klass, n=n))
    for n in (30, 120):
        formula = f"sqrt(mean(ln(H / C) ln(H / O) + ln(L / C) ln(L / O), {n}))"
        yield Indicator(f"rogers_satchell_volatility_{n}", n, formula, partial(_rogers_satchell, n=n))
    for n in (15, 90):
        formula = (
            f"sqrt(var(ln(O / C[1]), {n}) + k var(ln(C / O), {n}) + (1 - k) rogers_satchell^2), "
            f"k = 0.34 / (1.34 + {n + 1}/{n - 1})"
        )
        yield Indicator(f"yang_zhang_volatility_{n}", n + 1, formula, partial(_yang_zhang, n=n))


def volatility(bars: PreparedBars, n: int) -> Floats:
    """(N,) Standard deviation of log returns."""
    return rolling_std(bars.change, n)


def parkinson_volatility(bars: PreparedBars, n: int) -> Floats:
    """(N,) Volatility from the ranges of bars."""
    return np.sqrt(rolling_mean(bars.log_range**2, n) / (4 * np.log(2)))


def _garman_klass(bars: PreparedBars, n: int) -> Floats:
    """Volatility from ranges and bodies."""
    per_bar = bars.log_range**2 / 2 - (2 * np.log(2) - 1) * np.log(bars.close / bars.open) ** 2
    return _root(rolling_mean(per_bar, n))


def _rogers_satchell(bars: PreparedBars, n: int) -> Floats:
    """Volatility from wicks; a trend does not raise it."""
    return _root(rolling_mean(_rogers_satchell_variance(bars), n))


def _rogers_satchell_variance(bars: PreparedBars) -> Floats:
    """Variance of each bar."""
    above = np.log(bars.high / bars.close) * np.log(bars.high / bars.open)
    return above + np.log(bars.low / bars.close) * np.log(bars.low / bars.open)


def _yang_zhang(bars: PreparedBars, n: int) -> Floats:
    """Volatility from gaps, bodies and wicks."""
    k = 0.34 / (1.34 + (n + 1) / (n - 1))
    gap = rolling_moment(np.log(bars.open / lag(bars.close, 1)), n, 2)
    body = rolling_moment(np.log(bars.close / bars.open), n, 2)
    return _root(gap + k * body + (1 - k) * rolling_mean(_rogers_satchell_variance(bars), n))


def _root(variance: Floats) -> Floats:
    """Square root; a variance below 0, which bars closing outside their range can give, counts as 0."""
    return np.sqrt(np.maximum(variance, 0))


def _one_sided(bars: PreparedBars, n: int, sign: float) -> Floats:
    """Root mean square of the returns of one sign, the others taken as 0."""
    return np.sqrt(rolling_mean(np.maximum(sign * bars.change, 0) ** 2, n))


def _ewma_volatility(bars: PreparedBars) -> Floats:
    """Exponentially weighted volatility; 32 rows are a decay of 0.94."""
    return np.sqrt(talib.EMA(bars.change**2, 32))


def _relative_atr(bars: PreparedBars, n: int) -> Floats:
    """Average true range as a share of the close."""
    return talib.NATR(bars.high, bars.low, bars.close, n) / 100


def _volatility_ratio(bars: PreparedBars, short: int, long: int) -> Floats:
    """Recent volatility over that of a longer window; 1 where nothing moved."""
    return ratio(volatility(bars, short), volatility(bars, long), otherwise=1.0)


def _volatility_of_volatility(bars: PreparedBars) -> Floats:
    """Relative variation of the volatility."""
    level = volatility(bars, 20)
    return ratio(rolling_std(level, 20), rolling_mean(level, 20))


def _range_to_close(bars: PreparedBars) -> Floats:
    """Range volatility over close volatility; 1 where closes did not vary."""
    return ratio(parkinson_volatility(bars, 20), volatility(bars, 20), otherwise=1.0)


def _bipower_share(bars: PreparedBars) -> Floats:
    """Part of the variance that is no jump; 1 where nothing moved."""
    size = np.abs(bars.change)
    steady = np.pi / 2 * rolling_sum(size * lag(size, 1), 60)
    return ratio(np.sqrt(steady), np.sqrt(rolling_sum(size**2, 60)), otherwise=1.0) ** 2


def _bollinger_width(bars: PreparedBars) -> Floats:
    """Distance between the Bollinger bands, two deviations either way, over their middle."""
    return 4 * rolling_std(bars.close, 20) / rolling_mean(bars.close, 20)


def _donchian_width(bars: PreparedBars, n: int) -> Floats:
    """Log distance between the highest high and the lowest low."""
    return np.log(talib.MAX(bars.high, n) / talib.MIN(bars.low, n))


def _choppiness(bars: PreparedBars) -> Floats:
    """100 where the path is long and goes nowhere; 0 for a straight path or none."""
    span = talib.MAX(bars.high, 14) - talib.MIN(bars.low, 14)
    return 100 * np.log10(ratio(rolling_sum(bars.true_range, 14), span, otherwise=1.0)) / np.log10(14)


def _mass_index(bars: PreparedBars) -> Floats:
    """Widening of ranges."""
    smooth = talib.EMA(bars.high - bars.low, 9)
    return rolling_sum(ratio(smooth, talib.EMA(smooth, 9), otherwise=1.0), 25)


def _chaikin_volatility(bars: PreparedBars) -> Floats:
    """Relative change of the average range over 10 rows."""
    smooth = talib.EMA(bars.high - bars.low, 10)
    return balance(smooth, lag(smooth, 10))
