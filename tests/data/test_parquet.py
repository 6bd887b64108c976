from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ds_tft.data import parquet_files
from ds_tft.data.column_types import ColumnKind
from ds_tft.data.columns import MissingCount
from ds_tft.data.parquet import open_source
from ds_tft.data.schema import TimeKind
from ds_tft.errors import DataError


def write(path, columns, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, path, **options)
    return str(path)


def reals(source, name):
    return source.read_reals([name]).values[name].tolist()


def texts(source, name):
    column = source.read_categories([name])[name]
    return [None if code < 0 else column.values[code] for code in column.codes]


# Finding files


def test_a_file_has_its_columns_in_file_order(tmp_path):
    path = write(tmp_path / "a.parquet", {"z": [1.0], "b": ["x"], "a": pa.array([0], pa.timestamp("us"))})

    source = open_source(path)

    assert (source.files, source.num_rows, source.notes) == ((path,), 1, ())
    assert {name: info.kind for name, info in source.columns.items()} == {
        "z": ColumnKind.REAL,
        "b": ColumnKind.CATEGORY,
        "a": ColumnKind.TIME,
    }
    assert list(source.columns) == ["z", "b", "a"]


def test_a_folder_is_read_with_its_subfolders_in_sorted_order(tmp_path):
    write(tmp_path / "b" / "2.parquet", {"x": [3.0]})
    write(tmp_path / "b" / "1.parquet", {"x": [2.0]})
    write(tmp_path / "a.parquet", {"x": [1.0]})
    (tmp_path / "README.md").write_text("not data")

    source = open_source(str(tmp_path))

    assert reals(source, "x") == [1, 2, 3]
    assert source.notes == ()


def test_hidden_files_and_folder_columns_are_noted(tmp_path):
    write(tmp_path / "symbol=ES" / "1.parquet", {"x": [1.0]})
    write(tmp_path / "_temporary" / "2.parquet", {"x": [2.0]})
    write(tmp_path / ".3.parquet", {"x": [3.0]})

    source = open_source(str(tmp_path))

    assert reals(source, "x") == [1]
    assert source.notes == (
        "2 files under names that start with '.' or '_' are skipped",
        "folder names such as 'symbol=ES' are not read as columns",
    )


def test_a_glob_takes_the_files_that_match(tmp_path):
    for name in ("y2", "y1", "other"):
        write(tmp_path / f"{name}.parquet", {"x": [name]})

    assert texts(open_source(f"{tmp_path}/y*.parquet"), "x") == ["y1", "y2"]


def test_a_file_whose_name_looks_like_a_glob_is_a_file(tmp_path):
    path = write(tmp_path / "bars[1].parquet", {"x": [1.0]})

    assert open_source(path).files == (path,)


def test_nothing_there(tmp_path):
    with pytest.raises(DataError, match=r"nothing.parquet: no such file or folder, .*; check the path"):
        open_source(str(tmp_path / "nothing.parquet"))
    with pytest.raises(DataError, match=r"the folder holds no \*.parquet file; check the path"):
        open_source(str(tmp_path))
    with pytest.raises(DataError, match=r"--parquet-file: empty, got ''; give a file, a folder or a glob"):
        open_source("")


def test_no_rows_at_all(tmp_path):
    path = write(tmp_path / "a.parquet", {"x": pa.array([], pa.float64())})
    with pytest.raises(DataError, match=r"no rows in 1 file\(s\)"):
        open_source(path)


# Damaged files


@pytest.mark.parametrize("kind", ["empty", "text", "head", "tail"])
def test_what_is_not_parquet_is_named_in_one_line(tmp_path, kind):
    whole = Path(write(tmp_path / "whole.parquet", {"x": np.arange(1000.0)})).read_bytes()
    path = tmp_path / "bad.parquet"
    content = {"empty": b"", "text": b"time,close\n1,2\n" * 9, "head": whole[:-100], "tail": whole[-100:]}
    path.write_bytes(content[kind])

    with pytest.raises(
        DataError, match=r"bad.parquet: cannot be read as parquet, got '.*'; check that the file"
    ) as info:
        open_source(str(path))
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    "options", [{"compression": "snappy"}, {"compression": "none", "write_page_checksum": True}]
)
def test_a_damaged_page_is_an_error_that_names_the_file(tmp_path, options):
    write(tmp_path / "1.parquet", {"x": np.arange(5000.0), "y": np.arange(5000.0)}, **options)
    path = Path(write(tmp_path / "2.parquet", {"x": np.arange(5000.0), "y": np.arange(5000.0)}, **options))
    content = bytearray(path.read_bytes())
    content[600:5000] = b"\xa5" * 4400
    path.write_bytes(content)

    source = open_source(str(tmp_path))

    with pytest.raises(DataError, match="2.parquet: cannot be read as parquet, got "):
        source.read_reals(["x"])
    assert len(source.read_reals(["y"]).values["y"]) == 10_000


