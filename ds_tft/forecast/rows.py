"""Rows of the table that belong together.

Letters: N rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ds_tft.data.table import Table

Rows = NDArray[np.int64]


def segment_of_row(table: Table) -> Rows:
    """Returns the number of each row's segment, (N,), -1 for a row in none."""
    numbers = np.full(table.num_rows, -1, dtype=np.int64)
    first, lengths = table.segments[:, 1], table.segments[:, 2] - table.segments[:, 1]
    before = np.cumsum(lengths) - lengths
    rows = np.repeat(first - before, lengths) + np.arange(lengths.sum())
    numbers[rows] = np.repeat(np.arange(len(lengths)), lengths)
    return numbers


def rows_with_earlier(segments: Rows, allowed: NDArray[np.bool_], lag: int) -> Rows:
    """Returns the rows whose row `lag` steps earlier is in the same segment, both of them allowed.

    Args:
        segments: (N,) as `segment_of_row` returns them.
        allowed: (N,) rows that may be used, such as those of the training period.
        lag: Rows between the two, at least 1.
    """
    assert lag >= 1
    together = (segments[lag:] == segments[:-lag]) & (segments[lag:] >= 0)
    return np.flatnonzero(together & allowed[lag:] & allowed[:-lag]) + lag
