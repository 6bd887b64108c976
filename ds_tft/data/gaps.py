"""Steps of time without a row: filled, tolerated, or the end of a segment.

Letters: N rows, M segments, S series.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from ds_tft.data.cleaning_report import GapCounts, count_by_series
from ds_tft.data.frequency import Frequency
from ds_tft.data.rows import Rows, segments_between
from ds_tft.errors import DataError

Scalar = TypeVar("Scalar", bound=np.generic)


def close_gaps(
    rows: Rows,
    policy: Literal["fill", "tolerate", "split", "error"],
    max_gap_steps: int,
    frequency: Frequency,
) -> tuple[Rows, GapCounts]:
    """Cuts the rows into segments within which the steps of time are taken to be consecutive.

    A row off the grid counts for the step it falls into; a second row of one step follows the first.

    Args:
        rows: Sorted rows without duplicates.
        policy: `fill` puts synthetic rows (NaN, code -1) into gaps, `tolerate` takes the rows around a gap
            for neighbours, `split` ends the segment at every gap, `error` refuses gaps.
        max_gap_steps: A gap of more missing steps than this ends the segment under `fill` and `tolerate` too.
        frequency: Step of the time column.

    Returns:
        The rows with their segments, and the counts.

    Raises:
        DataError: There is a gap and the policy is `error`.
    """
    starts_series = rows.starts_series()
    to_previous = np.diff(frequency.ordinals(rows.times), prepend=0)
    to_previous[starts_series] = 1
    missing = np.maximum(to_previous - 1, 0)  # (N,) steps without a row between the row before and this one
    gaps = missing > 0
    if policy == "error" and gaps.any():
        raise _gap_error(rows, missing, frequency)
    bridged = gaps & (missing <= max_gap_steps) & (policy != "split")
    split = replace(rows, segments=segments_between(rows.series, starts_series | (gaps & ~bridged)))
    to_fill = np.where(bridged, missing, 0) if policy == "fill" else np.zeros_like(missing)
    counts = GapCounts(
        policy=policy,
        step=frequency.name,
        gaps=count_by_series(rows.series[gaps], rows.series_names),
        longest=int(missing.max(initial=0)),
        bridged=int(bridged.sum()),
        filled_rows=int(to_fill.sum()),
        segments=len(split.segments),
        off_grid=frequency.off_grid_count(rows.times),
        shared_steps=int((to_previous <= 0).sum()),
    )
    return insert_rows(split, np.append(to_fill, 0)[1:], frequency), counts


def append_future(rows: Rows, steps: NDArray[np.int64] | int, frequency: Frequency) -> Rows:
    """Adds synthetic rows behind the end of every series, as room for a forecast.

    Args:
        rows: Rows with their segments.
        steps: Rows to add to each series, one number for all or (S,); they join its last segment.
        frequency: Step of the time column.

    Returns:
        The longer rows.
    """
    after = np.zeros(rows.num_rows, dtype=np.int64)
    ends = np.diff(rows.series, append=-1) != 0
    after[ends] = np.broadcast_to(steps, len(rows.series_names))[rows.series[ends]]
    return insert_rows(rows, after, frequency)


def insert_rows(rows: Rows, after: NDArray[np.int64], frequency: Frequency) -> Rows:
    """Puts synthetic rows, one step apart, behind rows; they belong to the segment of the row before.

    Args:
        rows: Rows with their segments.
        after: (N,) number of rows to put behind each row.
        frequency: Step of the time column.

    Returns:
        The longer rows; the new ones hold NaN and code -1.
    """
    if not after.any():
        return rows
    before = np.cumsum(after) - after  # (N,) rows put in before each row
    old = np.arange(rows.num_rows) + before  # (N,) new place of each row
    source = np.repeat(np.arange(rows.num_rows), after)
    step = np.arange(len(source)) - before[source] + 1
    new = old[source] + step
    times = _spread(rows.times, old, len(new), 0)
    times[new] = frequency.advance(rows.times[source], step)
    series = _spread(rows.series, old, len(new), 0)
    series[new] = rows.series[source]
    segments = rows.segments.copy()
    segments[:, 1] = old[rows.segments[:, 1]]
    segments[:, 2] = old[rows.segments[:, 2] - 1] + after[rows.segments[:, 2] - 1] + 1
    return replace(
        rows,
        times=times,
        series=series,
        reals={name: _spread(values, old, len(new), np.nan) for name, values in rows.reals.items()},
        categories={name: _spread(codes, old, len(new), -1) for name, codes in rows.categories.items()},
        synthetic=_spread(rows.synthetic, old, len(new), True),
        inserted=_spread(rows.inserted, old, len(new), True),
        segments=segments,
    )


def _spread(values: NDArray[Scalar], places: NDArray[np.int64], extra: int, fill: float) -> NDArray[Scalar]:
    """The values at their new places, and `fill` at the `extra` others."""
    spread = np.full(len(values) + extra, fill, dtype=values.dtype)
    spread[places] = values
    return spread


def _gap_error(rows: Rows, missing: NDArray[np.int64], frequency: Frequency) -> DataError:
    """The first gap, in words."""
    row = int((missing > 0).argmax())
    total = int((missing > 0).sum())
    return DataError(
        f"{rows.place(row - 1)}: {missing[row]} steps of {frequency.name} are missing before the next row at "
        f"{rows.time_text(row)}, got {total} such gaps in all; set data.gaps to 'fill', 'tolerate' or 'split'"
    )