def test_a_file_that_changes_after_it_was_opened_is_an_error(tmp_path):
    path = write(tmp_path / "a.parquet", {"x": [1.0, 2.0]})
    source = open_source(path)

    for rows in ([1.0], [1.0, 2.0, 3.0]):
        write(tmp_path / "a.parquet", {"x": rows})
        with pytest.raises(
            DataError, match=f"damaged or changed, got {len(rows)} rows instead of 2; write it anew"
        ):
            source.read_reals(["x"])


def test_a_file_that_vanishes_after_it_was_opened_is_an_error(tmp_path):
    path = write(tmp_path / "a.parquet", {"x": [1.0]})
    source = open_source(path)
    os.remove(path)

    with pytest.raises(DataError, match="a.parquet: cannot be read as parquet, got '.*No such file"):
        source.read_reals(["x"])


# Shards


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1)])
def test_shards_with_missing_extra_and_no_rows(tmp_path, order):
    tables = {
        1: {"x": [1.0, 2.0], "gone": [5.0, 6.0], "y": [1, 2]},
        2: {"new": ["a"], "y": [3], "x": [3.0]},
        3: {"x": pa.array([], pa.float64()), "strange": pa.array([], pa.string())},
    }
    for position, number in enumerate(order):
        write(tmp_path / f"{position}_{number}.parquet", tables[number])

    source = open_source(str(tmp_path))

    expected = [1, 2, 3] if order[0] == 1 else [3, 1, 2]
    assert reals(source, "x") == expected
    assert reals(source, "y") == expected
    assert source.num_rows == 3
    assert "strange" not in source.columns
    empty = next(name for name in sorted(os.listdir(tmp_path)) if name.endswith("_3.parquet"))
    partial = "gone, new" if order[0] == 1 else "new, gone"
    assert source.notes == (
        f"files without rows are skipped: {tmp_path}/{empty}",
        f"columns that not every file has are ignored: {partial}",
    )
    with pytest.raises(
        DataError, match=r"column 'gone' cannot be used, it is missing in .*_2.parquet; mend the file"
    ):
        source.read_reals(["gone"])


def test_dictionaries_of_shards_are_joined_by_value(tmp_path):
    first = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1], pa.int8()), pa.array(["ES", "NQ"]))
    second = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["NQ", "ES"]))
    write(tmp_path / "1.parquet", {"symbol": first})
    write(tmp_path / "2.parquet", {"symbol": second})
    write(tmp_path / "3.parquet", {"symbol": pa.array(["GC", "NQ"], pa.large_string())})

    source = open_source(str(tmp_path))

    assert texts(source, "symbol") == ["ES", "NQ", "NQ", "NQ", "ES", None, "GC", "NQ"]
    assert source.read_categories(["symbol"])["symbol"].values == ("ES", "NQ", "GC")
    assert source.columns["symbol"].arrow_type == "dictionary<string> and large_string"


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (pa.array([1], pa.int32()), pa.array([2], pa.int64()), ColumnKind.REAL),
        (pa.array([1], pa.int32()), pa.array([2.0], pa.float32()), ColumnKind.REAL),
        (pa.array([1], pa.decimal128(9, 2)), pa.array([2], pa.decimal128(18, 4)), ColumnKind.REAL),
        (pa.array([1], pa.uint8()), pa.array([2], pa.decimal128(18, 4)), ColumnKind.REAL),
        (pa.array([1], pa.timestamp("s")), pa.array([2], pa.timestamp("ns")), ColumnKind.TIME),
        (pa.array([1], pa.date32()), pa.array([2], pa.timestamp("ms")), ColumnKind.TIME),
        (pa.nulls(1), pa.array([2.0]), ColumnKind.REAL),
        (pa.array(["a"]), pa.array([b"b"]), ColumnKind.CATEGORY),
    ],
)
def test_types_that_agree_become_one_column(tmp_path, first, second, kind):
    write(tmp_path / "1.parquet", {"x": first})
    write(tmp_path / "2.parquet", {"x": second})

    info = open_source(str(tmp_path)).columns["x"]

    assert (info.kind, info.reason) == (kind, None)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array(["a"]), pa.array([1.0])),
        (pa.array([True]), pa.array([1])),
        (pa.array([1], pa.timestamp("us")), pa.array([1], pa.timestamp("us", "UTC"))),
        (pa.array([1], pa.timestamp("us")), pa.array([1])),
    ],
)
def test_types_that_do_not_agree_are_an_error_when_used(tmp_path, first, second):
    write(tmp_path / "1.parquet", {"x": first, "y": [1.0]})
    write(tmp_path / "2.parquet", {"x": second, "y": [2.0]})

    source = open_source(str(tmp_path))

    assert reals(source, "y") == [1, 2]
    message = r"column 'x' cannot be used, it is .* in .*1.parquet but .* in .*2.parquet; mend the file"
    with pytest.raises(DataError, match=message):
        source.read_categories(["x"])


