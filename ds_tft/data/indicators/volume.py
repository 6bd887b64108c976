"""Volume against its own past, and price moves weighted by it. Where nothing was traded, all are neutral."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import talib

from ds_tft.data.indicators.bars import PreparedBars
from ds_tft.data.indicators.candles import body_share, relative_range
from ds_tft.data.indicators.indicator import Indicator
from ds_tft.data.indicators.rolling import (
    NEGLIGIBLE,
    Floats,
    balance,
    lag,
    ratio,
    rolling_correlation,
    rolling_mean,
    rolling_rank,
    rolling_std,
    rolling_sum,
)

by_volume = partial(Indicator, needs_volume=True)


def indicators() -> Iterator[Indicator]:
    """Yields the columns of this family."""
    yield from _levels()
    yield from _flows()
    yield from _prices_by_volume()
    yield from _relations()


def _levels() -> Iterator[Indicator]:
    """Volume alone."""
    for k in (1, 5, 20):
        formula = f"(V - V[{k}]) / (V + V[{k}])"
        yield by_volume(f"volume_change_{k}", k + 1, formula, partial(_volume_change, k=k))
    for a, b in ((5, 20), (10, 60), (20, 120)):
        formula = f"(a - b) / (a + b), a = mean(V, {a}), b = mean(V, {b})"
        yield by_volume(f"volume_oscillator_{a}_{b}", b, formula, partial(_volume_oscillator, a=a, b=b))
    for n in (5, 20, 60):
        formula = f"ln(1 + V / mean(V, {n}))"
        yield by_volume(f"relative_volume_{n}", n, formula, partial(_relative_volume, n=n))
    formula = "(V - mean(V, 60)) / std(V, 60)"
    yield by_volume("volume_position_60", 60, formula, _volume_position)
    for n in (20, 60):
        formula = f"std(V, {n}) / mean(V, {n})"
        yield by_volume(f"volume_variation_{n}", n, formula, partial(_volume_variation, n=n))
    formula = "share of the 59 rows before with a smaller volume"
    yield by_volume("volume_rank_60", 60, formula, lambda bars: rolling_rank(bars.volume, 60))
    yield by_volume("volume_concentration_20", 20, "TA-Lib MAX(V, 20) / sum(V, 20)", _volume_concentration)
    formula = "correlation of V and V[1] within the last 60 rows"
    yield by_volume("volume_autocorrelation_60_lag_1", 60, formula, _volume_autocorrelation)
    formula = "(row - TA-Lib MAXINDEX(V, 60)) / 59"
    yield by_volume("time_since_volume_peak_60", 60, formula, _time_since_volume_peak)


def _flows() -> Iterator[Indicator]:
    """Volume with the sign or size of the move it came with, as a share of all volume."""
    for n in (5, 20, 60):
        formula = f"sum(sign(r) V, {n}) / sum(V, {n}): the change of OBV"
        yield by_volume(f"obv_change_{n}", n + 1, formula, partial(_obv_change, n=n))
    for n in (20, 60):
        formula = f"sum((2 C - H - L) / (H - L) V, {n}) / sum(V, {n}): the change of A/D"
        yield by_volume(f"chaikin_money_flow_{n}", n, formula, partial(_chaikin_money_flow, n=n))
    formula = "TA-Lib ADOSC(H, L, C, V, 3, 10) / TA-Lib EMA(V, 10)"
    yield by_volume("chaikin_oscillator_3_10", 10, formula, _chaikin_oscillator)
    for n in (14, 28):
        formula = f"100 sum(P V where P rose, {n}) / sum(P V where P rose or fell, {n})"
        yield by_volume(f"mfi_{n}", n + 1, formula, partial(money_flow_index, n=n))
    formula = "sum((C - O) / (H - L) V, 20) / sum(V, 20)"
    yield by_volume("body_weighted_volume_20", 20, formula, _body_weighted_volume)
    formula = "TA-Lib EMA(r V, 13) / TA-Lib EMA(V, 13)"
    yield by_volume("force_index_13", 14, formula, _force_index)


def _prices_by_volume() -> Iterator[Indicator]:
    """Averages of prices and returns, weighted by volume."""
    for n in (5, 20, 60, 120):
        formula = f"(C - W) / C, W = sum(P V, {n}) / sum(V, {n})"
        yield by_volume(f"vwap_distance_{n}", n, formula, partial(_vwap_distance, n=n))
    formula = "(C - W) / std(C, 120), W = sum(P V, 120) / sum(V, 120)"
    yield by_volume("vwap_position_120", 120, formula, _vwap_position)
    for n in (5, 20, 60):
        formula = f"sum(r V, {n}) / sum(V, {n})"
        yield by_volume(f"volume_weighted_return_{n}", n + 1, formula, partial(_weighted_return, n=n))
    formula = "sqrt(sum(r^2 V, 20) / sum(V, 20))"
    yield by_volume("volume_weighted_volatility_20", 21, formula, _weighted_volatility)
    for n in (20, 60):
        formula = f"sum(r where V < V[1], {n})"
        yield by_volume(f"falling_volume_return_{n}", n + 1, formula, partial(_falling_volume_return, n=n))


def _relations() -> Iterator[Indicator]:
    """How volume and moves go together."""
    for n in (20, 60):
        formula = f"correlation of r and V, {n}"
        yield by_volume(f"return_volume_correlation_{n}", n + 1, formula, partial(_return_volume, n=n))
    formula = "correlation of ln(H / L) and V, 60"
    yield by_volume("range_volume_correlation_60", 60, formula, _range_volume)
    for a, b in ((5, 60), (20, 120)):
        formula = f"(a - b) / (a + b), a and b = sum(|r|, n) / sum(C V, n) for n = {a} and {b}"
        compute = partial(_illiquidity_change, a=a, b=b)
        yield by_volume(f"illiquidity_change_{a}_{b}", b + 1, formula, compute)
    formula = "(a - b) / (a + b), a = V / mean(V, 20), b = relative_range_20"
    yield by_volume("effort_over_result_20", 21, formula, _effort_over_result)


def volume_mean(bars: PreparedBars, x: Floats, n: int) -> Floats:
    """(N,) Mean of x over the window, weighted by volume; 0 where nothing was traded."""
    return ratio(rolling_sum(x * bars.volume, n), rolling_sum(bars.volume, n))


def _volume_change(bars: PreparedBars, k: int) -> Floats:
    """Relative change over k rows, defined for volumes of 0 too."""
    return balance(bars.volume, lag(bars.volume, k))


def _volume_oscillator(bars: PreparedBars, a: int, b: int) -> Floats:
    """Recent volume against that of a longer window."""
    return balance(rolling_mean(bars.volume, a), rolling_mean(bars.volume, b))


def _relative_volume(bars: PreparedBars, n: int) -> Floats:
    """Volume over its mean, on a log scale that takes 0."""
    return np.log1p(ratio(bars.volume, rolling_mean(bars.volume, n)))


def _volume_position(bars: PreparedBars) -> Floats:
    """Volume's distance from its mean in standard deviations."""
    return ratio(bars.volume - rolling_mean(bars.volume, 60), rolling_std(bars.volume, 60))


