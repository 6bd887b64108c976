from __future__ import annotations

import numpy as np
import pytest

from ds_tft.forecast.baselines import FEWEST_SAMPLES, make_baselines

LEVELS = (0.1, 0.5, 0.9)


def walks(*lengths: int, targets: int = 1, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(length, targets)).cumsum(axis=0) for length in lengths]


def test_last_value_repeats_the_last_known_target(build_table):
    values = walks(6, 5, targets=2)
    values[0][3] = np.nan
    table = build_table([(0, values[0]), (1, values[1])], [1, 1])
    origins = np.array([3, 8])
    forecast = make_baselines(table, np.ones(11, np.bool_), horizon=3, quantiles=LEVELS)[
        "last value"
    ].forecast(origins)
    assert forecast.shape == (2, 3, 2, 3)
    assert (forecast[0] == values[0][2][:, None]).all()
    assert (forecast[1] == values[1][2][:, None]).all()


def test_naive_quantiles_are_the_changes_of_each_series(build_table):
    values = walks(200, 150, targets=2)
    values[0][50] = np.nan
    table = build_table([(0, values[0][:90]), (0, values[0][90:]), (1, values[1])], [1, 1])
    train = np.ones(350, np.bool_)
    train[170:200] = False
    baseline = make_baselines(table, train, horizon=4, quantiles=LEVELS)["naive quantiles"]
    forecast = baseline.forecast(np.array([180, 300]))
    parts = {0: [values[0][:90], values[0][90:170]], 1: [values[1]]}
    for window, (series, origin) in enumerate([(0, values[0][180]), (1, values[1][100])]):
        for step in range(1, 5):
            changes = np.concatenate([part[step:] - part[:-step] for part in parts[series]])
            expected = origin[:, None] + np.nanquantile(changes, LEVELS, axis=0).T
            np.testing.assert_allclose(forecast[window, step - 1], expected, rtol=1e-12)
    assert baseline.notes == ()


def test_nothing_after_the_origin_or_outside_training_is_used(build_table):
    values = walks(120)[0]
    train = np.arange(120) < 80
    changed = np.where(np.arange(120)[:, None] > 90, 1e6, values)
    origins = np.array([85, 90])
    before, after = (
        make_baselines(build_table([(0, v)], [1]), train, horizon=5, quantiles=LEVELS, season=7)
        for v in (values, changed)
    )
    assert set(before) == {
        "last value",
        "naive quantiles",
        "unconditional quantiles",
        "seasonal naive",
        "seasonal quantiles",
    }
    for name in before:
        np.testing.assert_array_equal(before[name].forecast(origins), after[name].forecast(origins))


@pytest.mark.parametrize("season", [1, 2, 5, 7])
def test_seasonal_naive_reads_the_last_known_season(build_table, season):
    values = walks(40)[0]
    table = build_table([(0, values)], [1])
    baseline = make_baselines(table, np.ones(40, np.bool_), horizon=6, quantiles=LEVELS, season=season)
    forecast = baseline["seasonal naive"].forecast(np.array([20]))
    for step in range(1, 7):
        row = 20 + step - season * int(np.ceil(step / season))
        assert (forecast[0, step - 1] == values[row]).all()


def test_seasonal_naive_is_exact_on_a_periodic_series(build_table):
    values = np.tile([3.0, 1.0, 2.0], 40)[:, None]
    table = build_table([(0, values)], [1])
    baselines = make_baselines(table, np.ones(120, np.bool_), horizon=5, quantiles=LEVELS, season=3)
    for name in ("seasonal naive", "seasonal quantiles"):
        forecast = baselines[name].forecast(np.array([50]))
        np.testing.assert_allclose(forecast[0, :, 0, :], np.repeat(values[51:56], 3, axis=1))


def test_a_season_before_the_segment_falls_back_to_the_last_value_and_is_counted(build_table):
    values = walks(10, 10)
    table = build_table([(0, values[0]), (1, values[1])], [1, 1])
    baselines = make_baselines(table, np.ones(20, np.bool_), horizon=4, quantiles=(0.5,), season=4)
    origins = np.array([11, 5])
    forecast = baselines["seasonal naive"].forecast(origins)[..., 0, 0]
    # Row 11 is the second of its segment: steps 1 and 2 want rows 8 and 9, of the other series.
    assert forecast[0].tolist() == [*[values[1][1, 0]] * 2, values[1][0, 0], values[1][1, 0]]
    assert baselines["seasonal naive"].fallbacks(origins) == 2
    assert baselines["last value"].fallbacks(origins) == 0
    assert baselines["unconditional quantiles"].fallbacks(origins) == 0


def test_unconditional_quantiles_are_those_of_the_training_rows(build_table):
    values = walks(100, 80)
    table = build_table([(0, values[0]), (1, values[1])], [1, 1])
    train = np.ones(180, np.bool_)
    train[60:100] = False
    forecast = make_baselines(table, train, horizon=2, quantiles=LEVELS)["unconditional quantiles"].forecast(
        np.array([99, 179])
    )
    np.testing.assert_allclose(forecast[0], np.tile(np.quantile(values[0][:60], LEVELS), (2, 1, 1)))
    np.testing.assert_allclose(forecast[1], np.tile(np.quantile(values[1], LEVELS), (2, 1, 1)))


def test_a_short_series_borrows_in_units_of_its_own_scale(build_table):
    long, short = walks(300, FEWEST_SAMPLES // 2)
    table = build_table([(0, long), (1, 100 * short)], [1, 100])
    baseline = make_baselines(table, np.ones(len(table.times), np.bool_), horizon=1, quantiles=LEVELS)[
        "naive quantiles"
    ]
    origin = table.num_rows - 1
    offsets = baseline.forecast(np.array([origin]))[0, 0, 0] - table.history[origin, 0]
    changes = np.concatenate([np.diff(long[:, 0]), np.diff(short[:, 0])])
    np.testing.assert_allclose(offsets, 100 * np.quantile(changes, LEVELS))
    assert len(baseline.notes) == 1
    assert f"1 of 2 series have fewer than {FEWEST_SAMPLES} changes" in baseline.notes[0]


def test_without_any_change_in_training_the_last_value_remains(build_table):
    values = walks(20)[0]
    table = build_table([(0, values)], [1])
    baselines = make_baselines(table, np.arange(20) < 3, horizon=5, quantiles=LEVELS)
    forecast = baselines["naive quantiles"].forecast(np.array([10]))
    assert (forecast[0, 2:, 0] == values[10]).all()
    assert "1 of 1 series" in baselines["naive quantiles"].notes[0]
    assert "1 of 1 series" in baselines["unconditional quantiles"].notes[0]


def test_an_origin_in_no_segment_has_no_earlier_row(build_table):
    table = build_table([(0, walks(6)[0])], [1])
    table.segments[0] = (0, 2, 6)
    baseline = make_baselines(table, np.ones(6, np.bool_), horizon=1, quantiles=(0.5,), season=2)
    assert baseline["seasonal naive"].fallbacks(np.array([1, 2, 3])) == 2
