"""Momentum and oscillators. Where nothing moved, each takes the middle of its scale, not one of its ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import talib

from ds_tft.data.indicators.bars import PreparedBars
from ds_tft.data.indicators.indicator import Indicator
from ds_tft.data.indicators.rolling import Floats, lag, ratio, rolling_sum


def indicators() -> Iterator[Indicator]:
    """Yields the columns of this family."""
    yield from _bounded()
    yield from _directional()
    yield Indicator("trix_15", 44, "TA-Lib TRIX(C, 15)", lambda bars: talib.TRIX(bars.close, 15))
    for fast, slow in ((12, 26), (24, 52)):
        formula = f"TA-Lib PPO(C, {fast}, {slow}, EMA)"
        yield Indicator(f"ppo_{fast}_{slow}", slow, formula, partial(_ppo, fast=fast, slow=slow))
    yield Indicator("macd_histogram_12_26_9", 34, "TA-Lib MACD(C, 12, 26, 9) histogram / C", _macd_histogram)
    formula = "100 E(C - C[1]) / E(|C - C[1]|), E(x) = TA-Lib EMA(EMA(x, 25), 13)"
    yield Indicator("true_strength_25_13", 38, formula, _true_strength)
    formula = "({} - TA-Lib EMA(C, 13)) / TA-Lib ATR(H, L, C, 14)"
    yield Indicator("bull_power_13", 15, formula.format("H"), lambda bars: _elder_power(bars, bars.high))
    yield Indicator("bear_power_13", 15, formula.format("L"), lambda bars: _elder_power(bars, bars.low))


def _bounded() -> Iterator[Indicator]:
    """Oscillators that tell where the close stands between recent extremes, or ups against downs."""
    for n in (7, 14, 28):
        yield Indicator(f"rsi_{n}", n + 1, f"TA-Lib RSI(C, {n}), as 50 + CMO(C, {n}) / 2", partial(_rsi, n=n))
    for n in (14, 28, 60, 120):
        formula = f"-100 (max(H, {n}) - C) / (max(H, {n}) - min(L, {n}))"
        yield Indicator(f"williams_r_{n}", n, formula, partial(_williams_r, n=n))
    yield Indicator("stochastic_k_14_3", 16, "TA-Lib SMA(100 + williams_r_14, 3)", _stochastic_k)
    yield Indicator("stochastic_d_14_3", 18, "TA-Lib SMA(stochastic_k_14_3, 3)", _stochastic_d)
    formula = "SMA(100 (R - min(R, 14)) / (max(R, 14) - min(R, 14)), 3), R = rsi_14"
    yield Indicator("stochastic_rsi_14_3", 30, formula, _stochastic_rsi)
    formula = "TA-Lib ULTOSC(H, L, C, 7, 14, 28)"
    yield Indicator("ultimate_oscillator_7_14_28", 29, formula, _ultimate_oscillator)
    for n in (8, 14, 40):
        formula = f"100 (C - C[{n}]) / sum(|C - C[1]|, {n})"
        yield Indicator(f"chande_momentum_{n}", n + 1, formula, partial(_chande_momentum, n=n))
    formula = "mean(C - O, 10) / mean(H - L, 10)"
    yield Indicator("relative_vigor_10", 10, formula, _relative_vigor)
    for n in (14, 40):
        yield Indicator(f"cci_{n}", n, f"TA-Lib CCI(H, L, C, {n})", partial(_cci, n=n))


def _directional() -> Iterator[Indicator]:
    """Strength and direction of a trend."""
    for n in (14, 28):
        yield Indicator(
            f"adx_{n}", 2 * n, f"TA-Lib ADX(H, L, C, {n})", partial(_of_range, function=talib.ADX, n=n)
        )
    for name, function in (("plus_di", talib.PLUS_DI), ("minus_di", talib.MINUS_DI)):
        formula = f"TA-Lib {function.__name__}(H, L, C, 14)"
        yield Indicator(f"{name}_14", 15, formula, partial(_of_range, function=function, n=14))
    for name, index in (("up", 1), ("down", 0)):
        compute = partial(_aroon, index=index)
        yield Indicator(f"aroon_{name}_25", 26, f"TA-Lib AROON(H, L, 25) {name}", compute)
    yield Indicator("aroon_oscillator_60", 61, "TA-Lib AROONOSC(H, L, 60)", _aroon_oscillator)
    formula = "sum(|{}|, 14) / sum(TR, 14)"
    yield Indicator(
        "vortex_up_14", 15, formula.format("H - L[1]"), lambda bars: _vortex(bars, bars.high, bars.low)
    )
    yield Indicator(
        "vortex_down_14", 15, formula.format("L - H[1]"), lambda bars: _vortex(bars, bars.low, bars.high)
    )


def _of_range(bars: PreparedBars, function: Callable[..., Floats], n: int) -> Floats:
    """A TA-Lib function of high, low and close."""
    return function(bars.high, bars.low, bars.close, n)


def _aroon(bars: PreparedBars, index: int) -> Floats:
    """How recent the lowest low (0) or highest high (1) is, 0 to 100."""
    return talib.AROON(bars.high, bars.low, 25)[index]


def _aroon_oscillator(bars: PreparedBars) -> Floats:
    """Whether the high or the low is more recent, -100 to 100."""
    return talib.AROONOSC(bars.high, bars.low, 60)


def _rsi(bars: PreparedBars, n: int) -> Floats:
    """Relative strength. TA-Lib's RSI is 0 where nothing moved, its CMO (2 RSI - 100 by definition) too."""
    return 50 + talib.CMO(bars.close, n) / 2


