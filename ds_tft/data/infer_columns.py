"""Roles of columns that no setting names: static where constant within every series, otherwise observed.

A role among the known inputs is never inferred. Letters: N rows, S series.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ds_tft.data.column_types import ColumnInfo, ColumnKind
from ds_tft.data.columns import NotTextError
from ds_tft.data.infer_series import SeriesRows, is_id_like
from ds_tft.data.parquet import ParquetSource

Decision = tuple[str, str]
"""Role and the reason for it."""

MOST_CATEGORIES = 1000
# Real columns are looked at in blocks of about this many values: 256 MiB.
_VALUES_PER_BLOCK = 2**25


def infer_columns(source: ParquetSource, names: Sequence[str], rows: SeriesRows) -> dict[str, Decision]:
    """Returns the decision about each of `names`, in their order.

    Raises:
        DataError: A file cannot be read.
    """
    quick = {name: _by_type(source.columns[name]) for name in names}
    open_names = [name for name in names if quick[name] is None]
    categories = [name for name in open_names if is_id_like(source.columns[name])]
    reals = [name for name in open_names if name not in categories]
    decided: dict[str, Decision] = {name: _category(source, name, rows) for name in categories}
    for block in _blocks(reals, source.num_rows):
        values = source.read_reals(block).values
        decided |= {name: _real(values[name], rows) for name in block}
    return {name: quick[name] or decided[name] for name in names}


def _blocks(names: Sequence[str], num_rows: int) -> Iterator[Sequence[str]]:
    """Columns that are read together."""
    size = max(1, _VALUES_PER_BLOCK // num_rows)
    return (names[start : start + size] for start in range(0, len(names), size))


def _by_type(info: ColumnInfo) -> Decision | None:
    """The decision that needs no look at the values, if there is one."""
    if info.reason is not None:
        return "ignored", info.reason
    if info.kind is ColumnKind.TIME:
        return "ignored", "times other than the time column are no input"
    if info.kind is ColumnKind.REAL and re.fullmatch(r"__index_level_\d+__", info.name):
        return "ignored", "row numbers of pandas"
    return None


def _real(values: NDArray[np.float64], rows: SeriesRows) -> Decision:
    """Role of a real column from its values (N,)."""
    missing = np.isnan(values)
    if missing.all():
        return "ignored", "holds no value"
    if _is_constant(values):
        return "ignored", "constant"
    if _is_static(values, rows):
        return "static_reals", "constant within every series"
    return "observed_reals", "varies within a series"


def _category(source: ParquetSource, name: str, rows: SeriesRows) -> Decision:
    """Role of a category column."""
    most = max(MOST_CATEGORIES, rows.num_series)
    try:
        column = source.read_category(name, most)
    except NotTextError:
        return "ignored", "holds bytes that are not UTF-8"
    if column is None:
        return "ignored", f"more than {MOST_CATEGORIES} different values"
    if not column.values:
        return "ignored", "holds no value"
    if _is_constant(column.codes):
        return "ignored", "constant"
    if _is_static(column.codes, rows):
        return "static_categories", "constant within every series"
    if len(column.values) > MOST_CATEGORIES:
        return "ignored", f"more than {MOST_CATEGORIES} different values"
    return "observed_categories", "varies within a series"


def _is_constant(values: NDArray[np.float64] | NDArray[np.int32]) -> bool:
    """Whether all rows hold the same; a missing value differs from every other."""
    return bool((values == values[0]).all())


def _is_static(values: NDArray[np.float64] | NDArray[np.int32], rows: SeriesRows) -> bool:
    """Whether every series holds one value; one series, or series of one row each, prove nothing."""
    if not 2 <= rows.num_series < len(values):
        return False
    first = values[rows.first_rows][rows.ids]  # (N,)
    return bool(np.array_equal(first, values, equal_nan=values.dtype.kind == "f"))
