from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from ds_tft.config.run import BarColumns, DataSettings
from ds_tft.data import infer_series
from ds_tft.data.infer import infer_roles, roles_table
from ds_tft.data.parquet import ParquetSource, open_source
from ds_tft.errors import DataError

STEPS = 6
PER_SERIES = ("a", "b", "c")


def source_of(tmp_path, columns):
    pq.write_table(pa.table(columns), tmp_path / "data.parquet")
    return open_source(str(tmp_path / "data.parquet"))


def times(count=STEPS, repeat=1):
    return pa.array(np.tile(np.arange(count) * 3_600_000_000, repeat), pa.timestamp("us"))


def panel(**more):
    """Three series of `STEPS` rows with a time column, an id and a target; `more` come last."""
    rng = np.random.default_rng(0)
    rows = STEPS * len(PER_SERIES)
    ids = np.repeat(PER_SERIES, STEPS).tolist()
    return {"t": times(repeat=3), "shop": ids, "sales": rng.standard_normal(rows), **more}


def bars(**more):
    names = ("open", "high", "low", "close", "volume")
    return {"t": times(), **{name: np.arange(STEPS) + 1.0 for name in names}, **more}


def per_series(values):
    return [value for value in values for _ in range(STEPS)]


def infer(tmp_path, columns, **settings):
    return infer_roles(source_of(tmp_path, columns), DataSettings(**settings))


def reasons(inferred):
    return {row.column: (row.role, row.reason) for row in inferred.reasons}


# Named columns


def test_named_columns_keep_the_order_of_the_settings(tmp_path):
    columns = {
        "t": times(),
        "x": np.arange(6.0),
        "y": np.arange(6.0),
        "w": np.ones(6),
        "z": np.arange(6),
        "s": ["a"] * 6,
    }

    inferred = infer(
        tmp_path,
        columns,
        target=("y",),
        known_reals=("z", "x"),
        weight="w",
        series=("s",),
        other_columns="ignore",
    )

    roles = inferred.roles
    assert (roles.time, roles.series, roles.target, roles.weight) == ("t", ("s",), ("y",), "w")
    assert roles.known_reals == ("z", "x")
    assert [row.column for row in inferred.reasons] == list(columns)
    assert reasons(inferred)["z"] == ("known_reals", "given")
    assert inferred.notes == ()


def test_a_column_that_does_not_exist_is_named_with_a_suggestion(tmp_path):
    with pytest.raises(
        DataError, match=r"data.target: no column 'salse' in .*data.parquet; did you mean 'sales'\?"
    ):
        infer(tmp_path, panel(), target=("salse",))


@pytest.mark.parametrize("role", ["known_reals", "static_reals", "observed_reals", "weight", "ignored"])
def test_a_target_has_no_other_role(tmp_path, role):
    with pytest.raises(
        DataError, match=f"data.{role}: column 'sales' is also in data.target; a column has one role"
    ):
        infer(tmp_path, panel(), target=("sales",), **{role: "sales" if role == "weight" else ("sales",)})


def test_a_column_is_named_once(tmp_path):
    with pytest.raises(DataError, match="data.target: column 'sales' is named twice; name it once"):
        infer(tmp_path, panel(), target=("sales", "sales"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": ("shop",)}, "data.target: column 'shop' does not hold numbers, got type string"),
        (
            {"target": ("late",)},
            r"data.target: column 'late' does not hold numbers, got type timestamp\[us\]",
        ),
        ({"weight": "shop"}, "data.weight: column 'shop' does not hold numbers"),
        ({"time": "sales"}, "data.time: column 'sales' does not hold times, got type double"),
        (
            {"known_categories": ("nested",)},
            "data.known_categories: column 'nested' cannot be used, type list",
        ),
    ],
)
def test_a_named_column_must_fit_its_role(tmp_path, settings, message):
    columns = panel(nested=[[1]] * 18, late=times(18))
    with pytest.raises(DataError, match=message):
        infer(tmp_path, columns, **{"target": ("sales",), "time": "t", **settings})


