from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_tft.data.demo import adjusted_bars, read_source
from ds_tft.data.indicators import WARM_UP_ROWS, Bars, compute_indicators, fill_missing_bars, indicator_names
from ds_tft.data.indicators.__main__ import table
from ds_tft.data.indicators.catalog import catalog
from ds_tft.errors import DataError

NAMES = indicator_names(with_volume=True)


def make_bars(rows: int, seed: int = 0) -> Bars:
    """A random walk of whole, ordinary bars."""
    rng = np.random.default_rng(seed)
    close = 40 * np.exp(np.cumsum(rng.normal(0, 0.01, rows)))
    open_ = close * np.exp(rng.normal(0, 0.006, rows))
    high = np.maximum(open_, close) * np.exp(np.abs(rng.normal(0, 0.004, rows)))
    low = np.minimum(open_, close) * np.exp(-np.abs(rng.normal(0, 0.004, rows)))
    return Bars(open=open_, high=high, low=low, close=close, volume=np.exp(rng.normal(9, 1, rows)))


def make_still_bars(rows: int, price: float, volume: float = 0.0) -> Bars:
    """Bars in which nothing moves."""
    prices = {name: np.full(rows, price) for name in ("open", "high", "low", "close")}
    return Bars(**prices, volume=np.full(rows, volume))


def joined(*parts: Bars) -> Bars:
    """Bars one after the other."""
    columns = [part.columns() for part in parts]
    return Bars(**{name: np.concatenate([part[name] for part in columns]) for name in columns[0]})


def assert_neutral(values: dict[str, np.ndarray]) -> None:
    """Checks the middle of the scale of a column of each kind."""
    zeros = ("return_1", "body_share", "volatility_20", "yang_zhang_volatility_15", "bollinger_position_20")
    zeros += ("cci_14", "chande_momentum_14", "skewness_20", "kurtosis_60", "autocorrelation_20_lag_1")
    zeros += ("volume_change_1", "obv_change_20", "chaikin_money_flow_20", "chaikin_oscillator_3_10")
    zeros += (
        "vwap_distance_20",
        "volume_weighted_return_20",
        "return_volume_correlation_20",
        "force_index_13",
    )
    halves = ("mfi_14", "stochastic_k_14_3", "ultimate_oscillator_7_14_28")
    ones = ("relative_range_20", "volatility_ratio_5_20", "variance_ratio_5_60", "vortex_up_14")
    expected = dict.fromkeys(zeros, 0.0) | dict.fromkeys(halves, 50.0) | dict.fromkeys(ones, 1.0)
    expected |= {"williams_r_28": -50.0, "up_share_20": 0.5, "close_rank_60": 0.5}
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, rtol=0, atol=1e-9, err_msg=name)


def test_names_are_unique_stable_words() -> None:
    without = indicator_names(with_volume=False)
    assert (len(NAMES), len(without)) == (209, 166)
    assert len(set(NAMES)) == 209
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in NAMES)
    assert without == tuple(name for name in NAMES if name in set(without))


def test_bars_without_volume_have_the_same_columns_less_those_that_need_it() -> None:
    bars = make_bars(300)
    kept = [not indicator.needs_volume for indicator in catalog(with_volume=True)]
    without = compute_indicators(replace(bars, volume=None))
    np.testing.assert_array_equal(without, compute_indicators(bars)[:, kept])


def test_nan_stands_in_the_warm_up_only() -> None:
    values = compute_indicators(make_bars(400))
    for number, indicator in enumerate(catalog(with_volume=True)):
        missing = np.isnan(values[:, number])
        assert missing[: indicator.window - 1].all(), indicator.name
        assert not missing[indicator.window - 1 :].any(), indicator.name
    assert np.isfinite(values[WARM_UP_ROWS]).all()
    assert np.isnan(values[WARM_UP_ROWS - 1]).any()


