"""The prepared data: rows sorted by series and time, ready to be cut into windows by index arithmetic.

Letters: N rows, S series, M segments, O targets, V variables of a group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Model inputs beside targets, one row per series and time step.

    A segment is a run of rows of one series without a break: windows never leave it. Real inputs are scaled.
    Targets are transformed (log, where asked) but neither anchored nor scaled: that depends on the window.
    """

    times: NDArray[np.int64]  # (N,) microseconds since 1970 (UTC where zoned), or the integer time itself
    series_of_row: NDArray[np.int32]  # (N,)
    series_keys: tuple[tuple[str, ...], ...]  # S keys, one string per series column
    segments: NDArray[np.int64]  # (M, 3): series, first row, row after the last
    targets: NDArray[np.float64]  # (N, O) NaN where there is no label
    history: NDArray[np.float64]  # (N, O) the targets as inputs: missing ones carried forward
    observed_reals: NDArray[np.float32]  # (N, V) without the targets
    observed_categories: NDArray[np.int32]  # (N, V)
    known_reals: NDArray[np.float32]  # (N, V) without the relative time index
    known_categories: NDArray[np.int32]  # (N, V)
    static_reals: NDArray[np.float32]  # (S, V)
    static_categories: NDArray[np.int32]  # (S, V)
    weights: NDArray[np.float32]  # (N,)
    usable: NDArray[np.bool_]  # (N,) False where `missing: "drop"` forbids every window that touches the row
    synthetic: NDArray[np.bool_]  # (N,) True for rows put in for gaps or beyond the end of the file
    center: NDArray[np.float64]  # (S, O) of the transformed target
    scale: NDArray[np.float64]  # (S, O) of the transformed target, or of its changes where anchored

    @property
    def num_rows(self) -> int:
        """Number of rows, synthetic ones included."""
        return len(self.times)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(
            value.nbytes
            for value in (getattr(self, name) for name in self.__slots__)
            if isinstance(value, np.ndarray)
        )
