"""Windows as index arithmetic: an origin row and a length of history each; no data is copied.

A window with origin t and history n reads rows t-n+1..t as history and rows t+1..t+K as labels, all within
one segment. Its split follows from its labels alone; history may reach back over a cutoff.

Letters: N rows, M segments, C possible windows, n windows, K horizon, O targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ds_tft.config.run import WindowSettings
from ds_tft.data.split import SPLITS, Split, SplitBounds
from ds_tft.data.table import Table
from ds_tft.data.times import time_text
from ds_tft.errors import DataError

Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]

TOO_SHORT = "history shorter than min_encoder_length"
UNUSABLE = "a row has missing inputs, or comes before the first target value"
NO_LABEL = "no label"
ACROSS = "labels across a cutoff or in its embargo"
OFF_STRIDE = "between strides"
NO_TARGET = "the series has no target value"
NO_HORIZON = "the segment ends within the horizon"


@dataclass(frozen=True, slots=True)
class WindowIndex:
    """Windows of one split, by series and then time."""

    origins: Rows  # (n,) last row of the history
    lengths: NDArray[np.int32]  # (n,) rows of history

    def __len__(self) -> int:
        """Number of windows."""
        return len(self.origins)

    def take(self, positions: NDArray[np.integer]) -> WindowIndex:
        """Returns the windows at the positions (n,), in their order."""
        return WindowIndex(self.origins[positions], self.lengths[positions])

    def spaced(self, count: int | None) -> WindowIndex:
        """Returns `count` evenly spaced windows, all of them if there are no more or `count` is None."""
        if count is None or count >= len(self):
            return self
        return self.take(np.arange(count) * len(self) // count)


@dataclass(frozen=True, slots=True)
class WindowReport:
    """What became of every possible window. One that is not used has one reason, the first that applies."""

    kept: dict[str, int]
    """Windows of each split."""
    dropped: dict[str, int]
    """Windows that are not used, by reason."""
    short_segments: int = 0
    """Segments with too few rows for any window."""
    series_without_windows: int = 0

    def lines(self) -> list[str]:
        """Describes the counts for the log; what did not occur is left out."""
        kept = ", ".join(f"{count} {split}" for split, count in self.kept.items())
        lines = [f"windows: {kept}"]
        lines += [f"windows not used: {count}, {reason}" for reason, count in self.dropped.items() if count]
        if self.short_segments:
            lines.append(f"segments too short for a window: {self.short_segments}")
        if self.series_without_windows:
            lines.append(f"series without a window: {self.series_without_windows}")
        return lines


def find_windows(
    table: Table, window: WindowSettings, bounds: SplitBounds, required: Sequence[Split] = SPLITS
) -> tuple[dict[Split, WindowIndex], WindowReport]:
    """Finds the windows of every split.

    A window belongs to a split if its first label is not before the start of the split's period and its last
    one is before the end. Training windows are `stride` rows apart, counted from the first possible origin of
    the segment; others `evaluation_stride`, counted from the segment's first label in the period.

    Args:
        table: The prepared data.
        window: Lengths and strides.
        bounds: The periods, embargo included.
        required: Splits that must have windows if they are on.

    Returns:
        The windows of each split (none for a split that is off), and what became of the others.

    Raises:
        DataError: A required split that is on has no window.
    """
    origins, segment = _possible_origins(table.segments, window.horizon)
    lengths, failed = _fit(table, window, origins, table.segments[segment, 1])
    labelled = np.isfinite(table.targets).any(axis=1) & ~table.synthetic & (table.weights > 0)
    failed[NO_LABEL] = ~any_ahead(labelled, origins, window.horizon)
    split_of, on_stride = _assign(table, window, bounds, origins, segment)
    failed[ACROSS] = split_of < 0
    failed[OFF_STRIDE] = ~on_stride
    fits, dropped = _count(failed)
    index = {}
    for number, split in enumerate(SPLITS):
        kept = fits & (split_of == number)
        index[split] = WindowIndex(origins[kept], lengths[kept])
    report = WindowReport(
        kept={split: len(windows) for split, windows in index.items()},
        dropped=dropped,
        short_segments=_num_short_segments(table, window),
        series_without_windows=_num_series_without(table, origins[fits]),
    )
    _check_splits(window, bounds, report, required)
    return index, report


def latest_windows(table: Table, window: WindowSettings) -> tuple[WindowIndex, WindowReport]:
    """Finds the window of each series whose history ends with the last known target.

    Args:
        table: The prepared data, with K more rows after the last known target of each series.
        window: Lengths.

    Returns:
        At most one window per series, and what became of the others.

    Raises:
        DataError: There is no window at all.
    """
    last = _last_targets(table)
    no_target = int((last < 0).sum())
    return _forecast_windows(table, window, last[last >= 0], no_target)


def windows_between(
    table: Table, window: WindowSettings, first: int, last: int, stride: int = 1
) -> tuple[WindowIndex, WindowReport]:
    """Finds the windows whose origins lie in a range of time, none after the last known target of its series.

    Args:
        table: The prepared data.
        window: Lengths.
        first: Time of the first origin.
        last: Time of the last origin, inclusive.
        stride: Rows between the origins of a series, counted from its first one in the range.

    Returns:
        The windows, and what became of the others.

    Raises:
        DataError: There is no window at all.
    """
    series = table.series_of_row
    row = np.arange(table.num_rows)
    last_target = _last_targets(table)
    inside = (table.times >= first) & (table.times <= last) & (row <= last_target[series])
    origins = np.flatnonzero(inside)
    start = np.full(len(last_target), table.num_rows)
    np.minimum.at(start, series[origins], origins)
    origins = origins[(origins - start[series[origins]]) % stride == 0]
    return _forecast_windows(table, window, origins, int((last_target < 0).sum()))


def any_ahead(flags: Flags, origins: Rows, horizon: int) -> Flags:
    """Says for each origin (n,) whether any of the K rows after it is flagged in `flags` (N,)."""
    before = np.append(0, np.cumsum(flags))
    return before[np.minimum(origins + horizon + 1, len(flags))] > before[origins + 1]


def _forecast_windows(
    table: Table, window: WindowSettings, origins: Rows, no_target: int
) -> tuple[WindowIndex, WindowReport]:
    """Keeps the origins that have enough history and a horizon."""
    segment = np.searchsorted(table.segments[:, 1], origins, side="right") - 1
    beyond = origins + window.horizon >= table.segments[segment, 2]
    lengths, failed = _fit(table, window, origins, table.segments[segment, 1])
    fits, dropped = _count({NO_HORIZON: beyond, **failed})
    report = WindowReport(
        kept={"forecast": int(fits.sum())},
        dropped={NO_TARGET: no_target, **dropped},
        series_without_windows=_num_series_without(table, origins[fits]),
    )
    if not fits.any():
        raise DataError(
            f"forecast: no window in {len(table.series_keys)} series, got {_reasons(report)}; "
            f"give at least {window.shortest_history} rows with a target before the first time to forecast"
        )
    return WindowIndex(origins[fits], lengths[fits]), report


def _possible_origins(segments: NDArray[np.int64], horizon: int) -> tuple[Rows, Rows]:
    """Every row with K more rows of its segment after it, and its segment: (C,), (C,)."""
    counts = np.maximum(segments[:, 2] - segments[:, 1] - horizon, 0)
    segment = np.repeat(np.arange(len(segments)), counts)
    before = np.cumsum(counts) - counts
    return np.arange(len(segment)) - before[segment] + segments[segment, 1], segment


def _fit(
    table: Table, window: WindowSettings, origins: Rows, first: Rows
) -> tuple[NDArray[np.int32], dict[str, Flags]]:
    """Length of the history that ends at each origin, and which windows rows forbid."""
    blocked = ~(table.usable & np.isfinite(table.history).all(axis=1))
    last_blocked = np.maximum.accumulate(np.where(blocked, np.arange(table.num_rows), -1))
    available = origins - np.maximum(first - 1, last_blocked[origins])
    failed = {
        TOO_SHORT: origins + 1 - first < window.shortest_history,
        UNUSABLE: (available < window.shortest_history) | any_ahead(~table.usable, origins, window.horizon),
    }
    return np.minimum(available, window.encoder_length).astype(np.int32), failed


def _assign(
    table: Table, window: WindowSettings, bounds: SplitBounds, origins: Rows, segment: Rows
) -> tuple[NDArray[np.int8], Flags]:
    """Number of the split that holds all labels of each window, -1 for none; whether it is on its stride."""
    split_of = np.full(len(origins), -1, dtype=np.int8)
    on_stride = np.ones(len(origins), dtype=bool)
    first_label, last_label = table.times[origins + 1], table.times[origins + window.horizon]
    for number, split in enumerate(SPLITS):
        start, end = bounds.period(split)
        inside = (first_label >= start) & (last_label < end)
        stride = window.stride if split == "train" else window.evaluation_stride
        offset = origins - _first_origins(table, window, start)[segment]
        split_of[inside] = number
        on_stride[inside] = offset[inside] % stride == 0
    return split_of, on_stride


def _first_origins(table: Table, window: WindowSettings, start: int) -> Rows:
    """First row of each segment, (M,), with enough history before it and labels from `start` on after it."""
    first = table.segments[:, 1]
    before = np.append(0, np.cumsum(table.times < start))
    num_before = before[table.segments[:, 2]] - before[first]
    return np.maximum(first + num_before - 1, first + window.shortest_history - 1)


def _count(failed: dict[str, Flags]) -> tuple[Flags, dict[str, int]]:
    """Which windows fail nothing, and how many fail each check first."""
    left = ~np.logical_or.reduce(list(failed.values()))
    seen = np.zeros_like(left)
    counts = {}
    for reason, flags in failed.items():
        counts[reason] = int((flags & ~seen).sum())
        seen |= flags
    return left, counts


def _last_targets(table: Table) -> Rows:
    """Last row of each series, (S,), with the value of any target; -1 where there is none."""
    rows = np.flatnonzero(np.isfinite(table.targets).any(axis=1))
    last = np.full(len(table.series_keys), -1)
    np.maximum.at(last, table.series_of_row[rows], rows)
    return last


def _num_short_segments(table: Table, window: WindowSettings) -> int:
    """Number of segments with too few rows for a window."""
    rows = table.segments[:, 2] - table.segments[:, 1]
    return int((rows < window.shortest_history + window.horizon).sum())


def _num_series_without(table: Table, origins: Rows) -> int:
    """Number of series that none of the origins belongs to."""
    return len(table.series_keys) - len(np.unique(table.series_of_row[origins]))


def _check_splits(
    window: WindowSettings, bounds: SplitBounds, report: WindowReport, required: Sequence[Split]
) -> None:
    """Refuses a required split that is on and has no window."""
    for split in required:
        if bounds.has(split) and not report.kept[split]:
            start, last = (time_text(t, bounds.kind) for t in (bounds.period(split)[0], bounds.last_time))
            raise DataError(
                f"split.{split}: no window has its {window.horizon} labels in the period from {start}, got "
                f"{_reasons(report)}; move the cutoffs within the data (it ends {last}), or lower "
                f"window.horizon or window.min_encoder_length ({window.shortest_history})"
            )


def _reasons(report: WindowReport) -> str:
    """Counts of windows that are not used, in one phrase."""
    counts = [f"{count} x {reason}" for reason, count in report.dropped.items() if count]
    if report.short_segments:
        counts.append(f"{report.short_segments} x a run of rows without a gap too short for a window")
    return ", ".join(counts) or "no row with enough rows after it"