def test_a_named_column_must_be_in_every_file(tmp_path):
    pq.write_table(
        pa.table({"t": times(), "y": np.arange(6.0), "extra": np.arange(6.0)}), tmp_path / "1.parquet"
    )
    pq.write_table(pa.table({"t": times(), "y": np.arange(6.0)}), tmp_path / "2.parquet")
    source = open_source(str(tmp_path))

    with pytest.raises(
        DataError, match="data.known_reals: column 'extra' cannot be used, it is missing in .*2.parquet"
    ):
        infer_roles(source, DataSettings(target=("y",), known_reals=("extra",)))
    inferred = infer_roles(source, DataSettings(target=("y",)))
    assert reasons(inferred)["extra"] == ("ignored", f"it is missing in {tmp_path}/2.parquet")
    assert not any("extra" in note for note in inferred.notes)


# Time


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"when": times(), "date": ["x"] * 6}, "when"),
        ({"expiry": times(), "Timestamp": times()}, "Timestamp"),
        ({"year": [1] * 6, "time_idx": np.arange(6)}, "time_idx"),
        ({"note": ["x"] * 6, "ds": [f"2024-01-0{i}" for i in range(1, 7)]}, "ds"),
    ],
)
def test_time_is_the_only_column_of_times_or_the_one_named_so(tmp_path, columns, expected):
    inferred = infer(tmp_path, {**columns, "y": np.arange(6.0)}, target=("y",), series=())

    assert inferred.roles.time == expected


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": times(), "b": times()}, "several columns could be the time, got a, b; name one"),
        (
            {"date": times(), "time": times(), "c": times()},
            "several columns could be the time, got date, time;",
        ),
        ({"date": ["x"] * 6, "time": ["y"] * 6}, "several columns could be the time, got date, time;"),
        ({"hour": np.arange(6)}, "has no column of times, and none named like one; name it in data.time"),
    ],
)
def test_an_unclear_time_is_an_error(tmp_path, columns, message):
    with pytest.raises(DataError, match=f"data.time: .*{message}"):
        infer(tmp_path, {**columns, "y": np.arange(6.0)}, target=("y",))


def test_a_column_in_another_role_is_not_the_time(tmp_path):
    inferred = infer(
        tmp_path, {"a": times(), "b": times(), "y": np.arange(6.0)}, target=("y",), ignored=("a",)
    )

    assert inferred.roles.time == "b"


# Target


def test_a_target_must_be_given(tmp_path):
    message = "data.target: no target given; name the column to forecast, of these: sales, size$"
    with pytest.raises(DataError, match=message):
        infer(tmp_path, panel(size=np.arange(18)))
    with pytest.raises(DataError, match=message):
        infer(tmp_path, panel(size=np.arange(18)), target=())


def test_an_integer_target_is_a_number(tmp_path):
    inferred = infer(tmp_path, panel(ticks=np.arange(18)), target=("ticks",))

    assert inferred.roles.target == ("ticks",)
    assert "sales" in inferred.roles.observed_reals


# Series


def test_unique_times_are_one_series(tmp_path):
    columns = {"t": times(), "y": np.arange(6.0), "s": ["a", "a", "a", "b", "b", "b"]}

    inferred = infer(tmp_path, columns, target=("y",))

    assert inferred.roles.series == ()
    assert reasons(inferred)["s"] == ("observed_categories", "varies within a series")


@pytest.mark.parametrize(
    "ids",
    [
        pa.array(np.repeat(PER_SERIES, STEPS).tolist()).dictionary_encode(),
        pa.array(np.repeat([b"a", b"b", b"c"], STEPS).tolist(), pa.binary()),
        pa.array([None] * STEPS + ["b"] * STEPS + ["c"] * STEPS),
    ],
    ids=["dictionary", "bytes", "null"],
)
def test_a_text_column_tells_series_apart(tmp_path, ids):
    inferred = infer(tmp_path, panel(shop=ids), target=("sales",))

    assert inferred.roles.series == ("shop",)
    assert inferred.notes == ()


