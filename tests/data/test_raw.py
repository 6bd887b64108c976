"""From a source to cleaned rows. What each policy does by itself is tested beside its own module."""

import numpy as np
import pyarrow as pa
import pytest
from datasets import ROLES, days, panel, settings_of, write

from ds_tft.data.infer import infer_roles
from ds_tft.data.parquet import open_source
from ds_tft.data.raw import behind_last_target, clean_rows, read_rows, static_codes, static_values
from ds_tft.errors import DataError


def read(folder, columns, **data):
    path = write(folder / "raw.parquet", columns)
    source, settings = open_source(path), settings_of(data=ROLES | data)
    roles = infer_roles(source, settings.data).roles
    return read_rows(source, roles, ()), roles, settings.data


def clean(folder, columns, **data):
    raw, roles, settings = read(folder, columns, **data)
    gaps = "fill" if settings.gaps == "auto" else settings.gaps
    return clean_rows(raw, roles, settings, gaps=gaps, bars=())


def shuffled(columns, seed=1):
    order = np.random.default_rng(seed).permutation(len(columns["store"]))
    table = pa.table(columns).take(pa.array(order))
    return {name: table[name].combine_chunks() for name in table.column_names}


def without(columns, rows):
    keep = np.setdiff1d(np.arange(len(columns["store"])), rows)
    table = pa.table(columns).take(pa.array(keep))
    return {name: table[name].combine_chunks() for name in table.column_names}


def test_rows_come_in_order_of_series_and_time_whatever_the_file(tmp_path):
    columns = panel(2, 20)
    straight, _, _ = read(tmp_path, columns)
    mixed, _, _ = read(tmp_path, shuffled(columns))
    assert straight.out_of_order == 0
    assert mixed.out_of_order > 0
    assert np.array_equal(straight.rows.times, mixed.rows.times)
    assert np.array_equal(straight.rows.reals["sales"], mixed.rows.reals["sales"])
    for raw in (straight, mixed):
        texts = [raw.categories["weather"][code] for code in raw.rows.categories["weather"]]
        assert texts == columns["weather"]


def test_only_columns_with_a_role_are_read(tmp_path):
    raw, _, _ = read(tmp_path, panel(2, 20))
    assert set(raw.rows.reals) == {"sales", "area", "price", "visits"}
    assert set(raw.rows.categories) == {"city", "holiday", "weather"}


def test_nan_and_infinity_are_missing_and_said_so(tmp_path):
    columns = panel(1, 20)
    columns["visits"] = columns["visits"].copy()
    columns["visits"][[3, 4]] = [np.nan, -np.inf]
    raw, _, _ = read(tmp_path, columns)
    assert np.isnan(raw.rows.reals["visits"][[3, 4]]).all()
    assert "column 'visits': 1 NaN and 1 infinite values count as missing" in raw.notes


def test_gap_rows_are_put_in_with_the_last_values_and_counted(tmp_path):
    columns = panel(1, 20)
    cleaned = clean(tmp_path, without(columns, [7, 8]))
    rows = cleaned.rows
    assert rows.num_rows == 20
    assert np.flatnonzero(rows.synthetic).tolist() == [7, 8]
    assert rows.reals["visits"][[7, 8]].tolist() == [columns["visits"][6]] * 2
    assert rows.categories["weather"][7] == rows.categories["weather"][6]
    assert np.isnan(cleaned.raw.rows.reals["sales"][[7, 8]]).all(), "what is put in is no label"
    assert cleaned.filled.indicator_columns == ()
    assert any("gaps: 1 filled with 2 rows" in line for line in cleaned.report.lines())


@pytest.mark.parametrize(
    ("gaps", "rows", "segments"), [("fill", 20, 1), ("tolerate", 18, 1), ("split", 18, 2)]
)
def test_gap_policies(tmp_path, gaps, rows, segments):
    cleaned = clean(tmp_path, without(panel(1, 20), [7, 8]), gaps=gaps)
    assert cleaned.rows.num_rows == rows
    assert len(cleaned.rows.segments) == segments


def test_gap_error_names_series_and_time(tmp_path):
    with pytest.raises(
        DataError, match=r"series 'store 0' at 2024-01-07.*2 steps of 1D are missing.*data.gaps"
    ):
        clean(tmp_path, without(panel(1, 20), [7, 8]), gaps="error")


def test_a_gap_is_one_of_its_series_only(tmp_path):
    cleaned = clean(tmp_path, without(panel(2, 20), [25]))
    assert np.flatnonzero(cleaned.rows.synthetic).tolist() == [25]
    assert cleaned.rows.series[25] == 1


def test_an_indicator_for_each_input_with_missing_values_of_its_own(tmp_path):
    columns = panel(2, 20)
    visits, price, sales = (columns[name].copy() for name in ("visits", "price", "sales"))
    visits[5], price[6], sales[[7, 39]] = np.nan, np.nan, np.nan
    cleaned = clean(tmp_path, without(columns | {"visits": visits, "price": price, "sales": sales}, [12]))
    assert set(cleaned.filled.indicator_columns) == {"visits", "price", "sales"}
    place = cleaned.filled.indicator_columns.index("visits")
    # The row put in for the gap has no value either.
    assert np.flatnonzero(cleaned.filled.indicators[:, place]).tolist() == [5, 12]
    assert cleaned.rows.reals["visits"][5] == columns["visits"][4]


def test_indicators_settled_at_training_are_kept(tmp_path):
    raw, roles, settings = read(tmp_path, panel(1, 20))
    cleaned = clean_rows(raw, roles, settings, gaps="fill", bars=(), indicator_columns=("visits",))
    assert cleaned.filled.indicator_columns == ("visits",)
    assert not cleaned.filled.indicators.any()


