"""Raw rows in order: sorted by series then time, one per series and time. Letters: N rows, M segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ds_tft.data.cleaning_report import DuplicateCounts, count_by_series
from ds_tft.data.schema import TimeKind
from ds_tft.data.times import time_text
from ds_tft.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Columns of the data before scaling, sorted by series then time."""

    times: NDArray[np.int64]  # (N,) microseconds since 1970 (UTC where zoned), or the integer time itself
    kind: TimeKind
    series: NDArray[np.int32]  # (N,) index into series_names
    series_names: tuple[str, ...]  # for messages; empty text where the file is one series
    reals: Mapping[str, NDArray[np.float64]]  # (N,) each, NaN where missing
    categories: Mapping[str, NDArray[np.int32]]  # (N,) codes each, -1 where missing
    synthetic: NDArray[np.bool_]  # (N,) True for rows put in, and for those behind a series' last target
    inserted: NDArray[np.bool_]  # (N,) True for rows put in, which the file does not have
    segments: NDArray[np.int64]  # (M, 3): series, first row, row after the last; together they cover all rows

    @property
    def num_rows(self) -> int:
        """Number of rows, synthetic ones included."""
        return len(self.times)

    def starts_series(self) -> NDArray[np.bool_]:
        """(N,) True for the first row of each series."""
        return np.diff(self.series, prepend=-1) != 0

    def place(self, row: int) -> str:
        """Where a row is, for messages: its series and time."""
        name = self.series_names[self.series[row]]
        return f"series '{name}' at {self.time_text(row)}" if name else self.time_text(row)

    def time_text(self, row: int) -> str:
        """Time of a row, for messages."""
        return time_text(int(self.times[row]), self.kind)

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Rows:
        """Returns the rows of `index`, which must leave them sorted; each series becomes one segment."""
        series = self.series[index]
        return replace(
            self,
            times=self.times[index],
            series=series,
            reals={name: values[index] for name, values in self.reals.items()},
            categories={name: codes[index] for name, codes in self.categories.items()},
            synthetic=self.synthetic[index],
            inserted=self.inserted[index],
            segments=segments_between(series, np.diff(series, prepend=-1) != 0),
        )


def sort_rows(
    *,
    times: NDArray[np.int64],
    kind: TimeKind,
    series: NDArray[np.int32],
    series_names: Sequence[str],
    reals: Mapping[str, NDArray[np.float64]],
    categories: Mapping[str, NDArray[np.int32]],
) -> tuple[Rows, int]:
    """Sorts the columns of a file by series then time; rows alike in both keep the order of the file.

    Args:
        times: (N,) int64 times.
        kind: What they are.
        series: (N,) series of each row.
        series_names: Name of each series.
        reals: (N,) numbers by column.
        categories: (N,) codes by column, -1 for null.

    Returns:
        The rows, each series one segment, and the number of rows earlier than the row of their series before
        them in the file.
    """
    by_series = np.argsort(series, kind="stable")
    in_series = np.diff(series[by_series]) == 0
    out_of_order = int((in_series & (np.diff(times[by_series]) < 0)).sum())
    order = np.lexsort((times, series))
    rows = Rows(
        times=times,
        kind=kind,
        series=series,
        series_names=tuple(series_names),
        reals=reals,
        categories=categories,
        synthetic=np.zeros(len(times), dtype=np.bool_),
        inserted=np.zeros(len(times), dtype=np.bool_),
        segments=np.empty((0, 3), dtype=np.int64),
    )
    return rows.take(order), out_of_order


def resolve_duplicates(rows: Rows, policy: Literal["error", "first", "last"]) -> tuple[Rows, DuplicateCounts]:
    """Leaves one row for each series and time.

    Args:
        rows: Sorted rows, those of one time in file order.
        policy: The setting `data.duplicates`.

    Returns:
        The rows without duplicates, and the number dropped by series.

    Raises:
        DataError: There are duplicates and the policy is `error`.
    """
    repeats = ~rows.starts_series() & (np.diff(rows.times, prepend=0) == 0)
    if policy == "error" and repeats.any():
        second = int(repeats.argmax())
        alike = (rows.series == rows.series[second]) & (rows.times == rows.times[second])
        raise DataError(
            f"{rows.place(second)}: several rows at one time, got {alike.sum()} here and {repeats.sum()} "
            "too many in all; set data.duplicates to 'first' or 'last', or check data.series"
        )
    dropped = np.append(repeats, False)[1:] if policy == "last" else repeats
    counts = DuplicateCounts(policy=policy, dropped=count_by_series(rows.series[dropped], rows.series_names))
    return (rows.take(~dropped) if dropped.any() else rows), counts


def segments_between(series: NDArray[np.int32], starts: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Makes segments (M, 3) of sorted rows, given which rows (N,) start one."""
    first = np.flatnonzero(starts)
    stop = np.append(first, len(series))[1:]
    return np.stack([series[first].astype(np.int64), first, stop], axis=1)
