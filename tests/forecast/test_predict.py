from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from made_model import HOUR, SHOP, Made, make_model, replaced, settings_of, shop_table, with_future

from ds_tft.errors import ConfigError, DataError
from ds_tft.forecast.evaluate import forecast
from ds_tft.forecast.time_range import TimeRange

LEVELS = ("p10", "p50", "p90")


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Made:
    return make_model(tmp_path_factory.mktemp("shop"), shop_table(), settings_of(SHOP))


def levels(table: pa.Table) -> np.ndarray:
    """(R, Q) forecasts."""
    return np.stack([table[name].to_numpy() for name in LEVELS], axis=1)


def at(row: int) -> str:
    """Time of a row of each shop, as a user writes it."""
    return str(np.datetime64("2024-01-01T00:00:00") + row * HOUR)


def only(row: int) -> TimeRange:
    return TimeRange(at(row), at(row))


def test_default_is_one_window_per_series_behind_its_last_target(shop):
    table = shop.predict(with_future(shop_table(), 4, holiday=[None, "fair", None, None]))
    assert table.column_names == ["shop", "origin_time", "target_time", "step", *LEVELS, "actual"]
    assert table["shop"].to_pylist() == ["A"] * 4 + ["B"] * 4 + ["C"] * 4
    assert table["step"].to_pylist() == [1, 2, 3, 4] * 3
    last = dt.datetime(2024, 1, 1) + dt.timedelta(hours=119)
    assert set(table["origin_time"].to_pylist()) == {last}
    assert table["target_time"].to_pylist() == [last + dt.timedelta(hours=k) for k in (1, 2, 3, 4)] * 3
    assert table["actual"].null_count == 12
    assert (np.diff(levels(table)) >= 0).all()
    assert abs(levels(table)[:4].mean() - 50) < abs(levels(table)[8:].mean() - 50), "not in original units"


def test_equals_in_process_forecasts_of_test_windows(shop):
    windows = shop.data.windows["test"]
    origins = shop.data.table.times[windows.origins]
    expected = np.sort(forecast(shop.model, shop.builder, windows, np.arange(len(windows))).copy())
    first, last = (str(time) for time in (origins.min().astype("M8[us]"), origins.max().astype("M8[us]")))
    table = shop.predict(origins=TimeRange(first, last), batch_size=len(windows))
    np.testing.assert_array_equal(levels(table), expected.reshape(-1, 3))
    labels = shop.data.table.targets[windows.origins[:, None] + np.arange(1, 5)]
    np.testing.assert_array_equal(table["actual"].to_numpy(), labels.reshape(-1))


@pytest.mark.parametrize("batch_size", [7, 64])
def test_batch_composition_does_not_matter(shop, batch_size):
    span = TimeRange(at(2), at(14))  # short histories are padded
    alone = levels(shop.predict(origins=span, batch_size=1))
    together = levels(shop.predict(origins=span, batch_size=batch_size))
    assert len(alone) == 3 * 13 * 4
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def corrupted(table: pa.Table, behind: int, columns: dict[str, float | str]) -> pa.Table:
    """Other values in every row behind row `behind` of each shop."""
    later = table["when"].to_numpy() > np.datetime64(at(behind))
    for name, value in columns.items():
        values = table[name].to_pylist()
        values = [value if is_later else old for old, is_later in zip(values, later, strict=True)]
        table = replaced(table, name, pa.array(values, table.schema.field(name).type))
    return table


@pytest.mark.parametrize("anchor", ["none", "last", "mean"])
def test_nothing_after_the_origin_matters_but_known_inputs(tmp_path, anchor):
    settings = settings_of(SHOP, scaling={"target": {"anchor": anchor}, "reals": "robust"})
    made = make_model(tmp_path, shop_table(), settings)
    clean = made.predict(origins=only(60))
    other = corrupted(shop_table(), 60, {"sales": 1e6, "weather": -1e6})
    np.testing.assert_array_equal(levels(made.predict(other, origins=only(60))), levels(clean))
    nothing = corrupted(shop_table(), 60, {"sales": None, "weather": None})
    np.testing.assert_array_equal(levels(made.predict(nothing, origins=only(60))), levels(clean))
    np.testing.assert_array_equal(levels(made.predict(nothing)), levels(clean))
    known = corrupted(shop_table(), 60, {"promo": 9.0})
    assert (levels(made.predict(known, origins=only(60))) != levels(clean)).any()


