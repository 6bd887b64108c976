"""Where the close stands against moving averages, channels, regression lines and the extremes of a window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import talib

from ds_tft.data.indicators.bars import PreparedBars
from ds_tft.data.indicators.indicator import Indicator
from ds_tft.data.indicators.rolling import Floats, lag, ratio, rolling_mean, rolling_std


def indicators() -> Iterator[Indicator]:
    """Yields the columns of this family."""
    yield from _moving_average_distances()
    yield from _regressions()
    for n in (9, 26, 52):
        formula = f"(C - TA-Lib MIDPRICE(H, L, {n})) / C"
        yield Indicator(f"midprice_distance_{n}", n, formula, partial(_midprice_distance, n=n))
    yield Indicator("parabolic_sar_distance", 2, "(C - TA-Lib SAR(H, L, 0.02, 0.2)) / C", _sar_distance)
    for n in (20, 100):
        formula = f"(C - TA-Lib EMA(C, {n})) / TA-Lib ATR(H, L, C, 14)"
        yield Indicator(f"keltner_position_{n}", n, formula, partial(_keltner_position, n=n))
    for n in (10, 20, 50):
        formula = f"(C - mean(C, {n})) / std(C, {n})"
        yield Indicator(f"bollinger_position_{n}", n, formula, partial(_bollinger_position, n=n))
    for n in (20, 60, 120):
        yield Indicator(f"drawdown_{n}", n, f"ln(C / TA-Lib MAX(C, {n}))", partial(_drawdown, n=n))
        yield Indicator(f"run_up_{n}", n, f"ln(C / TA-Lib MIN(C, {n}))", partial(_run_up, n=n))
    yield Indicator("ulcer_index_60", 119, "sqrt(mean(drawdown_60^2, 60))", _ulcer_index)


def _moving_average_distances() -> Iterator[Indicator]:
    """Distances of the close from averages of closes, as a share of the close, and slopes of averages."""
    averages: tuple[tuple[Callable[..., Floats], tuple[int, ...], int], ...] = (
        (talib.SMA, (5, 10, 20, 50, 100), 1),
        (talib.EMA, (10, 40), 1),
        (talib.DEMA, (50,), 2),
        (talib.TEMA, (20,), 3),
        (talib.T3, (10,), 6),
    )
    for average, windows, passes in averages:
        for n in windows:
            function = average.__name__
            formula = f"(C - TA-Lib {function}(C, {n})) / C"
            compute = partial(_distance, average=average, n=n)
            yield Indicator(f"{function.lower()}_distance_{n}", passes * (n - 1) + 1, formula, compute)
    kama = partial(_distance, average=talib.KAMA, n=30)
    yield Indicator("kama_distance_30", 31, "(C - TA-Lib KAMA(C, 30)) / C", kama)
    for n in (20, 50):
        formula = f"ln(A / A[5]), A = TA-Lib SMA(C, {n})"
        yield Indicator(f"sma_slope_{n}", n + 5, formula, partial(_sma_slope, n=n))


def _regressions() -> Iterator[Indicator]:
    """Straight lines fitted to the log close."""
    for n in (10, 20, 60, 120):
        formula = f"TA-Lib LINEARREG_SLOPE(ln C, {n})"
        yield Indicator(f"regression_slope_{n}", n, formula, partial(_regression_slope, n=n))
    for n in (20, 60):
        formula = f"ln C - TA-Lib LINEARREG(ln C, {n})"
        yield Indicator(f"regression_distance_{n}", n, formula, partial(_regression_distance, n=n))
    for n in (20, 60):
        formula = f"regression_slope_{n}^2 ({n}^2 - 1) / 12 / var(ln C, {n})"
        yield Indicator(f"regression_r2_{n}", n, formula, partial(_regression_r2, n=n))


def _distance(bars: PreparedBars, average: Callable[..., Floats], n: int) -> Floats:
    """Distance from an average; over the close, as some averages can pass through 0."""
    return (bars.close - average(bars.close, n)) / bars.close


def _sma_slope(bars: PreparedBars, n: int) -> Floats:
    """Log change of the average over 5 rows."""
    mean = talib.SMA(bars.close, n)
    return np.log(mean / lag(mean, 5))


def _regression_slope(bars: PreparedBars, n: int) -> Floats:
    """Log return per row along the fitted line."""
    return talib.LINEARREG_SLOPE(bars.log_close, n)


def _regression_distance(bars: PreparedBars, n: int) -> Floats:
    """Log distance from the line's end."""
    return bars.log_close - talib.LINEARREG(bars.log_close, n)


def _regression_r2(bars: PreparedBars, n: int) -> Floats:
    """Share of the variance that the line explains."""
    explained = _regression_slope(bars, n) ** 2 * (n**2 - 1) / 12
    return np.minimum(ratio(np.sqrt(explained), rolling_std(bars.log_close, n)) ** 2, 1)


def _midprice_distance(bars: PreparedBars, n: int) -> Floats:
    """Distance from the middle of the channel."""
    return (bars.close - talib.MIDPRICE(bars.high, bars.low, n)) / bars.close


def _sar_distance(bars: PreparedBars) -> Floats:
    """Distance from the parabolic stop."""
    return (bars.close - talib.SAR(bars.high, bars.low, 0.02, 0.2)) / bars.close


def _keltner_position(bars: PreparedBars, n: int) -> Floats:
    """Distance from the average in average true ranges."""
    return ratio(bars.close - talib.EMA(bars.close, n), talib.ATR(bars.high, bars.low, bars.close, 14))


def _bollinger_position(bars: PreparedBars, n: int) -> Floats:
    """Distance from the average in standard deviations."""
    return ratio(bars.close - rolling_mean(bars.close, n), rolling_std(bars.close, n))


def _drawdown(bars: PreparedBars, n: int) -> Floats:
    """Log distance below the highest close."""
    return np.log(bars.close / talib.MAX(bars.close, n))


def _run_up(bars: PreparedBars, n: int) -> Floats:
    """Log distance above the lowest close."""
    return np.log(bars.close / talib.MIN(bars.close, n))


def _ulcer_index(bars: PreparedBars) -> Floats:
    """Root mean square drawdown."""
    return np.sqrt(rolling_mean(_drawdown(bars, 60) ** 2, 60))
