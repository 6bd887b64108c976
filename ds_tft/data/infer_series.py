"""Which columns together name a series: the smallest natural set with which no time occurs twice.

Letters: N rows, S series.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ds_tft.data.column_types import ColumnInfo, Family
from ds_tft.data.columns import NotTextError
from ds_tft.data.given_roles import words_of
from ds_tft.data.parquet import ParquetSource

_ID_WORDS = {
    "id", "uid", "uuid", "key", "code", "nbr", "series", "symbol", "ticker", "instrument", "contract",
    "asset", "isin", "security", "sku", "store", "shop", "item", "product", "customer", "account",
    "region", "zone", "site", "station", "sensor", "meter", "device", "entity", "group",
}  # fmt: skip
_LARGEST_SET = 3
_MOST_CANDIDATES = 8
_MOST_SERIES = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesRows:
    """Which series each row belongs to."""

    ids: NDArray[np.int64]  # (N,)
    first_rows: NDArray[np.int64]  # (S,) first row of each series in file order

    @property
    def num_series(self) -> int:
        """S."""
        return len(self.first_rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesChoice:
    """Outcome of the search."""

    columns: tuple[str, ...]
    notes: tuple[str, ...] = ()


def is_id_like(info: ColumnInfo) -> bool:
    """Whether a column names things rather than measuring them: text, or integers whose name says so."""
    words = words_of(info.name)
    return info.family is Family.TEXT or (
        info.family is Family.INTEGER and bool(words) and words[-1] in _ID_WORDS
    )


def series_rows(source: ParquetSource, columns: Sequence[str]) -> SeriesRows:
    """Reads the series columns and numbers the series. Without columns, all rows are one series."""
    codes = source.read_categories(columns)
    ids = np.zeros(source.num_rows, np.int64)
    for name in columns:
        ids = _pair_ids(ids, codes[name].codes)
    return SeriesRows(ids=ids, first_rows=np.unique(ids, return_index=True)[1])


def find_series(source: ParquetSource, time: str, candidates: Sequence[str]) -> SeriesChoice:
    """Searches the candidates for the columns that name a series.

    The fewest columns that leave the fewest rows sharing series and time are taken; among sets of one size,
    the first in file order. A set is natural when its series have two rows or more on average.
    """
    if not candidates:
        return SeriesChoice(columns=())
    times = _pair_ids(np.zeros(source.num_rows, np.int64), _ranks(source.read_time(time).times))
    repeated = _shared(times)
    if repeated == 0:
        return SeriesChoice(columns=())
    codes, notes = _candidate_codes(source, candidates)
    fewest = _shared(_combined(times, list(codes.values())))
    best: tuple[str, ...] = ()
    for names in _sets(list(codes)):
        if repeated == fewest:
            break
        shared = _shared_if_natural(times, [codes[name] for name in names])
        if shared is not None and shared < repeated:
            best, repeated = names, shared
    if repeated:
        notes += (
            f"{repeated} rows share series and time with an earlier row, whichever columns name the series; "
            "data.duplicates decides what happens to them",
        )
    return SeriesChoice(columns=best, notes=notes)


def _sets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Sets of columns to try, smallest first."""
    for size in range(1, _LARGEST_SET + 1):
        yield from combinations(names, size)


def _candidate_codes(
    source: ParquetSource, candidates: Sequence[str]
) -> tuple[dict[str, NDArray[np.int32]], tuple[str, ...]]:
    """Codes of the candidates that vary and do not name nearly every row."""
    found: dict[str, NDArray[np.int32]] = {}
    most = min(source.num_rows // 2, _MOST_SERIES)
    left = list(candidates)
    while left and len(found) < _MOST_CANDIDATES:
        name = left.pop(0)
        try:
            column = source.read_category(name, most)
        except NotTextError:
            continue
        if column is not None and np.ptp(column.codes) > 0:
            found[name] = column.codes
    notes = (f"not tried as series columns: {', '.join(left)}",) if left else ()
    return found, notes


def _shared_if_natural(times: NDArray[np.int64], codes: Sequence[NDArray[np.int32]]) -> int | None:
    """Rows that share series and time with an earlier one, or None where most series have a single row."""
    ids = _combined(np.zeros(len(times), np.int64), codes)
    if 2 * (len(ids) - _shared(ids)) > len(ids):
        return None
    return _shared(_pair_ids(times, ids))


def _combined(ids: NDArray[np.int64], codes: Sequence[NDArray[np.int32]]) -> NDArray[np.int64]:
    """Numbers the distinct combinations of `ids` and all `codes`."""
    for column in codes:
        ids = _pair_ids(ids, column)
    return ids


def _ranks(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers the distinct values."""
    return np.unique(values, return_inverse=True)[1]


def _pair_ids(ids: NDArray[np.int64], codes: NDArray[np.int32] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers the distinct pairs; both hold numbers below N, `codes` -1 too, so products fit int64."""
    return _ranks(ids * (int(codes.max(initial=0)) + 2) + codes + 1)


def _shared(ids: NDArray[np.int64]) -> int:
    """Rows whose number an earlier row has."""
    return len(ids) - (int(ids.max(initial=-1)) + 1)