def bars_table(rows: int = 200) -> pa.Table:
    rng = np.random.default_rng(0)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, rows)))
    return pa.table(
        {
            "when": np.datetime64("2024-01-01T00:00:00", "us") + np.arange(rows) * HOUR,
            "open": close * 1.001,
            "high": close * 1.01,
            "low": close * 0.99,
            "close": close,
            "volume": rng.integers(1, 100, rows).astype(float),
        }
    )


BARS = {
    "data": {"features": "ohlcv"},
    "window": {"encoder_length": 12, "horizon": 3},
    "model": {"hidden_size": 8, "num_heads": 2},
}


def test_indicators_of_bars_look_back_only(tmp_path):
    made = make_model(tmp_path, bars_table(), settings_of(BARS))
    clean = made.predict(origins=only(150))
    other = bars_table()
    for name in ("open", "high", "low", "close", "volume"):
        values = other[name].to_numpy().copy()
        values[151:] = 7.0
        other = replaced(other, name, values)
    np.testing.assert_array_equal(levels(made.predict(other, origins=only(150))), levels(clean))
    ended = other.slice(0, 151)
    np.testing.assert_array_equal(levels(made.predict(ended)), levels(clean))
    assert clean["series"].to_pylist() == ["all"] * 3


def test_later_known_inputs_do_not_change_earlier_steps(shop):
    holiday = [None] * 4
    before = levels(shop.predict(with_future(shop_table(), 4, holiday=holiday))).reshape(3, 4, 3)
    changed = with_future(shop_table(), 4, holiday=holiday, promo=[0.5, 0.5, -3.0, 0.5])
    after = levels(shop.predict(changed)).reshape(3, 4, 3)
    np.testing.assert_array_equal(after[:, :2], before[:, :2])
    assert (after[:, 2:] != before[:, 2:]).any(axis=(1, 2)).all()


def test_known_categories_of_the_horizon_are_the_users(shop):
    fair, none, mixed = (
        levels(shop.predict(with_future(shop_table(), 4, holiday=holiday))).reshape(3, 4, 3)
        for holiday in (["fair"] * 4, [None] * 4, ["fair", None, None, None])
    )
    assert (fair != none).any(axis=(1, 2)).all()
    np.testing.assert_array_equal(mixed[:, 0], fair[:, 0])
    assert (mixed[:, 1:] != fair[:, 1:]).any(axis=(1, 2)).all(), "null was taken for the category before it"


@pytest.mark.parametrize(
    ("hours", "promo", "column", "row"),
    [(0, None, "promo", 120), (2, None, "promo", 122), (4, [1.0, 1.0, None, 1.0], "promo", 122)],
)
def test_a_missing_known_input_names_column_series_and_time(shop, hours, promo, column, row):
    table = shop_table()
    if hours:
        table = with_future(table, hours, **({} if promo is None else {"promo": promo}))
    with pytest.raises(
        DataError,
        match=rf"column '{column}', series 'A' at {at(row)}: .*; give rows for the horizon, 4 after",
    ):
        shop.predict(table)


def test_one_series_without_known_inputs_is_an_error_not_a_gap(shop):
    others = with_future(shop_table(series=("A", "B")), 4, holiday=[None] * 4)
    with pytest.raises(DataError, match=f"column 'promo', series 'C' at {at(120)}"):
        shop.predict(pa.concat_tables([others, shop_table(series=("C",))]))


