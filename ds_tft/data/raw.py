"""From a parquet source to cleaned rows: columns in their roles, sorted, gaps and missing values dealt with.

Training and forecasting go through here alike; what training settles (frequency, indicator columns) is handed
in by a forecast. Letters: N rows, V columns, S series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ds_tft.config.run import DataSettings
from ds_tft.data.cleaning_report import CleaningReport
from ds_tft.data.columns import MissingCount
from ds_tft.data.frequency import Frequency
from ds_tft.data.gaps import append_future, close_gaps
from ds_tft.data.infer_frequency import resolve_frequency
from ds_tft.data.missing import FilledRows, fill_missing
from ds_tft.data.parquet import ParquetSource
from ds_tft.data.rows import Rows, resolve_duplicates, sort_rows
from ds_tft.data.schema import Roles
from ds_tft.data.series import SeriesIds, number_series
from ds_tft.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class RawRows:
    """Rows of the source in order, and what their codes mean."""

    rows: Rows
    ids: SeriesIds
    categories: dict[str, tuple[str, ...]]
    """Values of each category column, in the order of its codes."""
    zone: str | None
    """Zone of the time column."""
    out_of_order: int
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CleanRows:
    """Rows with segments and without unexplained holes."""

    raw: RawRows
    """Before gaps and missing values were dealt with; sorted, without duplicates."""
    filled: FilledRows
    frequency: Frequency
    report: CleaningReport

    @property
    def rows(self) -> Rows:
        """The cleaned rows."""
        return self.filled.rows


def read_rows(source: ParquetSource, roles: Roles, bars: Sequence[str]) -> RawRows:
    """Reads the columns that have a role, and no others.

    Args:
        source: The parquet data.
        roles: The role of each column.
        bars: Further columns that bar features are computed from.

    Returns:
        The rows, sorted by series then time.

    Raises:
        DataError: A column is absent or does not suit its role.
    """
    time = source.read_time(roles.time)
    reals = source.read_reals(tuple(dict.fromkeys((*roles.real_columns(), *bars))))
    codes = source.read_categories(tuple(dict.fromkeys((*roles.series, *roles.category_columns()))))
    ids = number_series({name: codes[name] for name in roles.series}, source.num_rows)
    rows, out_of_order = sort_rows(
        times=time.times,
        kind=time.kind,
        series=ids.series_of_row,
        series_names=ids.names,
        reals=reals.values,
        categories={name: codes[name].codes for name in roles.category_columns()},
    )
    return RawRows(
        rows=rows,
        ids=ids,
        categories={name: codes[name].values for name in roles.category_columns()},
        zone=time.zone,
        out_of_order=out_of_order,
        notes=(*source.notes, *time.notes, *reals.notes, *_not_finite_notes(reals.missing)),
    )


def clean_rows(
    raw: RawRows,
    roles: Roles,
    settings: DataSettings,
    *,
    gaps: Literal["fill", "tolerate", "split", "error"],
    bars: Sequence[str],
    frequency: Frequency | None = None,
    indicator_columns: Sequence[str] | None = None,
    future_steps: int = 0,
) -> CleanRows:
    """Carries out the policies about duplicates, gaps and missing values.

    Args:
        raw: Sorted rows.
        roles: The role of each column.
        settings: The policies.
        gaps: The policy about gaps, `auto` resolved.
        bars: Columns that bar features are computed from; they are completed as bars, not carried forward.
        frequency: Step of the time column as settled at training; None infers it.
        indicator_columns: Columns with an indicator of missing values as settled at training; None gives one
            to each column that needs it.
        future_steps: Rows that each series must have behind its last target, as room for a forecast; those
            that the file lacks are added.

    Returns:
        The rows and all counts.

    Raises:
        DataError: A policy is `error` and there is a reason for one.
    """
    rows, duplicates = resolve_duplicates(raw.rows, settings.duplicates)
    rows = _mark_horizon_rows(rows, roles.target)
    if frequency is None:
        frequency = resolve_frequency(
            settings.frequency, rows.times, rows.series, rows.kind, settings.timezone or raw.zone
        )
    closed, gap_counts = close_gaps(rows, gaps, settings.max_gap_steps, frequency)
    if future_steps:
        given = closed.series[behind_last_target(closed, roles.target)]
        room = np.bincount(given, minlength=len(closed.series_names))  # (S,) rows of the file for the horizon
        closed = append_future(closed, np.maximum(future_steps - room, 0), frequency)
    inputs = _inputs(roles, bars)
    if indicator_columns is None:
        indicator_columns = _needing_indicator(closed, inputs, bars) if settings.missing == "fill" else ()
    filled = fill_missing(closed, inputs, settings.missing, indicator_columns, roles.known_categories)
    return CleanRows(
        raw=replace(raw, rows=closed),
        filled=filled,
        frequency=frequency,
        report=CleaningReport(
            out_of_order=raw.out_of_order, duplicates=duplicates, gaps=gap_counts, missing=filled.counts
        ),
    )


def behind_last_target(rows: Rows, targets: Sequence[str]) -> NDArray[np.bool_]:
    """Finds the rows (N,) that come after the last value of any target in their series.

    A series without any target has none: its rows are missing values, not room to forecast.
    """
    has_target = np.zeros(rows.num_rows, dtype=np.bool_)
    for name in targets:
        has_target |= np.isfinite(rows.reals[name])
    last = np.full(len(rows.series_names), rows.num_rows, dtype=np.int64)
    with_target = np.flatnonzero(has_target)
    last[rows.series[with_target]] = with_target  # ascending, so that the last one stays
    return np.arange(rows.num_rows) > last[rows.series]


def static_values(rows: Rows, names: Sequence[str], num_series: int) -> NDArray[np.float64]:
    """Takes one value per series of columns that must not change within a series.

    Args:
        rows: Rows before missing values were filled.
        names: V static real columns.
        num_series: S.

    Returns:
        (S, V) the values; NaN for a series without one.

    Raises:
        DataError: A column changes within a series.
    """
    values = np.full((num_series, len(names)), np.nan)
    for v, name in enumerate(names):
        column = rows.reals[name]
        known = np.flatnonzero(np.isfinite(column))
        values[rows.series[known], v] = column[known]
        _refuse_changing(rows, name, column[known] != values[rows.series[known], v], known)
    return values


def static_codes(rows: Rows, names: Sequence[str], num_series: int) -> NDArray[np.int32]:
    """The same for categories: (S, V) codes, -1 for a series without one.

    Raises:
        DataError: A column changes within a series.
    """
    codes = np.full((num_series, len(names)), -1, dtype=np.int32)
    for v, name in enumerate(names):
        column = rows.categories[name]
        known = np.flatnonzero(column >= 0)
        codes[rows.series[known], v] = column[known]
        _refuse_changing(rows, name, column[known] != codes[rows.series[known], v], known)
    return codes


def _refuse_changing(rows: Rows, name: str, differs: NDArray[np.bool_], known: NDArray[np.int64]) -> None:
    """Refuses a static column with several values in one series."""
    if differs.any():
        row = int(known[int(differs.argmax())])
        raise DataError(
            f"column '{name}': static, but got several values in {rows.place(row)}; "
            f"name it in data.observed_reals (or data.observed_categories) instead"
        )


def _mark_horizon_rows(rows: Rows, targets: Sequence[str]) -> Rows:
    """Takes rows after a series' last target for room to forecast, not for rows with missing values."""
    beyond = behind_last_target(rows, targets)
    return replace(rows, synthetic=rows.synthetic | beyond) if beyond.any() else rows


def _inputs(roles: Roles, bars: Sequence[str]) -> tuple[str, ...]:
    """Columns whose missing values matter."""
    return tuple(
        dict.fromkeys(
            (
                *roles.target,
                *roles.known_reals,
                *roles.known_categories,
                *roles.observed_reals,
                *roles.observed_categories,
                *bars,
            )
        )
    )


def _needing_indicator(rows: Rows, inputs: Sequence[str], bars: Sequence[str]) -> tuple[str, ...]:
    """Real inputs with missing values of their own; an incomplete bar is a bar without a trade."""
    return tuple(
        name
        for name in inputs
        if name in rows.reals and name not in bars and np.isnan(rows.reals[name][~rows.synthetic]).any()
    )


def _not_finite_notes(missing: Mapping[str, MissingCount]) -> tuple[str, ...]:
    """Says which columns had values that are not finite numbers."""
    return tuple(
        f"column '{name}': {count.nans:,} NaN and {count.infinities:,} infinite values count as missing"
        for name, count in missing.items()
        if count.nans or count.infinities
    )
