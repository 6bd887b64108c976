"""Small tables for tests of windows and batches, with row numbers for values."""

import numpy as np

from ds_tft.data.table import Table


def make_table(
    rows_per_series=(50,),
    *,
    segments=None,
    targets=None,
    num_observed=2,
    num_known=1,
    **fields,
):
    """Series one after the other; the target of a row is its number, and time starts at 0 in each series."""
    n = sum(rows_per_series)
    ends = np.cumsum(rows_per_series)
    starts = ends - rows_per_series
    series = np.repeat(np.arange(len(rows_per_series)), rows_per_series).astype(np.int32)
    if segments is None:
        segments = np.stack([np.arange(len(starts)), starts, ends], axis=1)
    targets = np.arange(n, dtype=float)[:, None] if targets is None else targets
    row = np.arange(n)
    values = {
        "times": row - starts[series],
        "series_of_row": series,
        "series_keys": tuple((str(s),) for s in range(len(rows_per_series))),
        "segments": np.asarray(segments, dtype=np.int64),
        "targets": targets,
        "history": carried_forward(targets, series),
        "observed_reals": (row[:, None] + 0.25 * np.arange(1, num_observed + 1)).astype(np.float32),
        "observed_categories": (row[:, None] % 7).astype(np.int32),
        "known_reals": (-row[:, None] - 0.25 * np.arange(1, num_known + 1)).astype(np.float32),
        "known_categories": (row[:, None] % 5).astype(np.int32),
        "static_reals": (100.0 + np.arange(len(rows_per_series)))[:, None].astype(np.float32),
        "static_categories": (1 + np.arange(len(rows_per_series)))[:, None].astype(np.int32),
        "weights": np.ones(n, dtype=np.float32),
        "usable": np.ones(n, dtype=bool),
        "synthetic": np.zeros(n, dtype=bool),
        "center": np.zeros((len(rows_per_series), targets.shape[1])),
        "scale": np.ones((len(rows_per_series), targets.shape[1])),
    }
    return Table(**(values | fields))


def carried_forward(targets, series):
    """Missing values replaced by the last known one of the series; NaN before the first."""
    filled = targets.copy()
    for row in range(1, len(filled)):
        if series[row] == series[row - 1]:
            filled[row] = np.where(np.isnan(filled[row]), filled[row - 1], filled[row])
    return filled