def test_a_row_for_a_known_category_alone_must_be_there(tmp_path):
    settings = settings_of(SHOP, data={"known_reals": [], "observed_reals": ["weather", "promo"]})
    made = make_model(tmp_path, shop_table(), settings)
    with pytest.raises(DataError, match=f"column 'holiday', series 'A' at {at(120)}"):
        made.predict()
    # A null in a row that is there is a value: most hours are no holiday.
    assert made.predict(with_future(shop_table(), 4, holiday=[None] * 4)).num_rows == 12


def test_calendar_alone_needs_no_rows_for_the_horizon(tmp_path):
    settings = settings_of(SHOP, data={"known_reals": [], "known_categories": [], "other_columns": "ignore"})
    made = make_model(tmp_path, shop_table(), settings)
    assert made.predict().num_rows == 12


def test_a_range_leaves_out_and_counts_windows_without_known_inputs(shop):
    path, words = shop.predict_to(origins=TimeRange(at(110)))
    table = pq.read_table(path)
    assert table["origin_time"].to_numpy().max() == np.datetime64(at(115))
    assert table.num_rows == 3 * 6 * 4
    assert table["actual"].null_count == 0
    assert "windows not used: 12, known inputs without a value: column 'promo', series 'A'" in words
    with pytest.raises(DataError, match="give rows for the horizon"):
        shop.predict(origins=TimeRange(at(117)))


def test_labels_are_shown_where_known(shop):
    table = shop_table()
    sales = [None if row % 120 == 118 else value for row, value in enumerate(table["sales"].to_pylist())]
    result = shop.predict(replaced(table, "sales", pa.array(sales)), origins=only(115))
    assert result["actual"].to_pylist()[:4] == [*sales[116:118], None, sales[119]]


def test_stride_counts_from_the_first_origin_of_each_series(shop):
    table = shop.predict(origins=TimeRange(at(50), at(60)), stride=4)
    assert sorted(set(table["origin_time"].to_pylist())) == [
        dt.datetime(2024, 1, 3, 2) + dt.timedelta(hours=k) for k in (0, 4, 8)
    ]


def test_columns_are_found_by_name(shop):
    table = shop_table()
    span = only(60)
    mixed = table.select(table.column_names[::-1]).append_column("more", pa.array(range(table.num_rows)))
    rng = np.random.default_rng(0)
    mixed = mixed.take(rng.permutation(mixed.num_rows))
    assert shop.predict(mixed, origins=span).equals(shop.predict(origins=span))
    # Weights of rows matter to learning alone.
    assert shop.predict(table.drop_columns("weight"), origins=span).equals(shop.predict(origins=span))


@pytest.mark.parametrize(
    ("column", "role"),
    [("when", "time"), ("shop", "series"), ("sales", "target"), ("promo", "known_reals"),
     ("weather", "observed_reals"), ("size", "static_reals")],
)  # fmt: skip
def test_a_missing_column_is_named_with_its_role(shop, column, role):
    with pytest.raises(DataError, match=rf"no column '{column}', which the model was trained on as {role};"):
        shop.predict(shop_table().drop_columns(column))


def test_a_missing_bar_column_is_named(tmp_path):
    made = make_model(tmp_path, bars_table(), settings_of(BARS))
    with pytest.raises(DataError, match="no column 'volume', which the model was trained on as bars;"):
        made.predict(bars_table().drop_columns("volume"))


def test_another_kind_of_time_is_refused(shop):
    table = shop_table()
    zoned = replaced(table, "when", table["when"].cast(pa.timestamp("us", "UTC")))
    with pytest.raises(
        DataError, match="'when' holds times with a zone, the model was trained on times with"
    ):
        shop.predict(zoned)


def test_unseen_series_and_categories_are_said(shop):
    table = with_future(shop_table(series=("A", "NEW")), 4, holiday=["strike"] * 4)
    path, words = shop.predict_to(table)
    words = " ".join(words.split())
    assert pq.read_table(path)["shop"].to_pylist() == ["A"] * 4 + ["NEW"] * 4
    assert "series: 1 of 2 were not in training; they take the statistics of all of its series: NEW" in words
    assert "holiday: 1 values unseen in training, taken as unknown, 8 times: 'strike' (8)" in words


