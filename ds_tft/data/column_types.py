"""What a parquet column can be used for, judged by its Arrow type alone, and one verdict over all shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa
import pyarrow.types as pt

_LONGEST_TYPE_TEXT = 40


class ColumnKind(StrEnum):
    """What a column is read as unless a setting says otherwise."""

    REAL = "real"
    CATEGORY = "category"
    TIME = "time"
    UNSUPPORTED = "unsupported"


class Family(StrEnum):
    """Arrow types that read as the same values. Shards may differ within a family."""

    EMPTY = "empty"  # Arrow's null type: agrees with every family
    BOOLEAN = "boolean"
    INTEGER = "integer"  # decimals without a fraction included
    FRACTION = "fraction"  # floats and decimals; agrees with INTEGER
    TEXT = "text"  # bytes included: they must decode as UTF-8
    NAIVE_TIME = "naive time"  # dates included
    ZONED_TIME = "zoned time"
    OTHER = "other"


KINDS = {
    Family.EMPTY: ColumnKind.UNSUPPORTED,
    Family.BOOLEAN: ColumnKind.REAL,
    Family.INTEGER: ColumnKind.REAL,
    Family.FRACTION: ColumnKind.REAL,
    Family.TEXT: ColumnKind.CATEGORY,
    Family.NAIVE_TIME: ColumnKind.TIME,
    Family.ZONED_TIME: ColumnKind.TIME,
    Family.OTHER: ColumnKind.UNSUPPORTED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardColumn:
    """One column of one file."""

    family: Family
    type_text: str
    zone: str | None = None
    int96: bool = False
    repeated: bool = False  # the file has several columns of this name


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnInfo:
    """One column over all files of a source."""

    name: str
    kind: ColumnKind
    family: Family
    arrow_type: str
    """Arrow type as text; several, joined by ` and `, where files differ."""
    reason: str | None = None
    """Why the column is unsupported."""
    missing_in: str | None = None
    """First file that lacks the column."""
    zone: str | None = None
    """Zone of a zoned time column; UTC where files differ."""
    int96: bool = False
    """Whether a file stores the column as INT96 timestamps."""

    def refusal(self, use: ColumnKind) -> str | None:
        """Returns why the column cannot be read as `use`, in a message's words, or None if it can."""
        if self.kind is ColumnKind.UNSUPPORTED:
            return f"column {self.name!r} cannot be used, {self.reason}; mend the file or name another column"
        got = f"got type {self.arrow_type}"
        if use is ColumnKind.REAL and self.kind is not ColumnKind.REAL:
            return f"column {self.name!r} does not hold numbers, {got}; name it in another role or convert it"
        timely = self.kind is ColumnKind.TIME or self.family in (Family.INTEGER, Family.TEXT)
        if use is ColumnKind.TIME and not timely:
            return (
                f"column {self.name!r} does not hold times, {got}; "
                "store timestamps, dates, integer steps or ISO texts"
            )
        return None


def type_text(arrow_type: pa.DataType) -> str:
    """Returns a short text for an Arrow type."""
    if isinstance(arrow_type, pa.DictionaryType):
        return f"dictionary<{type_text(arrow_type.value_type)}>"
    text = str(arrow_type)
    return text if len(text) <= _LONGEST_TYPE_TEXT else f"{text[: _LONGEST_TYPE_TEXT - 3]}..."


def family_of(arrow_type: pa.DataType) -> Family:
    """Returns the family of an Arrow type; a dictionary counts as its values."""
    if isinstance(arrow_type, pa.DictionaryType):
        return family_of(arrow_type.value_type)
    if pt.is_decimal(arrow_type):
        return Family.INTEGER if arrow_type.scale == 0 else Family.FRACTION
    if pt.is_timestamp(arrow_type):
        return Family.NAIVE_TIME if arrow_type.tz is None else Family.ZONED_TIME
    tests: tuple[tuple[Family, tuple[Callable[[pa.DataType], bool], ...]], ...] = (
        (Family.EMPTY, (pt.is_null,)),
        (Family.BOOLEAN, (pt.is_boolean,)),
        (Family.INTEGER, (pt.is_integer,)),
        (Family.FRACTION, (pt.is_floating,)),
        (Family.TEXT, (pt.is_string, pt.is_large_string, pt.is_string_view)),
        (Family.TEXT, (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)),
        (Family.NAIVE_TIME, (pt.is_date,)),
    )
    matches = (family for family, checks in tests if any(check(arrow_type) for check in checks))
    return next(matches, Family.OTHER)


def shard_column(field: pa.Field, *, int96: bool, repeated: bool) -> ShardColumn:
    """Describes one column of one file."""
    plain = field.type.value_type if isinstance(field.type, pa.DictionaryType) else field.type
    return ShardColumn(
        family=family_of(plain),
        type_text=type_text(field.type),
        zone=plain.tz if pt.is_timestamp(plain) else None,
        int96=int96,
        repeated=repeated,
    )


def merge_shards(name: str, shards: Sequence[tuple[str, ShardColumn | None]]) -> ColumnInfo:
    """Settles one column over all files.

    Args:
        name: Column name.
        shards: File and its column, or None where the file has no such column; at least one is not None.
    """
    present = [(file, column) for file, column in shards if column is not None]
    missing = next((file for file, column in shards if column is None), None)
    family = _common_family([column.family for _, column in present])
    reason = _unsupported(present, missing, family)
    zones = {column.zone for _, column in present if column.zone is not None}
    return ColumnInfo(
        name=name,
        kind=KINDS[family] if reason is None and family is not None else ColumnKind.UNSUPPORTED,
        family=family or Family.OTHER,
        arrow_type=" and ".join(dict.fromkeys(column.type_text for _, column in present)),
        reason=reason,
        missing_in=missing,
        zone=min(zones) if len(zones) == 1 else "UTC" if zones else None,
        int96=any(column.int96 for _, column in present),
    )


def _common_family(families: Sequence[Family]) -> Family | None:
    """The family all shards agree on, or None."""
    distinct = set(families) - {Family.EMPTY}
    if distinct == {Family.INTEGER, Family.FRACTION}:
        return Family.FRACTION
    if len(distinct) > 1:
        return None
    return distinct.pop() if distinct else Family.EMPTY


def _unsupported(
    present: Sequence[tuple[str, ShardColumn]], missing: str | None, family: Family | None
) -> str | None:
    """Why a column is unsupported, or None."""
    repeated = next((file for file, column in present if column.repeated), None)
    if repeated is not None:
        return f"its name occurs more than once in {repeated}"
    if missing is not None:
        return f"it is missing in {missing}"
    if family is None:
        first_file, first = next((f, c) for f, c in present if c.family is not Family.EMPTY)
        file, other = next((f, c) for f, c in present if c.family not in (first.family, Family.EMPTY))
        return f"it is {first.type_text} in {first_file} but {other.type_text} in {file}"
    if family is Family.EMPTY:
        return "it holds no value"
    if family is Family.OTHER:
        return f"type {present[0][1].type_text} is neither numbers, texts nor times"
    return None