def test_values_join_over_shards_of_different_types(tmp_path):
    write(
        tmp_path / "1.parquet",
        {"x": pa.array([1, None], pa.int32()), "t": pa.array([1, 2], pa.timestamp("s"))},
    )
    write(
        tmp_path / "2.parquet", {"t": pa.array([3], pa.timestamp("ns")), "x": pa.array([1.0], pa.float32())}
    )

    source = open_source(str(tmp_path))

    np.testing.assert_array_equal(source.read_reals(["x"]).values["x"], [1, np.nan, 1])
    assert texts(source, "x") == ["1", None, "1"]
    time = source.read_time("t")
    assert time.times.tolist() == [10**6, 2 * 10**6, 0]
    assert time.notes == ("1 times of 't' are cut to whole microseconds",)


def test_rows_are_described_by_file(tmp_path):
    for name in ("1", "2"):
        write(tmp_path / f"{name}.parquet", {"x": [1.0, 2.0]})

    source = open_source(str(tmp_path))

    assert source.describe_row(1) == f"{tmp_path}/1.parquet row 1"
    assert source.describe_row(2) == f"{tmp_path}/2.parquet row 0"


# Columns


def test_batches_and_row_groups_join_seamlessly(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_files, "_BATCH_ROWS", 7)
    values = np.random.default_rng(0).standard_normal(100)
    names = [f"s{i % 13}" for i in range(100)]
    path = write(
        tmp_path / "a.parquet",
        {"x": values, "s": pa.array(names).dictionary_encode(), "t": np.arange(100)},
        row_group_size=40,
    )

    source = open_source(path)

    np.testing.assert_array_equal(source.read_reals(["x"]).values["x"], values)
    assert texts(source, "s") == names
    np.testing.assert_array_equal(source.read_time("t").times, np.arange(100))


def test_missing_values_are_counted_by_kind_over_batches(tmp_path):
    for name in ("1", "2"):
        write(
            tmp_path / f"{name}.parquet", {"x": [1.0, None, float("nan"), float("inf")], "y": [1, 2, 3, None]}
        )

    read = open_source(str(tmp_path)).read_reals(["y", "x"])

    assert list(read.values) == ["y", "x"]
    assert read.missing == {"x": MissingCount(2, 2, 2), "y": MissingCount(2, 0, 0)}
    np.testing.assert_array_equal(read.values["x"], [1, np.nan, np.nan, np.nan] * 2)


def test_decimals_and_large_integers_are_noted(tmp_path):
    path = write(
        tmp_path / "a.parquet",
        {"price": pa.array([1], pa.decimal128(18, 6)), "id": [2**53 + 1], "small": [2**53 - 1], "x": [1e300]},
    )

    notes = open_source(path).read_reals(["price", "id", "small", "x"]).notes

    assert notes == (
        "integers of 2**53 or more are rounded to float64 in: id",
        "decimals are read as float64 in: price",
    )