def test_short_series_are_left_out_and_named(shop):
    table = pa.concat_tables([shop_table(series=("A",)), shop_table(rows=2, series=("B",))])
    path, words = shop.predict_to(with_future(table, 4, holiday=[None] * 4))
    words = " ".join(words.split())
    assert set(pq.read_table(path)["shop"].to_pylist()) == {"A"}
    assert "windows not used: 1, history shorter than min_encoder_length" in words
    assert "series without a forecast: 1 of 2: B" in words


def test_no_window_at_all_is_an_error(shop):
    with pytest.raises(DataError, match="forecast: no window in 3 series, got 3 x history shorter"):
        shop.predict(with_future(shop_table(rows=2), 4, holiday=[None] * 4))


def test_csv_holds_the_same(shop, tmp_path):
    span = TimeRange(at(114))
    csv = pacsv.read_csv(shop.predict_to(origins=span, output=str(tmp_path / "new" / "f.CSV"))[0])
    parquet = shop.predict(origins=span)
    np.testing.assert_array_equal(levels(csv), levels(parquet))
    np.testing.assert_array_equal(csv["actual"].to_numpy(), parquet["actual"].to_numpy())
    assert csv["target_time"].cast(pa.timestamp("us")).equals(parquet["target_time"])


def test_times_keep_the_type_of_the_file(tmp_path):
    settings = settings_of(SHOP, data={"known_reals": [], "known_categories": []})
    zone = pa.timestamp("us", "Europe/Berlin")
    table = replaced(shop_table(), "when", shop_table()["when"].cast(pa.timestamp("us", "UTC")).cast(zone))
    made = make_model(tmp_path / "zoned", table, settings)
    result = made.predict(
        origins=TimeRange("2024-01-05T12:00")
    )  # a clock in Berlin, where the data ends at 0:59
    assert result.schema.field("target_time").type == zone
    assert result["origin_time"].cast(pa.timestamp("us", "UTC")).to_numpy().min() == np.datetime64(
        "2024-01-05T11:00"
    )
    settings = settings_of(SHOP, data={"known_reals": [], "known_categories": [], "calendar": "none"})
    table = replaced(shop_table(), "when", np.tile(np.arange(120, dtype=np.int32) * 2, 3))
    made = make_model(tmp_path / "index", table, settings)
    result = made.predict(origins=TimeRange("238"))
    assert result.schema.field("origin_time").type == pa.int64()
    assert result["target_time"].to_pylist() == [240, 242, 244, 246] * 3


def test_several_targets_have_a_column_that_names_them(tmp_path):
    settings = settings_of(
        SHOP, data={"target": ["sales", "weather"], "observed_reals": [], "known_categories": []}
    )
    made = make_model(tmp_path, shop_table(), settings)
    table = made.predict(origins=only(100))
    assert table.column_names == ["shop", "origin_time", "target_time", "step", "target", *LEVELS, "actual"]
    assert table["target"].to_pylist() == ["sales", "weather"] * 12
    assert table["step"].to_pylist()[:8] == [1, 1, 2, 2, 3, 3, 4, 4]
    data = shop_table()
    assert table["actual"].to_pylist()[:4] == [
        data[name][row].as_py() for row in (101, 102) for name in ("sales", "weather")
    ]


def test_an_id_column_that_clashes_with_the_result_is_renamed(tmp_path):
    table = shop_table().rename_columns(
        ["when", "step", "sales", "promo", "holiday", "weather", "size", "weight"]
    )
    made = make_model(tmp_path, table, settings_of(SHOP, data={"series": ["step"]}))
    result = made.predict(origins=only(100))
    assert result.column_names[0] == "series_step"
    assert set(result["series_step"].to_pylist()) == {"A", "B", "C"}