def test_later_bars_change_nothing_before_them() -> None:
    bars = make_bars(420)
    expected = compute_indicators(bars)
    rng = np.random.default_rng(1)
    for t in (0, 1, 13, 60, 119, 120, *rng.integers(121, 419, 12)):
        later = np.arange(len(bars)) > t
        factors = {name: np.where(later, rng.uniform(0.2, 5, len(bars)), 1) for name in bars.columns()}
        changed = compute_indicators(Bars(**{n: bars.columns()[n] * factor for n, factor in factors.items()}))
        np.testing.assert_array_equal(changed[: t + 1], expected[: t + 1], err_msg=f"t={t}")
        if t >= WARM_UP_ROWS:
            assert (changed[t + 1] != expected[t + 1]).mean() > 0.9


def test_rows_do_not_depend_on_the_length_of_the_run() -> None:
    bars = make_bars(500, seed=2)
    expected = compute_indicators(bars)
    for rows in (0, 1, 2, 3, 5, 14, 29, 60, 100, 119, 120, 121, 122, 200, 255, 256, 257, 499):
        np.testing.assert_array_equal(compute_indicators(bars.rows(slice(rows))), expected[:rows])


def test_no_volume_at_first_leaks_nothing_of_the_first_volume() -> None:
    bars = joined(make_still_bars(50, 40.0), make_bars(100))
    more = replace(bars, volume=bars.volume * np.where(np.arange(150) == 50, 1e9, 1.0))
    np.testing.assert_array_equal(compute_indicators(more)[:50], compute_indicators(bars)[:50])


@pytest.mark.parametrize(
    ("price_factor", "volume_factor", "tolerance"), [(2.0**-20, 2.0**30, 0), (3.7e4, 0.013, 1e-6)]
)
def test_scale_of_prices_and_volumes_does_not_matter(
    price_factor: float, volume_factor: float, tolerance: float
) -> None:
    bars = make_bars(1000, seed=3)
    scaled = {name: array * price_factor for name, array in bars.columns().items()}
    scaled["volume"] = bars.volume * volume_factor
    values = compute_indicators(Bars(**scaled))
    np.testing.assert_allclose(values, compute_indicators(bars), rtol=tolerance, atol=tolerance)