def test_ids_that_differ_in_the_last_digit_stay_two(tmp_path):
    path = write(tmp_path / "a.parquet", {"id": [2**53 + 1, 2**53, None, 2**53 + 1]})

    assert texts(open_source(path), "id") == [str(2**53 + 1), str(2**53), None, str(2**53 + 1)]


def test_reading_stops_at_too_many_categories(tmp_path):
    source = open_source(write(tmp_path / "a.parquet", {"s": ["a", "b", "c", "a"]}))

    assert source.read_category("s", 2) is None
    column = source.read_category("s", 3)
    assert column.values == ("a", "b", "c")
    assert column.codes.tolist() == [0, 1, 2, 0]


def test_names_with_dots_and_brackets(tmp_path):
    path = write(tmp_path / "a.parquet", {"a": [1.0], "a.b": [2.0], "c[0].d": [3.0], "": [4.0]})

    read = open_source(path).read_reals(["a.b", "", "a", "c[0].d"]).values

    assert {name: values.tolist() for name, values in read.items()} == {
        "a": [1],
        "a.b": [2],
        "c[0].d": [3],
        "": [4],
    }


def test_a_name_that_occurs_twice_cannot_be_used(tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["x", "x", "y"])
    source = open_source(write(tmp_path / "a.parquet", table))

    assert reals(source, "y") == [3]
    with pytest.raises(
        DataError, match="column 'x' cannot be used, its name occurs more than once in .*a.parquet"
    ):
        source.read_reals(["x"])


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (pa.array([[1]]), "type list<.*> is neither numbers, texts nor times"),
        (pa.array([{"a": 1}]), "type struct<.*> is neither"),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), "type map<.*> is neither"),
        (pa.array([1], pa.time64("us")), r"type time64\[us\] is neither"),
        (pa.array([1], pa.duration("us")), r"type duration\[us\] is neither"),
        (pa.nulls(1), "it holds no value"),
    ],
)
def test_unsupported_types_say_why(tmp_path, array, reason):
    source = open_source(write(tmp_path / "a.parquet", {"x": array, "y": [1.0]}))

    assert source.columns["x"].kind is ColumnKind.UNSUPPORTED
    for read in (source.read_categories, source.read_reals):
        with pytest.raises(
            DataError, match=f"column 'x' cannot be used, {reason}.*; mend the file or name another"
        ):
            read(["x"])
    assert reals(source, "y") == [1]


def test_a_column_of_another_kind_is_refused(tmp_path):
    source = open_source(
        write(tmp_path / "a.parquet", {"s": ["a"], "x": [1.5], "t": pa.array([0], pa.date32())})
    )

    with pytest.raises(
        DataError, match="column 's' does not hold numbers, got type string; name it in another role"
    ):
        source.read_reals(["s"])
    with pytest.raises(DataError, match="column 't' does not hold numbers, got type date32"):
        source.read_reals(["t"])
    with pytest.raises(DataError, match="column 'x' does not hold times, got type double; store timestamps"):
        source.read_time("x")
    with pytest.raises(DataError, match="no column 'price'; known: s, t, x"):
        source.read_categories(["price"])


def test_pandas_index_columns_are_columns_wherever_they_stand(tmp_path):
    table = pa.table(
        {"x": [1.0], "__index_level_0__": [7], "when": pa.array([MOMENT], pa.timestamp("ns", "UTC"))}
    )
    pandas = b'{"index_columns": ["__index_level_0__", "when"], "columns": []}'
    source = open_source(write(tmp_path / "a.parquet", table.replace_schema_metadata({b"pandas": pandas})))

    assert list(source.columns) == ["x", "__index_level_0__", "when"]
    assert reals(source, "__index_level_0__") == [7]
    assert source.read_time("when").times.tolist() == [MOMENT_US]


# Time

MOMENT = datetime(2024, 1, 31, 9, 30)
MOMENT_US = int((MOMENT - datetime(1970, 1, 1)).total_seconds()) * 10**6


def test_zones_are_reported(tmp_path):
    path = write(tmp_path / "a.parquet", {"t": pa.array([MOMENT_US], pa.timestamp("us", "America/New_York"))})

    time = open_source(path).read_time("t")

    assert (time.times.tolist(), time.kind, time.zone) == ([MOMENT_US], TimeKind.ZONED, "America/New_York")