def test_summary_says_what_was_done(shop):
    path, words = shop.predict_to(origins=TimeRange(at(100), at(110)))
    assert path == shop.folder / "forecasts.parquet"
    for part in (
        f"{shop.folder}: step 7, validation loss 0.2500 in scaled units",
        "P10, P50, P90 of sales, 4 steps ahead",
        "360 rows, 3 series",
        "33 in 3 series, origins from 2024-01-05T04:00:00 to 2024-01-05T14:00:00",
        f"written: 132 rows to {path}",
    ):
        assert part in " ".join(words.split()), words
    rows = [line for line in words.splitlines() if line.startswith("| A ")]
    assert len(rows) == 6
    assert rows[0].split("|")[2].strip() == "2024-01-05T04:00"


def test_crossings_are_counted(shop):
    windows = shop.data.windows["test"]
    raw = forecast(shop.model, shop.builder, windows, np.arange(len(windows)))
    wrong = int((np.diff(raw) < 0).sum())
    assert wrong, "the model of the test should be wrong somewhere"
    origins = shop.data.table.times[windows.origins].astype("M8[us]")
    _, words = shop.predict_to(origins=TimeRange(str(origins.min()), str(origins.max())))
    assert f"quantiles: {wrong:,} neighbouring levels out of order, put in order" in words


def test_an_export_folder_anywhere_is_enough(shop, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (shop.folder / "export").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    copied = Made(folder, shop.file, shop.model, shop.data, shop.description)
    path, _ = copied.predict_to(origins=only(60))
    assert path == folder / "forecasts.parquet"
    assert pq.read_table(path).equals(shop.predict(origins=only(60)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "--batch-size: must be 1 or more, got 0"),
        ({"stride": 0, "origins": only(60)}, "--stride: must be 1 or more, got 0"),
        ({"stride": 2}, "--stride: thins out a range of origins, got 2 without --from or --to"),
        (
            {"output": "x.xlsx"},
            r"--output: the suffix decides the format, got 'x.xlsx'; end it in .parquet or",
        ),
        ({"origins": TimeRange(at(9), at(8))}, "--from: lies after --to, got 2024-01-01T09:00:00 to"),
        ({"origins": TimeRange("soon")}, "--from: not a date, got 'soon'"),
        ({"origins": TimeRange(None, "2024-01-02T00:00Z")}, "--to: the time column has no zone"),
    ],
)
def test_arguments_that_cannot_be_carried_out(shop, arguments, message):
    with pytest.raises(ConfigError, match=message):
        shop.predict(**arguments)


@pytest.mark.parametrize(
    "origins", [TimeRange("2030-01-01"), TimeRange(None, "2020-01-01"), TimeRange("2030-01-01", "2031-01-01")]
)
def test_a_range_without_data_says_where_the_data_is(shop, origins):
    with pytest.raises(
        DataError,
        match="no row with a target in that time, .*from 2024-01-01T00:00:00 to 2024-01-05T23:00:00",
    ):
        shop.predict(origins=origins)


def test_output_that_cannot_be_written(shop, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.csv").mkdir()
    for output, message in (
        (tmp_path / "file" / "f.csv", "cannot make the folder"),
        (tmp_path / "folder.csv", "is a folder"),
        (shop.file, "is the input itself"),
    ):
        with pytest.raises(ConfigError, match=f"--output: .*{message}"):
            shop.predict(output=str(output), origins=only(60))


def test_output_among_the_shards_of_the_input_is_refused(shop, tmp_path):
    pq.write_table(shop_table(), tmp_path / "part-0.parquet")
    for given in (tmp_path, tmp_path / "*.parquet"):
        with pytest.raises(ConfigError, match="f.parquet' would be read as data of the input"):
            shop.predict(given, output=str(tmp_path / "f.parquet"))
    assert [path.name for path in tmp_path.iterdir()] == ["part-0.parquet"]


def test_model_or_file_that_is_not_there(shop, tmp_path):
    with pytest.raises(ConfigError, match="no exported model, looked for"):
        Made(tmp_path, shop.file, shop.model, shop.data, shop.description).predict()
    with pytest.raises(DataError, match="no such file or folder"):
        shop.predict(tmp_path / "none.parquet")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        shop.predict(Path(__file__))