def _volume_variation(bars: PreparedBars, n: int) -> Floats:
    """Relative variation of volume."""
    return ratio(rolling_std(bars.volume, n), rolling_mean(bars.volume, n))


def _volume_concentration(bars: PreparedBars) -> Floats:
    """Part of the volume in the busiest bar."""
    return ratio(talib.MAX(bars.volume, 20), rolling_sum(bars.volume, 20))


def _volume_autocorrelation(bars: PreparedBars) -> Floats:
    """Whether busy bars follow busy bars."""
    return rolling_correlation(bars.volume, lag(bars.volume, 1), 59)


def _time_since_volume_peak(bars: PreparedBars) -> Floats:
    """Age of the busiest bar: 0 now, 1 at the far end of the window."""
    age = (np.arange(len(bars.volume)) - talib.MAXINDEX(bars.volume, 60)) / 59
    age[:59] = np.nan  # TA-Lib gives index 0 where the window is not complete
    return age


def _obv_change(bars: PreparedBars, n: int) -> Floats:
    """Volume of rising less that of falling closes."""
    return volume_mean(bars, np.sign(bars.change), n)


def _chaikin_money_flow(bars: PreparedBars, n: int) -> Floats:
    """Where in its range volume closed, -1 to 1."""
    place = ratio(2 * bars.close - bars.high - bars.low, bars.high - bars.low)
    return volume_mean(bars, place, n)


