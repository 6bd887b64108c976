"""What was done to rows that were not as they should be: counts, and lines to print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class DuplicateCounts:
    """Rows of one series at one time."""

    policy: Literal["error", "first", "last"]
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Rows dropped, by series."""

    def lines(self) -> list[str]:
        """Returns what to print; empty where nothing was dropped."""
        total = sum(self.dropped.values())
        if not total:
            return []
        return [
            f"duplicates: {total:,} rows dropped, the {self.policy} of each time kept{_named(self.dropped)}"
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class GapCounts:
    """Steps of time without a row."""

    policy: Literal["fill", "tolerate", "split", "error"]
    step: str
    """Name of the frequency."""
    gaps: Mapping[str, int] = field(default_factory=dict)
    """Gaps by series."""
    longest: int = 0
    """Missing steps of the longest gap."""
    bridged: int = 0
    """Gaps that did not end a segment: filled, or tolerated."""
    filled_rows: int = 0
    """Synthetic rows put into gaps."""
    segments: int = 0
    off_grid: int = 0
    """Rows that are not where a step usually begins."""
    shared_steps: int = 0
    """Rows in the same step as the row before."""

    def lines(self) -> list[str]:
        """Returns what to print; empty where the rows are a complete grid."""
        total = sum(self.gaps.values())
        done = f"filled with {self.filled_rows:,} rows" if self.policy == "fill" else "tolerated"
        lines = [
            (
                self.off_grid,
                f"grid: {self.off_grid:,} rows are off the {self.step} grid; each counts for its step",
            ),
            (
                self.shared_steps,
                f"grid: {self.shared_steps:,} rows share a {self.step} step with the row before",
            ),
            (
                total,
                f"gaps: {total:,} gaps, the longest of {self.longest:,} {self.step} steps{_named(self.gaps)}",
            ),
            (self.bridged, f"gaps: {self.bridged:,} {done}"),
            (
                total - self.bridged,
                f"gaps: {total - self.bridged:,} ended a segment, which leaves {self.segments:,} segments",
            ),
        ]
        return [line for count, line in lines if count]


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingCounts:
    """Missing values of the file: nulls, NaN and infinities, but not the values of synthetic rows."""

    policy: Literal["error", "drop", "fill"]
    carried: Mapping[str, int] = field(default_factory=dict)
    """Numbers replaced by the last one known, by column."""
    without_past: Mapping[str, int] = field(default_factory=dict)
    """Numbers with none before them in their series, by column: they take the training mean."""
    null_categories: Mapping[str, int] = field(default_factory=dict)
    """Null categories kept as a category of their own, by column."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Values that forbid the windows around them, by column."""
    unusable_rows: int = 0
    """Rows with such a value."""

    def lines(self) -> list[str]:
        """Returns what to print; empty where nothing was missing."""
        carried, without_past = sum(self.carried.values()), sum(self.without_past.values())
        nulls, dropped = sum(self.null_categories.values()), sum(self.dropped.values())
        lines = [
            (carried, f"missing: {carried:,} values carried forward{_named(self.carried)}"),
            (
                without_past,
                f"missing: {without_past:,} values with none before them take the training mean"
                f"{_named(self.without_past)}",
            ),
            (
                nulls,
                f"missing: {nulls:,} null categories are taken as a category of their own"
                f"{_named(self.null_categories)}",
            ),
            (
                self.unusable_rows,
                f"missing: no window touches {self.unusable_rows:,} rows with {dropped:,} missing values"
                f"{_named(self.dropped)}",
            ),
        ]
        return [line for count, line in lines if count]


@dataclass(frozen=True, kw_only=True, slots=True)
class CleaningReport:
    """All that was done to the rows of a file before they became a table."""

    out_of_order: int = 0
    """Rows that were earlier than the row of their series before them in the file."""
    duplicates: DuplicateCounts | None = None
    gaps: GapCounts | None = None
    missing: MissingCounts | None = None

    def lines(self) -> list[str]:
        """Returns what to print, one line for each count that is not 0."""
        lines = (
            [f"order: {self.out_of_order:,} rows were out of order; all are sorted"]
            if self.out_of_order
            else []
        )
        for counts in (self.duplicates, self.gaps, self.missing):
            lines += counts.lines() if counts is not None else []
        return lines


def count_by_series(series: NDArray[np.int32], names: Sequence[str]) -> dict[str, int]:
    """Counts rows by the name of their series, given the series of each."""
    codes, rows = np.unique(series, return_counts=True)
    return {names[code]: int(count) for code, count in zip(codes, rows, strict=True)}


def _named(counts: Mapping[str, int]) -> str:
    """The largest counts by name, in brackets."""
    largest = sorted(((name, count) for name, count in counts.items() if name), key=lambda item: -item[1])
    if not largest:
        return ""
    text = ", ".join(f"{name} {count:,}" for name, count in largest[:5])
    return f" ({text}, {len(largest) - 5:,} more)" if len(largest) > 5 else f" ({text})"
