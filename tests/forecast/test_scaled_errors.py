from __future__ import annotations

import numpy as np
import pytest

from ds_tft.forecast.scaled_errors import ScaledErrors, seasonal_naive_error


def test_seasonal_naive_error_stays_in_segment_and_training(build_table):
    values = np.array([1.0, 2.0, 4.0, 100.0, 7.0, 7.5, np.nan, 50.0])[:, None]
    table = build_table(
        [(0, values[:3]), (0, values[3:4]), (1, values[4:8]), (2, np.ones((1, 1)))], [1, 1, 1]
    )
    train = np.array([1, 1, 1, 1, 1, 1, 1, 0, 1], dtype=np.bool_)
    error = seasonal_naive_error(table.targets, table, train, 1)
    assert error[:2] == pytest.approx(np.array([[1.5], [0.5]]))
    assert np.isnan(error[2])
    # Two steps apart: only row 2 of series 0 has a partner; series 1's partner is unknown.
    assert seasonal_naive_error(table.targets, table, train, 2)[:, 0] == pytest.approx(
        [3.0, np.nan, np.nan], nan_ok=True
    )


def test_hand_computed_sql_and_mase():
    errors = ScaledErrors((0.1, 0.5, 0.9), np.array([[2.0], [4.0]]))
    labels = np.array([[1.0, 3.0], [np.nan, 8.0], [0.0, 4.0]])[:, :, None]
    forecasts = np.zeros((3, 2, 1, 3))
    errors.add(labels, forecasts, np.array([0, 0, 1]))
    result = errors.result()
    # All labels lie above the forecasts: the loss is q * y per level, 0.5 * y in the mean over levels.
    windows = np.array([2.0 / 2, 8.0 / 2, 2.0 / 4])
    assert result.sql == pytest.approx(windows.mean())
    assert result.mase == pytest.approx(windows.mean())
    assert result.series_sql[:, 0] == pytest.approx([2.5, 0.5])
    assert result.series_mase[:, 0] == pytest.approx([2.5, 0.5])
    assert result.notes == ()


def test_sql_of_a_point_forecast_at_symmetric_levels_is_mase():
    rng = np.random.default_rng(0)
    errors = ScaledErrors((0.2, 0.5, 0.8), np.array([[0.7, 1.3]]))
    forecasts = np.repeat(rng.normal(size=(20, 3, 2, 1)), 3, axis=-1)
    errors.add(rng.normal(size=(20, 3, 2)), forecasts, np.zeros(20, np.int64))
    result = errors.result()
    assert result.sql == pytest.approx(result.mase)
    assert result.target_sql == pytest.approx(result.target_mase)
    assert result.target_sql[0] != pytest.approx(result.target_sql[1])


def test_series_without_scale_are_left_out_and_counted():
    errors = ScaledErrors((0.5,), np.array([[1.0], [0.0], [np.nan], [0.0]]))
    errors.add(np.ones((3, 1, 1)), np.zeros((3, 1, 1, 1)), np.array([0, 1, 2]))
    result = errors.result()
    assert result.mase == 1.0
    assert result.series_mase[:, 0] == pytest.approx([1.0, np.nan, np.nan, np.nan], nan_ok=True)
    assert len(result.notes) == 1
    assert "2 of 3 series left out" in result.notes[0]


def test_merged_parts_equal_the_whole():
    rng = np.random.default_rng(1)
    scale = rng.random((4, 1)) + 0.1
    labels, forecasts = rng.normal(size=(30, 5, 1)), rng.normal(size=(30, 5, 1, 3))
    labels[rng.random(labels.shape) < 0.3] = np.nan
    series = rng.integers(0, 4, 30)
    whole, first, second = (ScaledErrors((0.1, 0.5, 0.9), scale) for _ in range(3))
    whole.add(labels, forecasts, series)
    first.add(labels[:11], forecasts[:11], series[:11])
    second.add(labels[11:], forecasts[11:], series[11:])
    first.merge(second)
    assert first.result().sql == pytest.approx(whole.result().sql)
    assert first.result().series_mase == pytest.approx(whole.result().series_mase)


def test_nonfinite_forecast_shows():
    errors = ScaledErrors((0.5,), np.ones((1, 1)))
    errors.add(np.ones((2, 1, 1)), np.array([1.0, np.nan]).reshape(2, 1, 1, 1), np.zeros(2, np.int64))
    assert np.isnan(errors.result().mase)


def test_no_window_gives_nan():
    assert np.isnan(ScaledErrors((0.5,), np.ones((2, 1))).result().sql)
