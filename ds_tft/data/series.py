"""Which series each row belongs to, from one or several id columns. Letters: N rows, S series."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ds_tft.data.categories import NULL
from ds_tft.data.columns import Codes


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesIds:
    """Series of a source, numbered in the order of their keys, so that the order of rows does not matter."""

    series_of_row: NDArray[np.int32]  # (N,)
    keys: tuple[tuple[str, ...], ...]  # S keys, one text per id column; one empty key without id columns

    @property
    def names(self) -> tuple[str, ...]:
        """Each key as one text; empty where the file is one series."""
        return tuple("/".join(key) for key in self.keys)


def number_series(ids: Mapping[str, Codes], num_rows: int) -> SeriesIds:
    """Numbers the series by the combination of their id columns.

    Args:
        ids: Codes of each id column; a null id is an id of its own.
        num_rows: N.

    Returns:
        The series of each row and their keys.
    """
    if not ids:
        return SeriesIds(series_of_row=np.zeros(num_rows, dtype=np.int32), keys=((),))
    combined = np.zeros(num_rows, dtype=np.int64)
    for codes in ids.values():
        # Renumbered after each column, so that the product of their sizes cannot overflow.
        _, combined = np.unique(combined * (len(codes.values) + 1) + codes.codes + 1, return_inverse=True)
    _, first = np.unique(combined, return_index=True)
    keys = [tuple(_text(codes, int(row)) for codes in ids.values()) for row in first]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    number = np.empty(len(keys), dtype=np.int32)
    number[order] = np.arange(len(keys), dtype=np.int32)
    return SeriesIds(series_of_row=number[combined], keys=tuple(keys[i] for i in order))


def _text(codes: Codes, row: int) -> str:
    """Id of a row in one column."""
    code = int(codes.codes[row])
    return NULL if code < 0 else codes.values[code]
