from __future__ import annotations

import numpy as np
import pytest

from ds_tft.data.bar_statics import bar_static_names, bar_statics
from ds_tft.data.indicators import Bars
from ds_tft.errors import DataError


def make_bars(close: list[float], volume: list[float] | None) -> Bars:
    prices = np.array(close)
    traded = None if volume is None else np.array(volume)
    return Bars(open=prices, high=prices * 1.1, low=prices, close=prices, volume=traded)


def test_statics_are_those_of_their_names() -> None:
    names = ("log_median_close", "log_median_traded_value", "median_absolute_return", "median_range")
    assert bar_static_names() == names
    values = bar_statics(make_bars([10, 20, 10, 40], [1, 0, 3, 2]))
    np.testing.assert_allclose(values, [np.log(np.sqrt(200)), np.log(30), np.log(2), np.log(1.1)])


def test_without_volume_the_second_is_the_size_of_extreme_returns() -> None:
    assert bar_static_names(with_volume=False)[1] == "extreme_absolute_return"
    close = np.exp(np.cumsum(np.arange(101) / 100))
    assert bar_statics(make_bars(list(close), None))[1] == pytest.approx(0.9505)


def test_rows_with_a_missing_value_are_left_out() -> None:
    whole = bar_statics(make_bars([10, 20, 40], [1, 2, 3]))
    holes = bar_statics(make_bars([10, np.nan, 20, 30, 40], [1, 5, 2, np.nan, 3]))
    np.testing.assert_array_equal(holes, whole)


def test_statics_of_few_bars() -> None:
    assert np.isnan(bar_statics(make_bars([], []))).all()
    np.testing.assert_array_equal(np.isnan(bar_statics(make_bars([10], [2]))), [False, False, True, False])
    assert bar_statics(make_bars([10, 20], [0, 0]))[1] == 0


def test_prices_of_zero_are_refused() -> None:
    with pytest.raises(DataError, match=r"data\.bars\.open: 1 of 2 rows are 0 or less"):
        bar_statics(make_bars([10, 0], [1, 1]))
