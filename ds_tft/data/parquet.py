"""Parquet files as one source of columns: a file, a folder of shards or a glob, matched by column name.

Values are read in batches of rows and converted at once: beside the converted columns only one batch is held.
Letters: N rows of the source, n rows of one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ds_tft.data.column_types import ColumnInfo, ColumnKind, Family, merge_shards
from ds_tft.data.columns import Codes, MissingCount, RealColumns, TimeColumn, to_codes, to_reals, to_times
from ds_tft.data.parquet_files import Shard, find_files, read_batches, read_shard
from ds_tft.data.schema import TimeKind
from ds_tft.errors import DataError, suggestion

_EXACT_INTEGERS = 2**53
# Integers from 1990 to 2100 counted in s, ms, us or ns since 1970 are taken for stamps, not steps.
_STAMP_RANGE = (631_152_000, 4_102_444_800)
_STAMP_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetSource:
    """Columns of one or several parquet files. Rows are in file order, files in sorted order."""

    path: str
    """What was opened: a file, a folder or a glob."""
    files: tuple[str, ...]
    """Files that hold rows."""
    file_rows: tuple[int, ...]
    """Rows of each file."""
    columns: dict[str, ColumnInfo]
    """By name, in the order of the first file; columns that only other files have come last."""
    notes: tuple[str, ...] = ()
    """What was skipped."""

    @property
    def num_rows(self) -> int:
        """Rows of all files."""
        return sum(self.file_rows)

    def read_reals(self, names: Sequence[str]) -> RealColumns:
        """Reads columns as float64, with NaN for nulls, NaN and infinities.

        Integers are exact up to 2**53 and decimals are correctly rounded; what exceeds that is noted.

        Raises:
            DataError: A column is absent or does not hold numbers, or a file cannot be read.
        """
        for name in names:
            self._check(name, ColumnKind.REAL)
        values = {name: np.empty(self.num_rows, np.float64) for name in names}
        missing = dict.fromkeys(names, MissingCount())
        for start, batch in self._batches(names):
            for name in names:
                part, count = to_reals(batch.column(name))
                values[name][start : start + len(part)] = part
                missing[name] += count
        return RealColumns(values=values, missing=missing, notes=self._precision_notes(values))

    def read_categories(self, names: Sequence[str]) -> dict[str, Codes]:
        """Reads columns as codes of texts, by value over all files, in order of first appearance.

        Integers become their exact digits, booleans `true` and `false`, times their ISO text.

        Raises:
            DataError: A column is absent or cannot be a category, or a file cannot be read.
        """
        for name in names:
            self._check(name, ColumnKind.CATEGORY)
        lookups: dict[str, dict[str, int]] = {name: {} for name in names}
        codes = {name: np.empty(self.num_rows, np.int32) for name in names}
        for start, batch in self._batches(names):
            for name in names:
                part = to_codes(batch.column(name), lookups[name], self._where(name))
                codes[name][start : start + len(part)] = part
        return {name: Codes(codes=codes[name], values=tuple(lookups[name])) for name in names}

    def read_category(self, name: str, max_values: int) -> Codes | None:
        """Reads one category column, or returns None as soon as it has more than `max_values` values.

        Raises:
            DataError: As `read_categories`.
        """
        self._check(name, ColumnKind.CATEGORY)
        lookup: dict[str, int] = {}
        codes = np.empty(self.num_rows, np.int32)
        for start, batch in self._batches([name]):
            part = to_codes(batch.column(name), lookup, self._where(name))
            if len(lookup) > max_values:
                return None
            codes[start : start + len(part)] = part
        return Codes(codes=codes, values=tuple(lookup))

    def read_time(self, name: str) -> TimeColumn:
        """Reads the time column: timestamps, dates, ISO texts, or integers that count steps.

        Raises:
            DataError: The column is absent, has nulls, is no time or lies too far from 1970, or a file cannot
                be read.
        """
        self._check(name, ColumnKind.TIME)
        where = self._where(name)
        times = np.empty(self.num_rows, np.int64)
        kinds, nulls, truncated = set(), [], 0
        for start, batch in self._batches([name]):
            part = to_times(batch.column(name), where, start)
            times[start : start + len(part.times)] = part.times
            kinds.add(part.kind)
            nulls.append(part.nulls + start)
            truncated += part.truncated
        self._refuse_nulls(name, np.concatenate(nulls))
        if len(kinds) > 1:
            raise DataError(f"{where} mixes times with and without a zone; store all of them in one way")
        self._refuse_wrapped(name, times)
        kind = kinds.pop()
        zone = (self.columns[name].zone or "UTC") if kind is TimeKind.ZONED else None
        return TimeColumn(times=times, kind=kind, zone=zone, notes=_time_notes(name, times, kind, truncated))

    def describe_row(self, row: int) -> str:
        """Returns where a row of the source stands, as `file row 12`, counted from 0 within the file."""
        ends = np.cumsum(self.file_rows)
        index = int(np.searchsorted(ends, row, side="right"))
        return f"{self.files[index]} row {row - int(ends[index]) + self.file_rows[index]}"

    def _check(self, name: str, use: ColumnKind) -> None:
        """Refuses a column that is absent or of another kind."""
        if name not in self.columns:
            raise DataError(f"{self.path}: no column {name!r}; {suggestion(name, self.columns)}")
        refusal = self.columns[name].refusal(use)
        if refusal is not None:
            raise DataError(f"{self.path}: {refusal}")

    def _where(self, name: str) -> str:
        """The first half of a message about a column's values."""
        return f"{self.path}: column {name!r}"

    def _batches(self, names: Sequence[str], int96_unit: str = "us") -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches of all files, each with the row of the source at which it starts."""
        start = 0
        for file, num_rows in zip(self.files, self.file_rows, strict=True):
            for batch in read_batches(file, names, num_rows, int96_unit) if names else ():
                yield start, batch
                start += batch.num_rows

    def _refuse_nulls(self, name: str, rows: NDArray[np.int64]) -> None:
        """Refuses a time column in which these rows are null."""
        if len(rows):
            raise DataError(
                f"{self._where(name)} is the time column but has {len(rows)} nulls, the first in "
                f"{self.describe_row(int(rows[0]))}; remove those rows"
            )

    def _refuse_wrapped(self, name: str, times: NDArray[np.int64]) -> None:
        """Refuses INT96 dates beyond int64 microseconds, which Arrow wraps around without a word."""
        if not self.columns[name].int96:
            return
        for start, batch in self._batches([name], int96_unit="s"):
            # Seconds cannot wrap, and those that microseconds cannot hold are refused here.
            part = to_times(batch.column(name), self._where(name), start)
            wrapped = np.flatnonzero(part.times // 10**6 != times[start : start + len(part.times)] // 10**6)
            if len(wrapped):
                row = self.describe_row(start + int(wrapped[0]))
                raise DataError(f"{self._where(name)} holds a time too far from 1970 in {row}; correct it")

    def _precision_notes(self, values: dict[str, NDArray[np.float64]]) -> tuple[str, ...]:
        """What float64 does to these columns."""
        integers = [name for name in values if self.columns[name].family is Family.INTEGER]
        large = [n for n in integers if (np.abs(values[n]) >= _EXACT_INTEGERS).any()]
        decimals = [name for name in values if "decimal" in self.columns[name].arrow_type]
        notes = []
        if large:
            notes.append(f"integers of 2**53 or more are rounded to float64 in: {', '.join(large)}")
        if decimals:
            notes.append(f"decimals are read as float64 in: {', '.join(decimals)}")
        return tuple(notes)


def open_source(path: str) -> ParquetSource:
    """Opens a parquet file, a folder of shards or a glob; reads schemas, no values.

    Columns are matched by name over all files. A column that a file lacks, or whose types do not agree, is
    kept as unsupported: it is an error only when it is used.

    Raises:
        DataError: Nothing is there, a file cannot be read, or no file holds a row.
    """
    files, notes = find_files(path)
    shards = [read_shard(file) for file in files]
    filled = [shard for shard in shards if shard.num_rows]
    if not filled:
        raise DataError(f"{path}: no rows in {len(files)} file(s); give data with rows")
    columns = _merge(filled)
    return ParquetSource(
        path=path,
        files=tuple(shard.file for shard in filled),
        file_rows=tuple(shard.num_rows for shard in filled),
        columns=columns,
        notes=notes + _shard_notes(shards, columns),
    )


def _merge(shards: Sequence[Shard]) -> dict[str, ColumnInfo]:
    """Every column that any file has."""
    names = dict.fromkeys(name for shard in shards for name in shard.columns)
    return {name: merge_shards(name, [(s.file, s.columns.get(name)) for s in shards]) for name in names}


def _shard_notes(shards: Sequence[Shard], columns: dict[str, ColumnInfo]) -> tuple[str, ...]:
    """What is passed over because files differ."""
    empty = [shard.file for shard in shards if not shard.num_rows]
    partial = [name for name, info in columns.items() if info.missing_in is not None]
    notes = []
    if empty:
        notes.append(f"files without rows are skipped: {', '.join(empty)}")
    if partial:
        notes.append(f"columns that not every file has are ignored: {', '.join(partial)}")
    return tuple(notes)


def _time_notes(name: str, times: NDArray[np.int64], kind: TimeKind, truncated: int) -> tuple[str, ...]:
    """What a reader of the time column should know."""
    notes = []
    if truncated:
        notes.append(f"{truncated} times of {name!r} are cut to whole microseconds")
    if kind is TimeKind.INDEX and len(times):
        low, high = _STAMP_RANGE
        for unit, factor in _STAMP_UNITS.items():
            if times.min() >= low * factor and times.max() < high * factor:
                notes.append(f"integers of {name!r} look like {unit} since 1970 but are taken as steps")
    return tuple(notes)