@st.composite
def awkward_bars(draw: st.DrawFn) -> Bars:
    """Bars with jumps, flat stretches, repeated prices, no volume, and closes outside of their range."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = draw(st.integers(1, 260))
    size = draw(st.sampled_from([0.0, 1e-9, 1e-5, 0.01, 0.2]))
    moving = rng.random(rows) < draw(st.sampled_from([0.02, 0.3, 1.0]))
    close = np.exp(np.cumsum(np.where(moving, rng.normal(0, size, rows), 0))) * draw(
        st.sampled_from([1e-6, 1.0, 5e4])
    )
    open_, high, low = (close * np.where(moving, np.exp(rng.normal(0, size, rows)), 1) for _ in range(3))
    traded = rng.random(rows) < draw(st.sampled_from([0.0, 0.1, 1.0]))
    volume = np.where(traded, np.exp(rng.normal(0, draw(st.sampled_from([0.5, 8.0])), rows)), 0)
    return Bars(open=open_, high=high, low=low, close=close, volume=np.round(volume, 3))


@settings(max_examples=60, deadline=None)
@given(bars=awkward_bars())
def test_awkward_bars_give_finite_values(bars: Bars) -> None:
    values = compute_indicators(bars)
    for number, indicator in enumerate(catalog(with_volume=True)):
        assert np.isfinite(values[indicator.window - 1 :, number]).all(), indicator.name
    assert np.abs(values[np.isfinite(values)]).max(initial=0) < 1e8


def test_still_bars_without_volume_are_neutral() -> None:
    values = compute_indicators(make_still_bars(150, 17.31))[WARM_UP_ROWS:]
    assert np.isfinite(values).all()
    assert_neutral(dict(zip(NAMES, values.T, strict=True)))
    np.testing.assert_array_equal(values[:, NAMES.index("rsi_14")], 50)


def test_large_values_leave_no_remainder_behind() -> None:
    busy = make_bars(130)
    busy = replace(busy, volume=busy.volume * 1e7)
    values = compute_indicators(joined(busy, make_still_bars(400, float(busy.close[-1]))))[-60:]
    assert_neutral(dict(zip(NAMES, values.T, strict=True)))


def test_columns_differ_on_real_bars() -> None:
    """No column is constant, a copy of another or a linear combination of others."""
    stocks = adjusted_bars(read_source(files("bokeh_sampledata"))).to_pydict()
    ibm = np.array(stocks["ticker"]) == "IBM"
    fields = ("open", "high", "low", "close", "volume")
    bars = Bars(**{name: np.asarray(stocks[name], dtype=np.float64)[ibm] for name in fields})
    values = compute_indicators(bars)[WARM_UP_ROWS:]
    deviation = values.std(0)
    assert (deviation > 1e-6).all()
    scaled = (values - values.mean(0)) / deviation
    correlation = np.abs(np.corrcoef(scaled.T) - np.eye(len(NAMES)))
    assert correlation.max() < 0.995
    singular = np.linalg.svd(scaled, compute_uv=False)
    assert singular[-1] / singular[0] > 1e-4


def test_rows_before_the_first_whole_bar_have_no_indicators() -> None:
    bars = make_bars(300)
    late = {name: np.concatenate([np.full(7, np.nan), array]) for name, array in bars.columns().items()}
    late["close"][3] = 12.0
    values = compute_indicators(Bars(**late))
    assert np.isnan(values[:7]).all()
    np.testing.assert_array_equal(values[7:], compute_indicators(bars))
    assert np.isnan(compute_indicators(Bars(**late).rows(slice(7)))).all()


def test_missing_bars_become_bars_without_trades() -> None:
    bars = make_bars(6)
    holes = {name: array.copy() for name, array in bars.columns().items()}
    for array in holes.values():
        array[[0, 2, 3]] = np.nan
    holes["high"][5] = np.inf
    filled, count = fill_missing_bars(Bars(**holes))
    assert count == 3
    for name, array in filled.columns().items():
        assert np.isnan(array[0])
        np.testing.assert_array_equal(array[[1, 4]], bars.columns()[name][[1, 4]])
        np.testing.assert_array_equal(array[2:4], 0.0 if name == "volume" else bars.close[1])
    assert filled.high[5] == max(bars.open[5], bars.close[5])
    assert np.isfinite(compute_indicators(filled)[2:, 0]).all()
    assert fill_missing_bars(bars.rows(slice(0)))[1] == 0


def with_value(name: str, value: float) -> Bars:
    bars = make_bars(300)
    array = bars.columns()[name].copy()
    array[[150, 200]] = value
    return replace(bars, **{name: array})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("low", 0.0, r"data\.bars\.low: 2 of 300 rows are 0 or less, which has no logarithm, got 0; remove"),
        (
            "close",
            -3.5,
            r"data\.bars\.close: 2 of 300 rows are 0 or less, which has no logarithm, got -3\.5; ",
        ),
        ("volume", -1.0, r"data\.bars\.volume: 2 of 300 rows are negative, got -1; remove these rows or set"),
        ("high", np.nan, r"data\.bars\.high: 2 of 300 rows from .* are missing, got nan in row 150; fill"),
        (
            "close",
            1e300,
            r'features "ohlcv": \w+ overflows in \d+ rows, got (inf|-inf|nan) in row \d+ of its',
        ),
    ],
)
def test_values_that_cannot_be_used_are_refused(name: str, value: float, message: str) -> None:
    with pytest.raises(DataError, match=message):
        compute_indicators(with_value(name, value))


def test_bars_that_are_upside_down_are_refused_with_what_to_look_for() -> None:
    bars = make_bars(300)
    upside_down = replace(bars, low=1.05 * bars.high)
    with pytest.raises(
        DataError, match=r"overflows in \d+ rows, .*; look there for a low above its high, or"
    ):
        compute_indicators(upside_down)


def test_bars_have_one_length() -> None:
    with pytest.raises(ValueError, match="one length"):
        replace(make_bars(5), volume=np.ones(4))


def test_page_lists_the_columns_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "indicators.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)) == NAMES
    assert page == table()