def test_ids_that_differ_in_the_last_digit_are_two_series(tmp_path):
    ids = [2**53 + 1] * STEPS + [2**53] * STEPS
    columns = {"t": times(repeat=2), "account": ids, "y": np.arange(12.0)}

    assert infer(tmp_path, columns, target=("y",)).roles.series == ("account",)


@pytest.mark.parametrize(
    ("name", "found"),
    [("store_id", True), ("storeId", True), ("ID", True), ("width", False), ("idle", False)],
)
def test_integers_tell_series_apart_only_by_name(tmp_path, name, found):
    columns = {"t": times(repeat=3), name: per_series([1, 2, 3]), "y": np.arange(18.0)}

    assert infer(tmp_path, columns, target=("y",)).roles.series == ((name,) if found else ())


def test_the_fewest_columns_are_taken(tmp_path):
    columns = {
        "kind": ["x", "y"] * 18,
        "t": times(repeat=6),
        "shop": np.repeat(["a", "b"], 18).tolist(),
        "item": np.repeat([0, 1, 2, 0, 1, 2], 6),
        "y": np.arange(36.0),
    }

    inferred = infer(tmp_path, columns, target=("y",))
    assert inferred.roles.series == ("shop", "item")
    assert reasons(inferred)["shop"] == ("series", "tells series apart, together with the others")

    single = infer(tmp_path, columns | {"name": np.repeat(list("uvwxyz"), 6).tolist()}, target=("y",))
    assert single.roles.series == ("name",)
    assert reasons(single)["shop"] == ("static_categories", "constant within every series")


def test_of_equal_sets_the_first_in_the_file_is_taken(tmp_path):
    inferred = infer(tmp_path, panel(copy=per_series(["x", "y", "z"])), target=("sales",))

    assert inferred.roles.series == ("shop",)
    assert inferred.roles.static_categories == ("copy",)


def test_a_column_that_names_every_row_is_no_series(tmp_path):
    columns = {"trade": [f"n{i}" for i in range(18)]} | panel()

    assert infer(tmp_path, columns, target=("sales",)).roles.series == ("shop",)


def test_columns_that_together_name_every_row_are_no_series(tmp_path):
    columns = {
        "t": times(3, repeat=6),
        "a": [f"a{i // 3}" for i in range(18)],
        "b": [f"b{i % 5}" for i in range(18)],
        "y": np.arange(18.0),
    }
    columns["a"][1:3] = ["a1", "a1"]  # leaves repeated times, which only a nearly row-wise set would remove

    inferred = infer(tmp_path, columns, target=("y",))

    assert inferred.roles.series == ("a",)
    assert "2 rows share series and time with an earlier row" in inferred.notes[0]


def test_duplicate_rows_do_not_hide_the_series(tmp_path):
    columns = {name: list(values) + [values[0]] for name, values in panel().items()}
    columns["t"] = pa.array(times(repeat=3).to_pylist() + [times()[0].as_py()], pa.timestamp("us"))

    inferred = infer(tmp_path, columns, target=("sales",))

    assert inferred.roles.series == ("shop",)
    assert inferred.notes == (
        "1 rows share series and time with an earlier row, whichever columns name the series; "
        "data.duplicates decides what happens to them",
    )


def test_given_series_are_taken_without_a_search(tmp_path, monkeypatch):
    def refuse(self, name):
        raise AssertionError("read the time column")

    monkeypatch.setattr(ParquetSource, "read_time", refuse)

    assert infer(tmp_path, panel(), target=("sales",), series=()).roles.series == ()
    assert infer(tmp_path, panel(), target=("sales",), series=("shop",)).roles.series == ("shop",)


def test_candidates_beyond_the_limit_are_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(infer_series, "_MOST_CANDIDATES", 1)

    inferred = infer(tmp_path, panel(color=["red", "blue"] * 9), target=("sales",))

    assert inferred.roles.series == ("shop",)
    assert inferred.notes == ("not tried as series columns: color",)


