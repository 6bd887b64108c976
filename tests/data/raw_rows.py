"""Small raw rows for the tests of cleaning."""

import numpy as np

from ds_tft.data.rows import Rows, sort_rows
from ds_tft.data.schema import TimeKind


def micros(*texts: str) -> np.ndarray:
    return np.array(texts, dtype="datetime64[us]").astype(np.int64)


def index_rows(times, series=None, names=("A", "B", "C"), reals=None, categories=None) -> Rows:
    """Sorted rows of an integer time column; `x` numbers the rows of the file unless reals are given."""
    times = np.array(times, dtype=np.int64)
    series = np.zeros(len(times), dtype=np.int32) if series is None else np.array(series, dtype=np.int32)
    reals = {"x": np.arange(len(times), dtype=np.float64)} if reals is None else reals
    rows, _ = sort_rows(
        times=times,
        kind=TimeKind.INDEX,
        series=series,
        series_names=names,
        reals={name: np.array(values, dtype=np.float64) for name, values in reals.items()},
        categories={name: np.array(codes, dtype=np.int32) for name, codes in (categories or {}).items()},
    )
    return rows