def _chaikin_oscillator(bars: PreparedBars) -> Floats:
    """Fast less slow average of accumulation, in smoothed volumes."""
    fast_less_slow = talib.ADOSC(bars.high, bars.low, bars.close, bars.volume, 3, 10)
    return ratio(fast_less_slow, talib.EMA(bars.volume, 10))


def money_flow_index(bars: PreparedBars, n: int) -> Floats:
    """(N,) RSI of traded value. TA-Lib's MFI is 0 below a value of 1 per window, whatever the unit is."""
    price = (bars.high + bars.low + bars.close) / 3
    move = price - lag(price, 1)
    flow = np.where(np.abs(move) > NEGLIGIBLE, np.sign(move), 0.0) * price * bars.volume
    flow[np.isnan(move)] = np.nan
    return 50 + 50 * ratio(rolling_sum(flow, n), rolling_sum(np.abs(flow), n))


def _body_weighted_volume(bars: PreparedBars) -> Floats:
    """Signed bodies, weighted by volume."""
    return volume_mean(bars, body_share(bars), 20)


def _force_index(bars: PreparedBars) -> Floats:
    """Smoothed return times volume over volume smoothed with the same weights."""
    weight = np.where(np.isnan(bars.change), np.nan, bars.volume)
    return ratio(talib.EMA(bars.change * weight, 13), talib.EMA(weight, 13))


def _vwap_distance(bars: PreparedBars, n: int) -> Floats:
    """Distance of the close from the volume-weighted price."""
    price = (bars.high + bars.low + bars.close) / 3
    traded = rolling_sum(bars.volume, n)
    return ratio(bars.close * traded - rolling_sum(price * bars.volume, n), bars.close * traded)


def _vwap_position(bars: PreparedBars) -> Floats:
    """The same over 120 rows, in standard deviations of the close."""
    return ratio(bars.close * _vwap_distance(bars, 120), rolling_std(bars.close, 120))


def _weighted_return(bars: PreparedBars, n: int) -> Floats:
    """Mean return, weighted by volume."""
    return volume_mean(bars, bars.change, n)


def _weighted_volatility(bars: PreparedBars) -> Floats:
    """Root mean square return, weighted by volume."""
    return np.sqrt(volume_mean(bars, bars.change**2, 20))


def _falling_volume_return(bars: PreparedBars, n: int) -> Floats:
    """Sum of the returns on less volume than the bar before."""
    before = lag(bars.volume, 1)
    return rolling_sum(
        np.where(np.isnan(before), np.nan, np.where(bars.volume < before, bars.change, 0.0)), n
    )


def _return_volume(bars: PreparedBars, n: int) -> Floats:
    """Whether busy bars rise or fall."""
    return rolling_correlation(bars.change, bars.volume, n)


def _range_volume(bars: PreparedBars) -> Floats:
    """Whether busy bars are wide."""
    return rolling_correlation(bars.log_range, bars.volume, 60)


def _illiquidity(bars: PreparedBars, n: int) -> Floats:
    """Movement per traded value."""
    return ratio(rolling_sum(np.abs(bars.change), n), rolling_sum(bars.close * bars.volume, n))


def _illiquidity_change(bars: PreparedBars, a: int, b: int) -> Floats:
    """Recent movement per traded value against that of a longer window."""
    return balance(_illiquidity(bars, a), _illiquidity(bars, b))


def _effort_over_result(bars: PreparedBars) -> Floats:
    """Whether volume was large for the move it made."""
    return balance(ratio(bars.volume, rolling_mean(bars.volume, 20), 1.0), relative_range(bars, 20))