# Other columns


def test_columns_constant_within_every_series_are_static(tmp_path):
    columns = panel(
        size=per_series([1.0, 2.0, np.nan]),
        city=per_series(["x", "y", None]),
        region_id=per_series([7, 8, 8]),
        half=[1.0, np.nan, 1, 1, 1, 1] + [2.0] * 12,
        color=["red", None, "red"] * 6,
        count=np.arange(18),
        up=[True, False] * 9,
    )

    roles = infer(tmp_path, columns, target=("sales",)).roles

    assert roles.static_reals == ("size",)
    assert roles.static_categories == ("city", "region_id")
    assert roles.observed_reals == ("half", "count", "up")
    assert roles.observed_categories == ("color",)
    assert roles.known_reals == roles.known_categories == ()


def test_one_series_has_no_inferred_statics(tmp_path):
    columns = {"t": times(), "y": np.arange(6.0), "x": [1.0, 1, 1, 1, 1, 2]}

    assert infer(tmp_path, columns, target=("y",)).roles.observed_reals == ("x",)


def test_columns_that_say_nothing_are_ignored_with_a_reason(tmp_path):
    columns = panel(
        one=np.ones(18),
        word=["x"] * 18,
        void=pa.array([None] * 18, pa.float64()),
        hush=pa.array([None] * 18, pa.string()),
        nothing=pa.nulls(18),
        expiry=pa.array(np.arange(18), pa.timestamp("us")),
        __index_level_0__=np.arange(18),
        raw=pa.array([bytes([200 + i]) for i in range(18)]),
        nested=[[i] for i in range(18)],
    )

    inferred = infer(tmp_path, columns, target=("sales",), time="t")

    ignored = {name: reason for name, (role, reason) in reasons(inferred).items() if role == "ignored"}
    assert ignored == {
        "one": "constant",
        "word": "constant",
        "void": "holds no value",
        "hush": "holds no value",
        "nothing": "it holds no value",
        "expiry": "times other than the time column are no input",
        "__index_level_0__": "row numbers of pandas",
        "raw": "holds bytes that are not UTF-8",
        "nested": f"type {inferred.reasons[-1].type} is neither numbers, texts nor times",
    }
    assert inferred.notes == (
        f"columns that cannot be used are ignored: nothing (null), nested ({inferred.reasons[-1].type})",
    )


def test_a_time_as_pandas_index_is_the_time(tmp_path):
    columns = {"y": np.arange(6.0), "__index_level_0__": times()}

    assert infer(tmp_path, columns, target=("y",)).roles.time == "__index_level_0__"


def test_too_many_categories_are_ignored_unless_static(tmp_path):
    count = 1100
    columns = {
        "t": times(2, repeat=count),
        "shop": np.repeat([f"s{i}" for i in range(count)], 2).tolist(),
        "street": np.repeat([f"r{i}" for i in range(count)], 2).tolist(),
        "ticket": [f"k{i // 2}" if i else "first" for i in range(2 * count)],
        "receipt": [f"q{i}" for i in range(2 * count)],
        "y": np.arange(2.0 * count),
    }

    inferred = infer(tmp_path, columns, target=("y",))

    assert inferred.roles.series == ("shop",)
    assert inferred.roles.static_categories == ("street",)
    assert reasons(inferred)["ticket"] == ("ignored", "more than 1000 different values")
    assert reasons(inferred)["receipt"] == ("ignored", "more than 1000 different values")


def test_blocks_of_columns_make_no_difference(tmp_path, monkeypatch):
    columns = panel(**{f"x{i}": np.arange(18) % (i + 2) for i in range(5)})
    whole = infer(tmp_path, columns, target=("sales",))
    monkeypatch.setattr("ds_tft.data.infer_columns._VALUES_PER_BLOCK", 40)

    assert infer(tmp_path, columns, target=("sales",)) == whole