def test_missing_error_names_column_series_and_time(tmp_path):
    columns = panel(2, 20)
    columns["visits"] = columns["visits"].copy()
    columns["visits"][23] = np.nan
    with pytest.raises(DataError, match=r"column 'visits', series 'store 1' at 2024-01-04.*data.missing"):
        clean(tmp_path, columns, missing="error")


def test_missing_drop_forbids_the_row(tmp_path):
    columns = panel(1, 20)
    columns["price"] = columns["price"].copy()
    columns["price"][5] = np.nan
    cleaned = clean(tmp_path, columns, missing="drop")
    assert np.flatnonzero(~cleaned.filled.usable).tolist() == [5]
    assert cleaned.filled.indicator_columns == ()


def test_known_future_rows_at_the_end_are_room_to_forecast_not_missing_values(tmp_path):
    columns = panel(2, 20)
    sales, visits = columns["sales"].copy(), columns["visits"].copy()
    for last in (17, 37):
        sales[last : last + 3] = np.nan
        visits[last : last + 3] = np.nan
    future = columns | {"sales": sales, "visits": visits}
    for missing in ("error", "drop", "fill"):
        cleaned = clean(tmp_path, future, missing=missing)
        assert np.flatnonzero(cleaned.rows.synthetic).tolist() == [17, 18, 19, 37, 38, 39]
        assert cleaned.filled.usable.all()
        assert cleaned.filled.indicator_columns == ()
        assert cleaned.rows.reals["price"].tolist() == columns["price"].tolist(), "the file's own plan"


def test_a_missing_target_inside_is_a_missing_value(tmp_path):
    columns = panel(1, 20)
    columns["sales"] = columns["sales"].copy()
    columns["sales"][10] = np.nan
    cleaned = clean(tmp_path, columns)
    assert not cleaned.rows.synthetic.any()
    assert cleaned.rows.reals["sales"][10] == columns["sales"][9], "as an input: the last value"
    assert np.isnan(cleaned.raw.rows.reals["sales"][10]), "as a label: none"


def test_behind_last_target_counts_any_of_several_targets(tmp_path):
    columns = panel(1, 10)
    sales, visits = columns["sales"].copy(), columns["visits"].copy()
    sales[6:], visits[8:] = np.nan, np.nan
    raw, _, _ = read(tmp_path, columns | {"sales": sales, "visits": visits})
    assert np.flatnonzero(behind_last_target(raw.rows, ["sales", "visits"])).tolist() == [8, 9]
    assert np.flatnonzero(behind_last_target(raw.rows, ["sales"])).tolist() == [6, 7, 8, 9]


def test_a_series_without_any_target_has_nothing_behind_it(tmp_path):
    columns = panel(2, 10)
    sales = columns["sales"].copy()
    sales[10:] = np.nan
    raw, _, _ = read(tmp_path, columns | {"sales": sales})
    assert not behind_last_target(raw.rows, ["sales"]).any()


def test_statics_are_taken_once_per_series(tmp_path):
    columns = panel(3, 10)
    area, city = np.array(columns["area"]), list(columns["city"])
    area[0], city[10] = np.nan, None  # one row without a value: the others have it
    area[20:] = np.nan
    raw, _, _ = read(tmp_path, columns | {"area": area, "city": city})
    values = static_values(raw.rows, ("area",), 3)[:, 0]
    assert values[:2].tolist() == [100.0, 200.0]
    assert np.isnan(values[2])
    texts = [raw.categories["city"][code] for code in static_codes(raw.rows, ("city",), 3)[:, 0]]
    assert texts == ["Ulm", "Bonn", "Ulm"]


@pytest.mark.parametrize(
    ("name", "value", "take"), [("area", 7.0, static_values), ("city", "Rom", static_codes)]
)
def test_a_static_that_changes_is_refused_by_series(tmp_path, name, value, take):
    columns = panel(3, 10)
    changed = list(columns[name])
    changed[15] = value
    raw, _, _ = read(tmp_path, columns | {name: changed})
    with pytest.raises(
        DataError, match=rf"column '{name}': static, but got several values in series 'store 1' at"
    ):
        take(raw.rows, (name,), 3)


def test_duplicates(tmp_path):
    columns = panel(1, 20)
    doubled = {
        name: pa.concat_arrays([pa.array(values), pa.array(values)[4:5]]) for name, values in columns.items()
    }
    sales = np.append(columns["sales"], -1.0)
    doubled["sales"] = sales
    with pytest.raises(DataError, match=r"series 'store 0' at 2024-01-05.*several rows at one time.*got 2"):
        clean(tmp_path, doubled)
    assert clean(tmp_path, doubled, duplicates="first").rows.reals["sales"][4] == columns["sales"][4]
    last = clean(tmp_path, doubled, duplicates="last")
    assert last.rows.reals["sales"][4] == -1.0
    assert any("duplicates: 1 rows dropped" in line for line in last.report.lines())


def test_future_rows_are_added_behind_each_series(tmp_path):
    raw, roles, settings = read(tmp_path, panel(2, 10))
    cleaned = clean_rows(raw, roles, settings, gaps="fill", bars=(), future_steps=3)
    assert cleaned.rows.num_rows == 26
    assert np.flatnonzero(cleaned.rows.inserted).tolist() == [10, 11, 12, 23, 24, 25]
    expected = days(13).to_numpy(zero_copy_only=False).astype("datetime64[us]").astype(np.int64)
    assert cleaned.rows.times[:13].tolist() == expected.tolist()