def test_shards_of_different_zones_are_in_utc(tmp_path):
    for name, zone in (("1", "Europe/Berlin"), ("2", "Asia/Tokyo")):
        write(tmp_path / f"{name}.parquet", {"t": pa.array([MOMENT_US], pa.timestamp("us", zone))})

    time = open_source(str(tmp_path)).read_time("t")

    assert (time.times.tolist(), time.kind, time.zone) == ([MOMENT_US] * 2, TimeKind.ZONED, "UTC")


def test_texts_with_a_zone_are_in_utc(tmp_path):
    time = open_source(write(tmp_path / "a.parquet", {"t": ["2024-01-31T10:30+01:00"]})).read_time("t")

    assert (time.times.tolist(), time.kind, time.zone) == ([MOMENT_US], TimeKind.ZONED, "UTC")


def test_texts_with_and_without_a_zone_do_not_mix_over_shards(tmp_path):
    write(tmp_path / "1.parquet", {"t": ["2024-01-31T10:30"]})
    write(tmp_path / "2.parquet", {"t": ["2024-01-31T10:30Z"]})

    with pytest.raises(DataError, match="column 't' mixes times with and without a zone; store all of them"):
        open_source(str(tmp_path)).read_time("t")


def test_null_times_are_refused_with_count_and_first_row(tmp_path):
    write(tmp_path / "1.parquet", {"t": pa.array([1, 2], pa.timestamp("us"))})
    write(tmp_path / "2.parquet", {"t": pa.array([3, None, None], pa.timestamp("us"))})

    message = (
        r"column 't' is the time column but has 2 nulls, the first in .*2.parquet row 1; remove those rows"
    )
    with pytest.raises(DataError, match=message):
        open_source(str(tmp_path)).read_time("t")


def test_int96_times_are_read_in_microseconds(tmp_path):
    values = [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999), MOMENT, datetime(9999, 12, 31)]
    path = write(
        tmp_path / "a.parquet",
        {"t": pa.array(values, pa.timestamp("us"))},
        use_deprecated_int96_timestamps=True,
    )

    source = open_source(path)

    assert source.columns["t"].int96
    assert source.read_time("t").times.view("datetime64[us]").tolist() == values


def test_int96_times_that_would_wrap_are_refused(tmp_path):
    path = write(
        tmp_path / "a.parquet",
        {"t": pa.array([0, 10**13], pa.timestamp("s"))},
        use_deprecated_int96_timestamps=True,
    )

    with pytest.raises(
        DataError, match="column 't' holds a time too far from 1970, got 10000000000000 s in row 1"
    ):
        open_source(path).read_time("t")


@pytest.mark.parametrize(
    ("factor", "unit"), [(1, "seconds"), (10**3, "milliseconds"), (10**9, "nanoseconds")]
)
def test_integers_that_look_like_stamps_are_noted(tmp_path, factor, unit):
    stamps = [1_700_000_000 * factor, 1_700_000_060 * factor]
    time = open_source(write(tmp_path / "a.parquet", {"t": stamps})).read_time("t")

    assert (time.times.tolist(), time.kind) == (stamps, TimeKind.INDEX)
    assert time.notes == (f"integers of 't' look like {unit} since 1970 but are taken as steps",)


def test_plain_steps_are_not_noted(tmp_path):
    assert open_source(write(tmp_path / "a.parquet", {"t": [1, 2, 20_240_131]})).read_time("t").notes == ()


# Memory


def test_unused_columns_and_whole_row_groups_are_not_held(tmp_path):
    rows = 400_000
    noise = np.random.default_rng(0).standard_normal(rows)
    path = write(tmp_path / "a.parquet", {f"c{i}": noise + i for i in range(12)}, use_dictionary=False)
    source = open_source(path)
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()

    peaks = []
    for _, batch in source._batches(["c0", "c1"]):
        assert batch.schema.names == ["c0", "c1"]
        peaks.append(pool.bytes_allocated() - before)

    # A batch of two columns is 1 MiB, the two columns 6.1 MiB, the file 37 MiB.
    assert max(peaks) < 3 * 2**20
