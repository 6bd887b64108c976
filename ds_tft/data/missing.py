"""Missing values of inputs: refused, avoided, or replaced by the last value known.

A value is only ever carried forward, within its series: no row learns anything from a later one.
Letters: N rows, V columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from ds_tft.data.cleaning_report import MissingCounts
from ds_tft.data.rows import Rows
from ds_tft.errors import DataError

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, kw_only=True, slots=True)
class FilledRows:
    """Rows after the policy about missing values, and what the model is told about it."""

    rows: Rows
    usable: NDArray[np.bool_]  # (N,) False where no window may touch the row
    indicator_columns: tuple[str, ...]  # V columns that have an indicator
    indicators: NDArray[np.bool_]  # (N, V) True where the column's value was missing, in synthetic rows too
    counts: MissingCounts


def fill_missing(
    rows: Rows,
    columns: Sequence[str],
    policy: Literal["error", "drop", "fill"],
    indicator_columns: Sequence[str] | None = None,
    known: Sequence[str] = (),
) -> FilledRows:
    """Carries out the policy about missing values of inputs.

    Synthetic rows take the last numbers and categories under every policy; of categories in `known`, only
    rows that the file does not have. A number with none before it in its series stays NaN, for the caller to
    replace after scaling. A null category of the file stays -1: null is a category too, such as the holiday
    of a day that is none.

    Args:
        rows: Rows with their segments.
        columns: Inputs to look at, reals or categories.
        policy: `error` refuses missing values of the file, `drop` leaves them and marks their rows unusable,
            `fill` carries numbers forward.
        indicator_columns: Columns that get an indicator, as decided at training; None gives one to every
            column with missing values in the file under `fill`, and to none otherwise.
        known: Inputs whose values behind the last target are the file's own: those known for the horizon.

    Returns:
        The rows, which of them windows may touch, the indicators and the counts.

    Raises:
        DataError: A value is missing and the policy is `error`.
    """
    missing = {name: _missing(rows, name) for name in columns}
    absent = {name: mask for name, mask in missing.items() if (mask & ~rows.synthetic).any()}  # in the file
    if policy == "error" and absent:
        raise _missing_error(rows, absent)
    where = rows.synthetic if policy == "drop" else np.ones_like(rows.synthetic)
    filled = _carry_forward(rows, missing, where, known)
    unusable = np.zeros(rows.num_rows, dtype=np.bool_)
    if policy == "drop":
        for mask in absent.values():
            unusable |= mask & ~rows.synthetic
    if indicator_columns is None:
        indicator_columns = tuple(absent) if policy == "fill" else ()
    indicators = np.zeros((rows.num_rows, len(indicator_columns)), dtype=np.bool_)  # (N, V)
    for i, name in enumerate(indicator_columns):
        indicators[:, i] = missing[name]
    return FilledRows(
        rows=filled,
        usable=~unusable,
        indicator_columns=tuple(indicator_columns),
        indicators=indicators,
        counts=_count(filled, absent, policy, int(unusable.sum())),
    )


def _missing(rows: Rows, name: str) -> NDArray[np.bool_]:
    """(N,) True where a column has no value."""
    return np.isnan(rows.reals[name]) if name in rows.reals else rows.categories[name] < 0


def _carry_forward(
    rows: Rows, missing: dict[str, NDArray[np.bool_]], where: NDArray[np.bool_], known: Sequence[str]
) -> Rows:
    """The rows with the last value of the series in place of missing ones, in the rows of `where`."""
    index = np.arange(rows.num_rows)
    first = np.maximum.accumulate(np.where(rows.starts_series(), index, 0))  # (N,) first row of the series
    reals, categories = dict(rows.reals), dict(rows.categories)
    for name, mask in missing.items():
        if name in reals and (mask & where).any():
            reals[name] = np.where(where, _last(reals[name], ~mask, first), reals[name])
        elif name in categories and rows.synthetic.any():
            own = ~(rows.inserted if name in known else rows.synthetic)
            categories[name] = _last(categories[name], own, first)
    return replace(rows, reals=reals, categories=categories)


def _last(values: NDArray[Scalar], known: NDArray[np.bool_], first: NDArray[np.int64]) -> NDArray[Scalar]:
    """(N,) the last known value of the series up to each row; the row's own where there is none."""
    last = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    return np.where(last >= first, values[last], values)


def _count(
    filled: Rows,
    absent: dict[str, NDArray[np.bool_]],
    policy: Literal["error", "drop", "fill"],
    unusable_rows: int,
) -> MissingCounts:
    """Missing values of the file by what became of them."""
    totals = {name: int((mask & ~filled.synthetic).sum()) for name, mask in absent.items()}
    if policy == "drop":
        return MissingCounts(policy=policy, dropped=totals, unusable_rows=unusable_rows)
    reals = [name for name in absent if name in filled.reals]
    left = {name: int((np.isnan(filled.reals[name]) & ~filled.synthetic).sum()) for name in reals}
    return MissingCounts(
        policy=policy,
        carried={name: totals[name] - left[name] for name in reals if totals[name] > left[name]},
        without_past={name: count for name, count in left.items() if count},
        null_categories={name: count for name, count in totals.items() if name not in filled.reals},
    )


def _missing_error(rows: Rows, absent: dict[str, NDArray[np.bool_]]) -> DataError:
    """The first missing value of the first column that has one, in words."""
    name, mask = next(iter(absent.items()))
    mask = mask & ~rows.synthetic
    return DataError(
        f"column '{name}', {rows.place(int(mask.argmax()))}: value is missing (null, NaN or infinite), "
        f"got {mask.sum()} such values here and others in {len(absent) - 1} more columns; "
        "set data.missing to 'fill' or 'drop'"
    )