def _williams_r(bars: PreparedBars, n: int) -> Floats:
    """Position between the extremes, -100 to 0."""
    top, bottom = talib.MAX(bars.high, n), talib.MIN(bars.low, n)
    return -100 * ratio(top - bars.close, top - bottom, otherwise=0.5)


def _stochastic_k(bars: PreparedBars) -> Floats:
    """Smoothed position between the extremes, 0 to 100."""
    return talib.SMA(100 + _williams_r(bars, 14), 3)


def _stochastic_d(bars: PreparedBars) -> Floats:
    """The same, smoothed again."""
    return talib.SMA(_stochastic_k(bars), 3)


def _stochastic_rsi(bars: PreparedBars) -> Floats:
    """Smoothed position of the RSI between its own extremes."""
    rsi = _rsi(bars, 14)
    bottom = talib.MIN(rsi, 14)
    return talib.SMA(100 * ratio(rsi - bottom, talib.MAX(rsi, 14) - bottom, otherwise=0.5), 3)


def _ultimate_oscillator(bars: PreparedBars) -> Floats:
    """Buying pressure over three windows, 0 to 100."""
    still = rolling_sum(bars.true_range, 28) == 0
    return np.where(still, 50.0, talib.ULTOSC(bars.high, bars.low, bars.close, 7, 14, 28))


def _chande_momentum(bars: PreparedBars, n: int) -> Floats:
    """Net over total movement. TA-Lib's CMO smooths the sums, which makes it a copy of the RSI."""
    total = rolling_sum(np.abs(bars.close - lag(bars.close, 1)), n)
    return 100 * ratio(bars.close - lag(bars.close, n), total)


def _relative_vigor(bars: PreparedBars) -> Floats:
    """Mean body over mean range."""
    return ratio(rolling_sum(bars.close - bars.open, 10), rolling_sum(bars.high - bars.low, 10))


def _cci(bars: PreparedBars, n: int) -> Floats:
    """Distance of the typical price from its mean, in mean deviations. TA-Lib's is rounding alone if flat."""
    still = talib.MAX(bars.high, n) == talib.MIN(bars.low, n)
    return np.where(still, 0.0, talib.CCI(bars.high, bars.low, bars.close, n))


def _ppo(bars: PreparedBars, fast: int, slow: int) -> Floats:
    """Distance of two averages, in percent."""
    return talib.PPO(bars.close, fast, slow, matype=talib.MA_Type.EMA)


def _macd_histogram(bars: PreparedBars) -> Floats:
    """MACD less its signal line, as a share of the close."""
    return talib.MACD(bars.close, 12, 26, 9)[2] / bars.close


def _true_strength(bars: PreparedBars) -> Floats:
    """Twice smoothed momentum, -100 to 100."""
    momentum = bars.close - lag(bars.close, 1)
    net = talib.EMA(talib.EMA(momentum, 25), 13)
    return 100 * ratio(net, talib.EMA(talib.EMA(np.abs(momentum), 25), 13))


def _elder_power(bars: PreparedBars, extreme: Floats) -> Floats:
    """Distance of the high or low from the average, in average true ranges."""
    return ratio(extreme - talib.EMA(bars.close, 13), talib.ATR(bars.high, bars.low, bars.close, 14))


def _vortex(bars: PreparedBars, now: Floats, before: Floats) -> Floats:
    """Path between opposite extremes of neighbouring bars over the true range; 1 where nothing moved."""
    path = rolling_sum(np.abs(now - lag(before, 1)), 14)
    return ratio(path, rolling_sum(bars.true_range, 14), otherwise=1.0)
