from __future__ import annotations

import numpy as np
import pytest
import talib

from ds_tft.data.indicators import Bars, compute_indicators, indicator_names

NAMES = indicator_names(with_volume=True)


def make_bars(rows: int, seed: int) -> Bars:
    """A random walk of whole, ordinary bars."""
    rng = np.random.default_rng(seed)
    close = 40 * np.exp(np.cumsum(rng.normal(0, 0.01, rows)))
    open_ = close * np.exp(rng.normal(0, 0.006, rows))
    high = np.maximum(open_, close) * np.exp(np.abs(rng.normal(0, 0.004, rows)))
    low = np.minimum(open_, close) * np.exp(-np.abs(rng.normal(0, 0.004, rows)))
    return Bars(open=open_, high=high, low=low, close=close, volume=np.exp(rng.normal(9, 1, rows)))


def column(bars: Bars, name: str) -> np.ndarray:
    return compute_indicators(bars)[:, NAMES.index(name)]


def test_own_formulas_agree_with_talib() -> None:
    bars = make_bars(300, seed=5)
    o, h, lo, c, v = bars.columns().values()
    change = np.log(c / np.roll(c, 1))
    change[0] = np.nan
    slow_k, slow_d = talib.STOCH(h, lo, c, 14, 3, 0, 3, 0)
    upper, middle, _ = talib.BBANDS(c, 20, 2, 2)
    traded = talib.SUM(v, 20)
    obv, accumulated = talib.OBV(c, v), talib.AD(h, lo, c, v)
    expected = {
        "rsi_14": talib.RSI(c, 14),
        "williams_r_28": talib.WILLR(h, lo, c, 28),
        "stochastic_k_14_3": slow_k,
        "stochastic_d_14_3": slow_d,
        "mfi_14": talib.MFI(h, lo, c, v, 14),
        "volatility_20": talib.STDDEV(change, 20),
        "bollinger_position_20": 2 * (c - middle) / (upper - middle),
        "bollinger_width_20": 2 * (upper - middle) / middle,
        "body_share": talib.BOP(o, h, lo, c),
        "obv_change_20": (obv - np.roll(obv, 20)) / traded,
        "chaikin_money_flow_20": (accumulated - np.roll(accumulated, 20)) / traded,
        "ultimate_oscillator_7_14_28": talib.ULTOSC(h, lo, c),
        "cci_14": talib.CCI(h, lo, c, 14),
        "return_volume_correlation_20": talib.CORREL(change, v, 20),
    }
    actual = dict(zip(NAMES, compute_indicators(bars).T, strict=True))
    for name, values in expected.items():
        np.testing.assert_allclose(actual[name][150:], values[150:], rtol=1e-7, atol=1e-9, err_msg=name)


def test_formulas_agree_with_numpy_on_one_window() -> None:
    bars = make_bars(200, seed=6)
    o, h, lo, c, v = bars.columns().values()
    r = np.diff(np.log(c))
    r60, body, gap = r[-60:], np.log(c / o), np.log(o[1:] / c[:-1])
    rs = np.log(h / c) * np.log(h / o) + np.log(lo / c) * np.log(lo / o)
    k = 0.34 / (1.34 + 16 / 14)
    line = np.polyfit(np.arange(60), np.log(c[-60:]), 1)
    typical = (h + lo + c) / 3
    expected = {
        "return_10": np.log(c[-1] / c[-11]),
        "return_5_over_volatility_60": np.log(c[-1] / c[-6]) / (r60.std() * np.sqrt(5)),
        "opening_gap_sum_20": gap[-20:].sum(),
        "parkinson_volatility_20": np.sqrt((np.log(h / lo)[-20:] ** 2).mean() / (4 * np.log(2))),
        "yang_zhang_volatility_15": np.sqrt(
            gap[-15:].var() + k * body[-15:].var() + (1 - k) * rs[-15:].mean()
        ),
        "skewness_60": ((r60 - r60.mean()) ** 3).mean() / r60.std() ** 3,
        "kurtosis_60": ((r60 - r60.mean()) ** 4).mean() / r60.std() ** 4,
        "autocorrelation_60_lag_2": np.corrcoef(r60[2:], r60[:-2])[0, 1],
        "variance_ratio_5_60": np.convolve(r60, np.ones(5), "valid").var() / (5 * r60.var()),
        "close_rank_60": (c[-60:-1] < c[-1]).mean(),
        "regression_slope_60": line[0],
        "regression_r2_60": np.corrcoef(np.arange(60), np.log(c[-60:]))[0, 1] ** 2,
        "regression_distance_60": np.log(c[-1]) - np.polyval(line, 59),
        "drawdown_60": np.log(c[-1] / c[-60:].max()),
        "chande_momentum_14": 100 * (c[-1] - c[-15]) / np.abs(np.diff(c[-15:])).sum(),
        "vwap_distance_20": 1 - (typical * v)[-20:].sum() / v[-20:].sum() / c[-1],
        "relative_volume_20": np.log1p(v[-1] / v[-20:].mean()),
        "volume_oscillator_5_20": np.tanh(np.log(v[-5:].mean() / v[-20:].mean()) / 2),
        "time_since_volume_peak_60": (59 - v[-60:].argmax()) / 59,
        "volume_weighted_return_20": (r[-20:] * v[-20:]).sum() / v[-20:].sum(),
    }
    actual = dict(zip(NAMES, compute_indicators(bars)[-1], strict=True))
    for name, value in expected.items():
        assert actual[name] == pytest.approx(value, rel=1e-8), name


def test_streak_counts_closes_in_one_direction() -> None:
    close = np.array([5.0, 6, 7, 8, 8, 7, 6, 7])
    bars = Bars(open=close, high=close, low=close, close=close, volume=np.ones(8))
    np.testing.assert_array_equal(column(bars, "streak"), [np.nan, 1, 2, 3, 0, -1, -2, 1])
