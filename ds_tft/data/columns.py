"""Arrow arrays to numpy: numbers as float64, categories as codes of texts, times as int64 microseconds.

Letters: N rows of the source, n rows of one batch.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from ds_tft.data.schema import TimeKind
from ds_tft.errors import DataError

_MICROSECONDS = {"s": 10**6, "ms": 10**3, "us": 1}
_MICROSECONDS_PER_DAY = 86_400 * 10**6
_LARGEST = 2**63 - 1
_TEXT_TIMES = (
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("ns"),
    pa.timestamp("ns", "UTC"),
)


class NotTextError(DataError):
    """Bytes that are not UTF-8 in a column read as categories."""


@dataclass(frozen=True, slots=True)
class MissingCount:
    """Rows of a real column that hold no finite number. All three kinds are read as NaN."""

    nulls: int = 0
    nans: int = 0
    infinities: int = 0

    @property
    def total(self) -> int:
        """Rows without a finite number."""
        return self.nulls + self.nans + self.infinities

    def __add__(self, other: MissingCount) -> MissingCount:
        return MissingCount(
            self.nulls + other.nulls, self.nans + other.nans, self.infinities + other.infinities
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RealColumns:
    """Numbers of some columns, in file order."""

    values: dict[str, NDArray[np.float64]]  # each (N,), NaN where missing
    missing: dict[str, MissingCount]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Codes:
    """One category column, in file order."""

    codes: NDArray[np.int32]  # (N,) index into `values`, -1 where missing
    values: tuple[str, ...]  # in order of first appearance


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeColumn:
    """The time column, in file order."""

    times: NDArray[np.int64]  # (N,) microseconds since 1970 (UTC where zoned), or the integer itself
    kind: TimeKind
    zone: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TimePart:
    """Times of one batch."""

    times: NDArray[np.int64]  # (n,) 0 where null
    kind: TimeKind
    nulls: NDArray[np.int64]  # rows of the batch that hold no time
    truncated: int = 0  # values that had a fraction of a microsecond


def to_reals(array: pa.Array) -> tuple[NDArray[np.float64], MissingCount]:
    """Converts numbers to float64 with NaN for nulls, NaN and infinities.

    Returns:
        Values (n,) and how many were missing, by kind.
    """
    plain = _decoded(array)
    nulls = plain.null_count
    if pt.is_decimal(plain.type):
        # By way of text: the direct cast is off by one unit in the last place for about one value in five.
        plain = plain.cast(pa.string())
    values = np.array(plain.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))  # (n,)
    infinite = np.isinf(values)
    nans = int(np.isnan(values).sum()) - nulls
    values[infinite] = np.nan
    return values, MissingCount(nulls, nans, int(infinite.sum()))


def to_codes(array: pa.Array, lookup: dict[str, int], where: str) -> NDArray[np.int32]:
    """Converts values to codes by their text; texts seen for the first time are added to `lookup`.

    Args:
        array: n values of any supported type.
        lookup: Code of each text seen so far.
        where: File and column, for messages.

    Returns:
        Codes (n,), -1 for nulls, NaN and infinities.

    Raises:
        NotTextError: Bytes are not UTF-8.
        DataError: A number has a fraction, or a time a fraction of a microsecond.
    """
    encoded = _decoded(array).dictionary_encode()
    texts = _texts(encoded.dictionary, where)
    codes = [-1 if text is None else lookup.setdefault(text, len(lookup)) for text in texts]
    table = np.array([*codes, -1], dtype=np.int32)
    return table[encoded.indices.fill_null(len(codes)).to_numpy()]


def to_times(array: pa.Array, where: str, first_row: int) -> TimePart:
    """Converts timestamps, dates, integers or ISO texts to int64.

    Args:
        array: n values.
        where: File and column, for messages.
        first_row: Row of the source at which the batch starts, for messages.

    Raises:
        DataError: A text is no ISO date or time, or a value does not fit into int64 microseconds.
    """
    plain = _decoded(array)
    nulls = np.flatnonzero(plain.is_null().to_numpy(zero_copy_only=False))
    if pt.is_null(plain.type):
        return TimePart(times=np.zeros(len(plain), np.int64), kind=TimeKind.INDEX, nulls=nulls)
    if pt.is_integer(plain.type) or pt.is_decimal(plain.type):
        return TimePart(times=_integers(plain, where), kind=TimeKind.INDEX, nulls=nulls)
    if not (pt.is_timestamp(plain.type) or pt.is_date(plain.type)):
        plain = _parsed(plain, where, first_row)
    times, truncated = _microseconds(plain, where, first_row)
    zoned = pt.is_timestamp(plain.type) and plain.type.tz is not None
    kind = TimeKind.ZONED if zoned else TimeKind.NAIVE
    return TimePart(times=times, kind=kind, nulls=nulls, truncated=truncated)


def _decoded(array: pa.Array) -> pa.Array:
    """The values themselves where the array is dictionary-encoded."""
    return array.cast(array.type.value_type) if isinstance(array, pa.DictionaryArray) else array


def _texts(values: pa.Array, where: str) -> list[str | None]:
    """One text for each distinct value; the same for equal values of different types."""
    if pt.is_timestamp(values.type) or pt.is_date(values.type):
        times, truncated = _microseconds(values, where, first_row=None)
        if truncated:
            raise DataError(f"{where} holds times finer than a microsecond; round them first")
        return [_time_text(text) for text in np.datetime_as_string(times.view("datetime64[us]"))]
    try:
        return [_text(value, where) for value in values.to_pylist()]
    except UnicodeDecodeError:
        raise NotTextError(f"{where} holds bytes that are not UTF-8; leave it out or store text") from None


def _text(value: object, where: str) -> str | None:
    """Text of one value, or None for a value that counts as missing."""
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    number = Decimal(value)  # type: ignore[arg-type]  # float or Decimal: exact for both
    if not number.is_finite():
        return None
    if number != number.to_integral_value():
        raise DataError(f"{where} holds a fraction, got {value}; use it as a real or store it as text")
    return str(int(number))


def _time_text(text: str) -> str:
    """ISO text without a trailing zero time of day or fraction."""
    return text.removesuffix("T00:00:00.000000").removesuffix(".000000")


def _integers(array: pa.Array, where: str) -> NDArray[np.int64]:
    """Integers as int64, 0 where null."""
    beyond = DataError(f"{where} holds integers beyond 2**62 as times; store smaller steps")
    try:
        values: NDArray[np.int64] = array.cast(pa.int64()).fill_null(0).to_numpy()
    except pa.ArrowInvalid:
        raise beyond from None
    # Half of int64 is left for times beyond the data, and for differences of times.
    if len(values) and max(-int(values.min()), int(values.max())) > _LARGEST // 2:
        raise beyond
    return values


def _microseconds(array: pa.Array, where: str, first_row: int | None) -> tuple[NDArray[np.int64], int]:
    """Microseconds since 1970, 0 where null, and how many values lost a finer fraction."""
    integers = array.cast(pa.int32()) if pt.is_date32(array.type) else array
    values = integers.cast(pa.int64()).fill_null(0).to_numpy()
    if pt.is_timestamp(array.type) and array.type.unit == "ns":
        return values // 1000, int(np.count_nonzero(values % 1000))
    unit = "ms" if pt.is_date64(array.type) else None if pt.is_date32(array.type) else array.type.unit
    factor = _MICROSECONDS_PER_DAY if unit is None else _MICROSECONDS[unit]
    limit = _LARGEST // factor
    outside = np.flatnonzero((values > limit) | (values < -limit))
    if len(outside):
        row = "" if first_row is None else f" in row {first_row + int(outside[0])}"
        got = f"{values[outside[0]]} {unit or 'days'}{row}"
        raise DataError(f"{where} holds a time too far from 1970, got {got}; correct it")
    return values * factor, 0


def _parsed(array: pa.Array, where: str, first_row: int) -> pa.Array:
    """Timestamps from ISO texts, all with a zone or all without."""
    try:
        texts = array.cast(pa.string())
    except pa.ArrowInvalid:
        raise NotTextError(f"{where} holds bytes that are not UTF-8; store timestamps") from None
    for kind in _TEXT_TIMES:
        if _parses(texts, kind):
            return texts.cast(kind)
    row = _first_bad(texts)
    value = texts.slice(row, 1).cast(pa.binary())[0].as_py().decode(errors="replace")
    alone = any(_parses(texts.slice(row, 1), kind) for kind in _TEXT_TIMES)
    wrong = "mixes times with and without a zone" if alone else "holds text that is no ISO date or time"
    raise DataError(
        f"{where} {wrong}, got {value!r} in row {first_row + row}; "
        "store timestamps, or text like '2024-01-31T09:30:00'"
    )


def _parses(texts: pa.Array, kind: pa.DataType) -> bool:
    """Whether all texts are times of this kind."""
    try:
        texts.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _first_bad(texts: pa.Array) -> int:
    """Row of the first value that does not parse as those before it do."""
    start = next(row for row in range(len(texts)) if texts[row].is_valid)
    kind = next((kind for kind in _TEXT_TIMES if _parses(texts.slice(start, 1), kind)), _TEXT_TIMES[0])
    return bisect_left(range(len(texts)), True, key=lambda last: not _parses(texts.slice(0, last + 1), kind))
