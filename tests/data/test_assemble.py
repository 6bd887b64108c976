"""Each value in its column. Which rows there are is tested with `raw`, scaling with `scaling`."""

import numpy as np
import pytest
from datasets import ROLES, bars, panel, prepare

from ds_tft.data.indicators import Bars, compute_indicators, indicator_names
from ds_tft.errors import DataError

UNSCALED = {"reals": "none", "clip": None, "target": {"kind": "none", "transform": "none", "anchor": "none"}}


def with_values(columns, **values):
    """The columns with single values replaced: `price={5: nan}`."""
    changed = dict(columns)
    for name, places in values.items():
        changed[name] = (
            list(columns[name]) if isinstance(columns[name], list) else np.array(columns[name], float)
        )
        for row, value in places.items():
            changed[name][row] = value
    return changed


def several_of_each_role():
    """A panel whose columns hold recognisable values: column k of a role is 1000 k + row."""
    columns = panel(2, 40)
    row = np.arange(80.0)
    for role in ("target", "known", "observed", "static"):
        for k in (1, 2, 3):
            columns[f"{role}{k}"] = 1000.0 * k + (row // 40 if role == "static" else row)
    for role in ("known_cat", "observed_cat", "static_cat"):
        for k in (1, 2):
            columns[f"{role}{k}"] = [
                f"{k}{'ab'[(int(r) // 40 if role.startswith('static') else int(r)) % 2]}" for r in row
            ]
    return columns


SEVERAL = {
    "time": "day",
    "series": "store",
    # Not in the order of the file.
    "target": ["target2", "target1"],
    "known_reals": ["known3", "known1", "known2"],
    "observed_reals": ["observed2", "observed3", "observed1"],
    "static_reals": ["static2", "static1"],
    "known_categories": ["known_cat2", "known_cat1"],
    "observed_categories": ["observed_cat2", "observed_cat1"],
    "static_categories": ["static_cat2", "static_cat1"],
    "other_columns": "ignore",
    "calendar": ["month", "is_weekend"],
}


def test_every_name_is_that_of_its_column(tmp_path):
    columns = several_of_each_role()
    broken = with_values(columns, observed3={7: np.nan}, known1={9: np.nan}, target1={11: np.nan})
    data = prepare(tmp_path, broken, data=SEVERAL, scaling=UNSCALED)
    table, layout, maps = data.table, data.preprocessor.layout, data.preprocessor.categories
    assert layout.roles.target == ("target2", "target1")
    expected_flags = {"observed3_missing": 7, "known1_missing": 9, "target1_missing": 11}
    for names, matrix in (
        (layout.observed_reals, table.observed_reals),
        (layout.known_reals, table.known_reals),
    ):
        assert matrix.shape[1] == len(names)
        for name, values in zip(names, matrix.T, strict=True):
            if name in expected_flags:
                assert np.flatnonzero(values).tolist() == [expected_flags[name]]
            elif name in columns:
                same = np.ones(80, dtype=bool)
                same[[7, 9]] = False
                np.testing.assert_array_equal(values[same], columns[name][same].astype(np.float32))
    assert layout.observed_reals == (
        "observed2",
        "observed3",
        "observed1",
        "target1_missing",
        "observed3_missing",
    )
    assert layout.known_reals == (
        "known3",
        "known1",
        "known2",
        "known1_missing",
        "month_sin",
        "month_cos",
        "is_weekend",
    )
    np.testing.assert_array_equal(table.known_reals[:, -1], np.tile((np.arange(40) % 7 >= 5), 2))
    for o, name in enumerate(layout.roles.target):
        known = np.isfinite(table.targets[:, o])
        np.testing.assert_array_equal(table.targets[known, o], columns[name][known])
        assert np.flatnonzero(~known).tolist() == ([11] if name == "target1" else [])
    for s in (0, 1):
        assert table.static_reals[s].tolist() == [2000.0 + s, 1000.0 + s]
    for names, codes in (
        (layout.roles.observed_categories, table.observed_categories),
        (layout.roles.known_categories, table.known_categories),
    ):
        for name, column in zip(names, codes.T, strict=True):
            assert [maps[name].values[code - 1] for code in column] == columns[name]
    statics = [[maps[n].values[c - 1] for n, c in zip(layout.static_categories, row, strict=True)]
               for row in table.static_categories]  # fmt: skip
    assert statics == [["store 0", "2a", "1a"], ["store 1", "2b", "1b"]]


def test_bar_columns_are_where_their_names_say(tmp_path):
    columns = bars(1, 300) | {"extra": np.arange(300.0)}
    data = prepare(tmp_path, columns, data={"features": "ohlcv", "observed_reals": "extra"}, scaling=UNSCALED)
    fields = ("open", "high", "low", "close", "volume")
    indicators = compute_indicators(Bars(**{name: columns[name] for name in fields}))
    assert data.preprocessor.layout.observed_reals == ("extra", *indicator_names(True))
    np.testing.assert_array_equal(data.table.observed_reals[:, 0], np.arange(300.0))
    np.testing.assert_array_equal(
        data.table.observed_reals[:, 1:], np.nan_to_num(indicators).astype(np.float32)
    )


def test_the_225_inputs_of_bars(tmp_path):
    data = prepare(tmp_path, bars(2, 300), data={"features": "ohlcv"})
    names = data.preprocessor.variable_names()
    assert len(names["static"]) == data.table.static_reals.shape[1] + 1 == 5
    assert len(names["future"]) == data.table.known_reals.shape[1] + 1 == 10
    assert len(names["history"]) - 10 == data.table.observed_reals.shape[1] + 1 == 210
    assert len(set(names["static"] + names["history"])) == 225
    assert data.table.static_reals.dtype == np.float32
    for matrix in (data.table.observed_reals, data.table.known_reals, data.table.static_reals):
        assert np.isfinite(matrix).all()


def test_bars_without_volume_have_the_smaller_set(tmp_path):
    columns = {name: values for name, values in bars(2).items() if name != "volume"}
    data = prepare(tmp_path, columns, data={"features": "ohlcv", "bars": {"volume": None}})
    assert data.table.observed_reals.shape[1] == len(indicator_names(False))
    assert data.table.static_reals.shape[1] == 4


def test_bars_whose_volume_is_not_there_are_refused(tmp_path):
    columns = {name: values for name, values in bars(2).items() if name != "volume"}
    with pytest.raises(
        DataError, match=r"data.bars.volume: no column 'volume'.*set data.bars.volume to null"
    ):
        prepare(tmp_path, columns, data={"features": "ohlcv"})


@pytest.mark.parametrize("missing", ["fill", "drop"])
def test_a_row_without_a_target_is_no_label_and_still_an_input(tmp_path, missing):
    data = prepare(
        tmp_path,
        with_values(panel(), sales={20: np.nan}),
        data=ROLES | {"missing": missing},
        scaling=UNSCALED,
    )
    table = data.table
    assert np.flatnonzero(np.isnan(table.targets[:, 0])).tolist() == [20]
    assert np.flatnonzero(~table.usable).tolist() == ([20] if missing == "drop" else [])
    if missing == "fill":
        assert table.history[20, 0] == table.targets[19, 0]


def test_values_without_a_past_stand_at_their_mean(tmp_path):
    data = prepare(tmp_path, with_values(panel(), visits={0: np.nan, 1: np.nan}))
    assert data.table.observed_reals[[0, 1], 0].tolist() == [0.0, 0.0]
    assert data.table.observed_reals[[0, 1, 2], 1].tolist() == [1.0, 1.0, 0.0]
    assert any(
        "2 values with none before them take the training mean (visits 2)" in line for line in data.lines
    )


def test_an_unseen_category_is_unknown_and_named(tmp_path):
    columns = with_values(panel(), weather={55: "hail", 58: "hail", 115: "fog"})
    data = prepare(tmp_path, columns)
    cardinality = prepare(tmp_path, panel()).preprocessor.categories["weather"].cardinality
    assert data.preprocessor.categories["weather"].cardinality == cardinality == 4
    assert np.flatnonzero(data.table.observed_categories[:, 0] == 0).tolist() == [55, 58, 115]
    assert (
        "weather: 2 values unseen in training, taken as unknown, 3 times: 'hail' (2), 'fog' (1)" in data.lines
    )


def test_a_series_that_begins_after_training_is_unknown(tmp_path):
    columns = panel(3)
    late = np.arange(180) >= 165
    keep = np.flatnonzero((np.arange(180) < 120) | late)
    columns = {name: [list(values)[row] for row in keep] for name, values in columns.items()}
    data = prepare(
        tmp_path, columns, data=ROLES | {"time": "day"}, window={"encoder_length": 4, "horizon": 2}
    )
    store = data.preprocessor.layout.static_categories.index("store")
    assert data.table.static_categories[:, store].tolist() == [1, 2, 0]
    assert data.preprocessor.categories["store"].cardinality == 3
    assert np.isfinite(data.table.scale).all()
    assert np.isfinite(data.table.static_reals).all()


def test_weights(tmp_path):
    columns = panel()
    data = prepare(tmp_path, columns, data=ROLES | {"weight": "weight"})
    np.testing.assert_allclose(data.table.weights, columns["weight"], rtol=1e-6)
    assert prepare(tmp_path, columns).table.weights.tolist() == [1.0] * 180


@pytest.mark.parametrize(("value", "shown"), [(-1.0, "-1"), (np.nan, "nan"), (np.inf, "nan")])
def test_a_bad_weight_is_refused_by_place(tmp_path, value, shown):
    columns = with_values(panel(), weight={70: value})
    with pytest.raises(
        DataError, match=rf"data.weight: column 'weight'.*got {shown} in series 'store 1' at 2024-01-11"
    ):
        prepare(tmp_path, columns, data=ROLES | {"weight": "weight"})


def test_weights_of_rows_behind_the_last_target_need_not_be_there(tmp_path):
    columns = with_values(panel(1), sales={59: np.nan}, weight={59: np.nan})
    data = prepare(tmp_path, columns, data=ROLES | {"weight": "weight"})
    assert data.table.weights[59] == 0


def test_clipped_values_are_counted_and_named(tmp_path):
    data = prepare(tmp_path, with_values(panel(), visits={50: 1e6}, price={51: -1e6}))
    assert data.table.observed_reals[50, 0] == 10.0
    assert data.table.known_reals[51, 0] == -10.0
    assert "scaling: 2 values of 2 inputs limited to 10.0 scales (most: visits 1, price 1)" in data.lines


def test_a_clipped_static_is_counted_too(tmp_path):
    """A store that is not in training can be far from those that were."""
    columns = panel(3)
    columns["area"] = np.where(np.arange(180) < 120, columns["area"], 1e9)
    late = [list(values) for values in columns.values()]
    keep = [row for row in range(180) if row < 120 or row >= 165]
    columns = {name: [values[row] for row in keep] for name, values in zip(columns, late, strict=True)}
    data = prepare(tmp_path, columns, window={"encoder_length": 4, "horizon": 2})
    assert data.table.static_reals[2, 0] == 10.0
    assert any("limited to 10.0 scales (most: area 1)" in line for line in data.lines)


def test_statics_follow_the_kind_of_scaling(tmp_path):
    columns = panel(3)
    plain = prepare(tmp_path, columns, scaling={"reals": "none"})
    assert plain.table.static_reals[:, 0].tolist() == [10.0, 10.0, 10.0], "100 to 300, limited to clip"
    unlimited = prepare(tmp_path, columns, scaling={"reals": "none", "clip": None})
    assert unlimited.table.static_reals[:, 0].tolist() == [100.0, 200.0, 300.0]
    standard = prepare(tmp_path, columns).table.static_reals[:, 0]
    np.testing.assert_allclose(standard, [-1.2247, 0, 1.2247], atol=1e-4)


def test_a_target_outside_its_transform_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"target 'sales': transform 'log' needs values above 0"):
        prepare(tmp_path, with_values(panel(), sales={3: -1.0}), scaling={"target": {"transform": "log"}})


@pytest.mark.parametrize("kind", ["standard", "robust", "none"])
def test_a_target_that_float32_does_not_hold_is_refused_by_place(tmp_path, kind):
    """Later than the training rows, so that the scale knows nothing of it."""
    columns = with_values(panel(), sales={118: -1e300})
    with pytest.raises(
        DataError,
        match=r"target 'sales', series 'store 1' at 2024-02-28.*: .* times the usual size .*, got -1e\+300;",
    ):
        prepare(tmp_path, columns, scaling={"target": {"kind": kind}})
    prepare(tmp_path, with_values(panel(), sales={118: -1e12}), scaling={"target": {"kind": kind}})


def test_rows_of_weight_0_are_counted(tmp_path):
    columns = with_values(panel(), weight={3: 0.0, 70: 0.0})
    lines = prepare(tmp_path, columns, data=ROLES | {"weight": "weight"}).lines
    assert "weights: 2 rows of weight 0 are no labels" in lines
    assert not any("weights:" in line for line in prepare(tmp_path, panel()).lines)
