from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_tft.data.columns import MissingCount, NotTextError, to_codes, to_reals, to_times
from ds_tft.data.schema import TimeKind
from ds_tft.errors import DataError

WHERE = "bars.parquet: column 'x'"
SECOND = 10**6


def texts(array):
    lookup = {}
    codes = to_codes(array, lookup, WHERE)
    names = list(lookup)
    return [None if code < 0 else names[code] for code in codes]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, None, 3], pa.int8()),
        pa.array([1, None, 3], pa.uint64()),
        pa.array([1, None, 3], pa.float16()),
        pa.array([1, None, 3], pa.float32()),
        pa.array([1, None, 3], pa.int64()).dictionary_encode(),
        pa.array([Decimal(1), None, Decimal(3)], pa.decimal128(20, 4)),
        pa.array([Decimal(1), None, Decimal(3)], pa.decimal256(50, 0)),
    ],
    ids=lambda array: str(array.type),
)
def test_every_numeric_type_becomes_float64(array):
    values, count = to_reals(array)

    assert values.dtype == np.float64
    np.testing.assert_array_equal(values, [1, np.nan, 3])
    assert count == MissingCount(nulls=1)


def test_booleans_are_zero_and_one():
    np.testing.assert_array_equal(to_reals(pa.array([True, False, None]))[0], [1, 0, np.nan])


def test_a_shard_without_any_value_reads_as_missing():
    values, count = to_reals(pa.nulls(2))

    assert np.isnan(values).all()
    assert count == MissingCount(nulls=2)


def test_nulls_nan_and_infinities_are_counted_apart_and_all_become_nan():
    values, count = to_reals(pa.array([1.0, None, np.nan, np.nan, np.inf, -np.inf, np.inf]))

    np.testing.assert_array_equal(values, [1.0] + [np.nan] * 6)
    assert count == MissingCount(nulls=1, nans=2, infinities=3)
    assert count.total == 6
    assert count + count == MissingCount(2, 4, 6)


@given(st.lists(st.decimals(-(10**9), 10**9, places=6), min_size=1))
def test_decimals_equal_the_floats_of_the_same_digits(decimals):
    values, _ = to_reals(pa.array(decimals, pa.decimal128(18, 6)))

    assert values.tolist() == [float(value) for value in decimals]


def test_codes_follow_first_appearance_not_the_dictionary():
    array = pa.DictionaryArray.from_arrays(pa.array([2, 0, None, 2]), pa.array(["b", "unused", "a"]))
    lookup = {}

    codes = to_codes(array, lookup, WHERE)

    assert codes.dtype == np.int32
    assert codes.tolist() == [0, 1, -1, 0]
    assert list(lookup) == ["a", "b"]


