from dataclasses import replace

import numpy as np
import pytest
from raw_rows import index_rows

from ds_tft.config.run import BarColumns
from ds_tft.data.bar_features import bar_feature_columns, compute_bar_features, compute_bar_statics
from ds_tft.data.frequency import IndexStep
from ds_tft.data.gaps import close_gaps
from ds_tft.data.indicators import Bars, compute_indicators, indicator_names
from ds_tft.errors import DataError

NAMES = BarColumns(open="o", high="h", low="l", close="c", volume="v")


def walk(rows, seed):
    rng = np.random.default_rng(seed)
    close = 50 * np.exp(np.cumsum(rng.normal(0, 0.02, rows)))
    open_ = close * np.exp(rng.normal(0, 0.005, rows))
    return {
        "o": open_,
        "h": np.maximum(open_, close) * 1.01,
        "l": np.minimum(open_, close) * 0.99,
        "c": close,
        "v": rng.uniform(10, 100, rows),
    }


def rows_of(*series):
    """Rows of several series, one after the other."""
    count = [len(columns["c"]) for columns in series]
    return index_rows(
        np.concatenate([np.arange(n) for n in count]),
        np.repeat(np.arange(len(series)), count),
        names=("A", "B")[: len(series)],
        reals={name: np.concatenate([columns[name] for columns in series]) for name in series[0]},
    )


def indicators_of(columns):
    fields = {"o": "open", "h": "high", "l": "low", "c": "close", "v": "volume"}
    return compute_indicators(Bars(**{fields[name]: values for name, values in columns.items()}))


def test_columns_in_the_file():
    assert bar_feature_columns(NAMES) == ("o", "h", "l", "c", "v")
    assert bar_feature_columns(NAMES.model_copy(update={"volume": None})) == ("o", "h", "l", "c")


def test_each_series_is_computed_by_itself():
    first, second = walk(150, 0), walk(140, 1)
    features = compute_bar_features(rows_of(first, second), NAMES)
    assert features.names == indicator_names(True)
    assert features.completed_rows == 0
    np.testing.assert_array_equal(features.values[:150], indicators_of(first))
    np.testing.assert_array_equal(features.values[150:], indicators_of(second))


def test_without_volume_the_smaller_set():
    rows = rows_of({name: values for name, values in walk(130, 0).items() if name != "v"})
    features = compute_bar_features(rows, NAMES.model_copy(update={"volume": None}))
    assert features.names == indicator_names(False)
    assert features.values.shape == (130, 166)


def test_incomplete_bars_of_the_file_are_counted_and_those_of_gaps_are_not():
    columns = walk(150, 0)
    columns["h"][60] = np.nan
    columns["c"][[70, 71]] = np.nan
    rows = index_rows(np.r_[0:100, 103:153], reals=columns)
    filled, _ = close_gaps(rows, "fill", 5, IndexStep())
    features = compute_bar_features(filled, NAMES)
    assert filled.num_rows == 153
    assert features.completed_rows == 3
    assert "bars: 3 incomplete bars taken for bars without a trade" in features.lines()
    assert np.isfinite(features.values[121:]).all()


def test_room_to_forecast_does_not_hide_incomplete_bars():
    """Whole bars behind the last target are no incomplete ones, and take none away from the count."""
    columns = walk(150, 0)
    columns["c"][70] = np.nan
    rows = index_rows(np.arange(150), reals=columns)
    features = compute_bar_features(replace(rows, synthetic=np.arange(150) >= 140), NAMES)
    assert features.completed_rows == 1


def test_rows_before_the_first_whole_bar_have_no_indicators():
    columns = walk(150, 0)
    for values in columns.values():
        values[:10] = np.nan
    features = compute_bar_features(rows_of(columns), NAMES)
    assert np.isnan(features.values[:10]).all()
    np.testing.assert_array_equal(
        features.values[10:], indicators_of({n: v[10:] for n, v in columns.items()})
    )


def test_a_bad_price_names_the_series():
    bad = walk(50, 1)
    bad["l"][3] = 0.0
    with pytest.raises(DataError, match=r"series 'B': data.bars.low: 1 of 50 rows are 0 or less"):
        compute_bar_features(rows_of(walk(50, 0), bad), NAMES)


def test_statics_come_from_training_rows_only():
    columns = walk(100, 0)
    rows = rows_of(columns, walk(80, 1))
    train = np.zeros(180, dtype=bool)
    train[:60] = True
    statics = compute_bar_statics(rows, NAMES, train)
    assert statics.shape == (2, 4)
    assert statics[0, 0] == pytest.approx(np.median(np.log(columns["c"][:60])))
    assert np.isnan(statics[1]).all(), "no training row"
    columns["c"][60:] *= 1.001
    np.testing.assert_array_equal(compute_bar_statics(rows_of(columns, walk(80, 1)), NAMES, train), statics)


def test_an_indicator_sees_no_later_row():
    columns = walk(200, 0)
    before = compute_bar_features(rows_of(columns), NAMES).values
    later = {name: values.copy() for name, values in columns.items()}
    for name in later:
        later[name][150:] = walk(200, 9)[name][150:]
    after = compute_bar_features(rows_of(later), NAMES).values
    np.testing.assert_array_equal(after[:150], before[:150])
    assert not np.array_equal(after[150:], before[150:], equal_nan=True)


def test_bars_that_contradict_themselves_are_counted():
    columns = walk(150, 2)
    columns["h"][10], columns["l"][20], columns["c"][30] = columns["l"][10] * 0.999, 1e5, columns["h"][30] * 2
    columns["o"][40] = np.nan
    features = compute_bar_features(rows_of(columns, walk(140, 3)), NAMES)
    assert features.contradictory_rows == 3
    assert (
        "bars: 3 bars have a price above their high or below their low, taken as they are" in features.lines()
    )
    assert len(compute_bar_features(rows_of(walk(150, 0)), NAMES).lines()) == 1