def test_other_columns_can_be_ignored(tmp_path):
    inferred = infer(tmp_path, panel(x=np.arange(18.0)), target=("sales",), other_columns="ignore")

    assert inferred.roles.observed_reals == ()
    assert reasons(inferred)["x"] == ("ignored", "named in no role")


# Bars


def test_bars_are_read_by_the_features_and_the_close_is_the_target(tmp_path):
    inferred = infer(tmp_path, bars(x=np.arange(6.0)), features="ohlcv")

    assert inferred.roles.target == ("close",)
    assert inferred.roles.observed_reals == ()
    assert reasons(inferred) == {
        "t": ("time", "the only column of times"),
        "open": ("bars", "bars"),
        "high": ("bars", "bars"),
        "low": ("bars", "bars"),
        "close": ("target", "close of the bars"),
        "volume": ("bars", "bars"),
        "x": ("ignored", "named in no role"),
    }


def test_other_columns_beside_bars_can_be_inferred(tmp_path):
    inferred = infer(tmp_path, bars(x=np.arange(6.0)), features="ohlcv", other_columns="infer")

    assert inferred.roles.observed_reals == ("x",)


def test_bars_can_also_be_inputs_as_they_are(tmp_path):
    inferred = infer(tmp_path, bars(), features="ohlcv", target=("high",), observed_reals=("open", "close"))

    assert inferred.roles.target == ("high",)
    assert inferred.roles.observed_reals == ("open", "close")
    assert reasons(inferred)["open"] == ("observed_reals", "given")


def test_bars_under_other_names(tmp_path):
    columns = {
        ("Close" if name == "close" else name): values for name, values in bars().items() if name != "volume"
    }

    with pytest.raises(DataError, match=r"data.bars.close: no column 'close' in .*; did you mean 'Close'\?"):
        infer(tmp_path, columns, features="ohlcv")
    inferred = infer(tmp_path, columns, features="ohlcv", bars=BarColumns(close="Close", volume=None))
    assert inferred.roles.target == ("Close",)


def test_missing_volume_says_how_to_go_without(tmp_path):
    columns = bars()
    del columns["volume"]

    with pytest.raises(
        DataError, match="data.bars.volume: no column 'volume' .* set data.bars.volume to null for the"
    ):
        infer(tmp_path, columns, features="ohlcv")


def test_bars_must_be_numbers_and_not_ignored(tmp_path):
    with pytest.raises(DataError, match="data.bars.low: column 'low' does not hold numbers, got type string"):
        infer(tmp_path, bars(low=["x"] * 6), features="ohlcv")
    with pytest.raises(
        DataError, match="data.ignored: features 'ohlcv' reads column 'low'; name it in one place"
    ):
        infer(tmp_path, bars(), features="ohlcv", ignored=("low",))


def test_a_close_in_another_role_needs_a_named_target(tmp_path):
    with pytest.raises(
        DataError, match="data.target: the close of the bars, 'close', .* in data.observed_reals; name a"
    ):
        infer(tmp_path, bars(), features="ohlcv", observed_reals=("close",))


def test_market_data_given_as_known_is_flagged(tmp_path):
    inferred = infer(
        tmp_path,
        bars(lowland=np.arange(6.0)),
        target=("open",),
        known_reals=("close", "lowland"),
        known_categories=(),
    )

    assert inferred.notes == (
        "given as known for the horizon, which is leakage unless they truly are known in advance: close",
    )


# Printing


def test_the_table_shows_types_as_they_are(tmp_path):
    inferred = infer(tmp_path, panel(), target=("sales",))
    console = Console(width=120, record=True, file=io.StringIO())

    console.print(roles_table(inferred))

    text = console.export_text()
    assert "timestamp[us]" in text
    for row in inferred.reasons:
        line = next(line for line in text.splitlines() if f" {row.column} " in line)
        assert row.type in line
        assert row.role in line
        assert row.reason in line