def test_codes_go_on_from_the_texts_seen_before():
    lookup = {}
    to_codes(pa.array(["ES", "NQ"]), lookup, WHERE)

    assert to_codes(pa.array(["GC", "NQ", "ES"]), lookup, WHERE).tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([2**53 + 1, None, 2**53]), ["9007199254740993", None, "9007199254740992"]),
        (pa.array([2**64 - 1], pa.uint64()), ["18446744073709551615"]),
        (pa.array([Decimal(10**25 + 1)], pa.decimal128(30, 0)), [str(10**25 + 1)]),
        (pa.array([Decimal("7.00")], pa.decimal128(8, 2)), ["7"]),
        (pa.array([True, None, False]), ["true", None, "false"]),
        (pa.array([1.0, np.nan, None, np.inf, -0.0]), ["1", None, None, None, "0"]),
        (pa.array([3.0], pa.float16()), ["3"]),
        (pa.array(["a", ""], pa.large_string()), ["a", ""]),
        (pa.array(["a"], pa.string_view()), ["a"]),
        (pa.array(["Zürich".encode()], pa.binary()), ["Zürich"]),
        (pa.array([b"ab"], pa.binary(2)), ["ab"]),
        (pa.array([date(2024, 1, 31)], pa.date32()), ["2024-01-31"]),
        (pa.array([date(2024, 1, 31)], pa.date64()), ["2024-01-31"]),
        (pa.array([datetime(2024, 1, 31)], pa.timestamp("ns")), ["2024-01-31"]),
        (pa.array([datetime(2024, 1, 31, 9, 30)], pa.timestamp("s")), ["2024-01-31T09:30:00"]),
        (pa.nulls(2), [None, None]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_category_texts(array, expected):
    assert texts(array) == expected


def test_a_fraction_is_no_category():
    with pytest.raises(DataError, match=r"column 'x' holds a fraction, got 1.5; use it as a real"):
        to_codes(pa.array([1.0, 1.5]), {}, WHERE)
    with pytest.raises(DataError, match=r"holds a fraction, got 1.50"):
        to_codes(pa.array([Decimal("1.50")]), {}, WHERE)


def test_times_finer_than_a_microsecond_are_no_category():
    with pytest.raises(DataError, match="finer than a microsecond; round them"):
        to_codes(pa.array([1], pa.timestamp("ns")), {}, WHERE)


def test_bytes_that_are_no_text_are_no_category():
    broken = pa.array([b"\xff\xfe"])
    with pytest.raises(NotTextError, match="holds bytes that are not UTF-8; leave it out"):
        to_codes(broken, {}, WHERE)
    with pytest.raises(NotTextError, match="holds bytes that are not UTF-8"):
        to_codes(pa.StringArray.from_buffers(1, *broken.buffers()[1:]), {}, WHERE)


MOMENT = datetime(2024, 1, 31, 9, 30)
MOMENT_US = int((MOMENT - datetime(1970, 1, 1)).total_seconds()) * SECOND


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize(("zone", "kind"), [(None, TimeKind.NAIVE), ("America/New_York", TimeKind.ZONED)])
def test_timestamps_of_any_unit_become_microseconds(unit, zone, kind):
    array = pa.array([MOMENT, None], pa.timestamp(unit)).cast(pa.int64()).cast(pa.timestamp(unit, zone))

    part = to_times(array, WHERE, 0)

    assert part.times.tolist() == [MOMENT_US, 0]
    assert part.kind is kind
    assert part.nulls.tolist() == [1]
    assert part.truncated == 0


def test_nanoseconds_are_cut_downwards_and_counted():
    part = to_times(pa.array([1999, -1, 2000], pa.timestamp("ns")), WHERE, 0)

    assert part.times.tolist() == [1, -1, 2]
    assert part.truncated == 2


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
def test_dates_are_their_midnight(kind):
    part = to_times(pa.array([date(1969, 12, 31), date(2024, 1, 31)], kind), WHERE, 0)

    assert part.times.tolist() == [-86_400 * SECOND, MOMENT_US - (9 * 60 + 30) * 60 * SECOND]
    assert part.kind is TimeKind.NAIVE


def test_years_outside_nanoseconds_are_exact():
    part = to_times(pa.array([date(1, 1, 1), date(9999, 12, 31)]), WHERE, 0)

    assert part.times.tolist() == [-719_162 * 86_400 * SECOND, 2_932_896 * 86_400 * SECOND]


@pytest.mark.parametrize(
    ("array", "got"),
    [
        (pa.array([0, 10**13], pa.timestamp("s")), "10000000000000 s in row 8"),
        (pa.array([0, -(10**16)], pa.timestamp("ms")), "-10000000000000000 ms in row 8"),
        (pa.array([0, 2**31 - 1], pa.int32()).cast(pa.date32()), "2147483647 days in row 8"),
    ],
    ids=["s", "ms", "days"],
)
def test_times_that_do_not_fit_are_refused_rather_than_wrapped(array, got):
    with pytest.raises(DataError, match=f"time too far from 1970, got {got}; correct it"):
        to_times(array, WHERE, 7)


def test_integers_count_steps():
    part = to_times(pa.array([5, None, 2**53 + 1], pa.uint64()), WHERE, 0)

    assert part.times.tolist() == [5, 0, 2**53 + 1]
    assert part.kind is TimeKind.INDEX
    assert part.nulls.tolist() == [1]


@pytest.mark.parametrize(
    "values", [pa.array([2**63], pa.uint64()), pa.array([0, 2**62]), pa.array([-(2**63), None])]
)
def test_integers_that_leave_no_room_for_later_times_are_refused(values):
    with pytest.raises(DataError, match=r"holds integers beyond 2\*\*62 as times; store smaller steps"):
        to_times(values, WHERE, 0)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["2024-01-31 09:30", None], TimeKind.NAIVE),
        (["2024-01-31T09:30:00.000000000", None], TimeKind.NAIVE),
        (["2024-01-31T09:30:00Z", None], TimeKind.ZONED),
        (["2024-01-31T11:30:00+02:00", "2024-01-31T09:30:00Z"], TimeKind.ZONED),
    ],
)
def test_iso_texts_are_times(values, kind):
    part = to_times(pa.array(values).dictionary_encode(), WHERE, 0)

    assert part.times[0] == MOMENT_US
    assert part.times[1] == (MOMENT_US if values[1] else 0)
    assert part.kind is kind
    assert part.nulls.tolist() == ([] if values[1] else [1])


def test_the_first_text_that_is_no_time_is_named_with_its_row():
    array = pa.array([None, "2024-01-31", "2024-02-01", "31.01.2024", "1.2.2024"])

    with pytest.raises(
        DataError, match=r"no ISO date or time, got '31.01.2024' in row 103; store timestamps"
    ):
        to_times(array, WHERE, 100)


def test_texts_with_and_without_a_zone_do_not_mix():
    with pytest.raises(
        DataError, match="mixes times with and without a zone, got '2024-01-31T10:00:00Z' in row 1"
    ):
        to_times(pa.array(["2024-01-31T09:00:00", "2024-01-31T10:00:00Z"]), WHERE, 0)


def test_bytes_that_are_no_text_are_no_time():
    with pytest.raises(NotTextError, match="not UTF-8; store timestamps"):
        to_times(pa.array([b"\xff"]), WHERE, 0)
