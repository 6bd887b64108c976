import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import index_rows, micros

from ds_tft.data.rows import resolve_duplicates, segments_between, sort_rows
from ds_tft.data.schema import TimeKind
from ds_tft.errors import DataError

files = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=40)


def sort(times, series, kind=TimeKind.INDEX, names=("A", "B", "C")):
    return sort_rows(
        times=np.array(times, dtype=np.int64),
        kind=kind,
        series=np.array(series, dtype=np.int32),
        series_names=names,
        reals={"x": np.arange(len(times), dtype=np.float64)},
        categories={"c": np.arange(len(times), dtype=np.int32)},
    )


@settings(deadline=None)
@given(files)
def test_rows_are_sorted_by_series_time_and_place_in_the_file(file):
    series, times = [s for s, _ in file], [t for _, t in file]
    rows, _ = sort(times, series)
    order = sorted(range(len(file)), key=lambda i: (series[i], times[i], i))
    assert rows.reals["x"].tolist() == order
    assert rows.categories["c"].tolist() == order
    assert rows.times.tolist() == [times[i] for i in order]
    assert [tuple(s) for s in rows.segments] == [
        (code, rows.series.tolist().index(code), rows.series.tolist().index(code) + series.count(code))
        for code in sorted(set(series))
    ]


@pytest.mark.parametrize(
    ("times", "series", "count"),
    [
        ([1, 2, 3], [0, 0, 0], 0),
        ([1, 1, 2, 2], [1, 0, 1, 0], 0),  # a panel sorted by time is in order
        ([3, 1, 2], [0, 0, 0], 1),
        ([5, 4, 3], [0, 0, 0], 2),
        ([5, 1, 6], [0, 1, 0], 0),
        ([], [], 0),
    ],
)
def test_rows_out_of_order_are_counted_within_series(times, series, count):
    assert sort(times, series)[1] == count


@settings(deadline=None)
@given(files, st.sampled_from(["first", "last"]))
def test_one_row_of_each_time_is_left(file, policy):
    series, times = [s for s, _ in file], [t for _, t in file]
    rows, counts = resolve_duplicates(sort(times, series)[0], policy)
    places = {}
    for i, key in enumerate(zip(series, times, strict=True)):
        places.setdefault(key, []).append(i)
    expected = [places[key][0 if policy == "first" else -1] for key in sorted(places)]
    assert rows.reals["x"].tolist() == expected
    assert sum(counts.dropped.values()) == len(file) - len(places)
    assert (
        rows.segments[:, 1:].tolist() == segments_between(rows.series, rows.starts_series())[:, 1:].tolist()
    )


def test_dropped_duplicates_are_counted_by_series():
    _, counts = resolve_duplicates(index_rows([1, 1, 1, 2, 5, 5], [0, 0, 0, 0, 2, 2]), "last")
    assert counts.dropped == {"A": 2, "C": 1}


def test_duplicates_are_refused_with_place_and_setting():
    rows, _ = sort(micros(*["2024-05-01T03:00"] * 3, "2024-05-01T04:00"), [1] * 4, TimeKind.ZONED)
    with pytest.raises(
        DataError,
        match=r"^series 'B' at 2024-05-01T03:00:00Z: several rows at one time, got 3 here and 2 "
        r"too many in all; set data.duplicates to 'first' or 'last', or check data.series$",
    ):
        resolve_duplicates(rows, "error")


def test_equal_times_of_two_series_are_no_duplicates():
    rows, counts = resolve_duplicates(index_rows([0, 0], [0, 1]), "error")
    assert rows.num_rows == 2
    assert counts.lines() == []


def test_a_file_of_one_series_is_not_named_in_messages():
    assert index_rows([7], names=("",)).place(0) == "7"
