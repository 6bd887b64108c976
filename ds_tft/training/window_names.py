"""Which windows an update learnt from, in words: for the user who has to look into the data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ds_tft.data.batches import BatchBuilder
from ds_tft.data.schema import TimeKind
from ds_tft.data.times import time_text
from ds_tft.data.windows import WindowIndex

MOST_NAMES = 3


def describe_windows(
    builder: BatchBuilder, index: WindowIndex, numbers: NDArray[np.int64], kind: TimeKind
) -> str:
    """Names the series and the time of some windows, from the first row of a history to the last of a horizon.

    Args:
        builder: Of the batches.
        index: Windows of a split.
        numbers: (n,) positions in `index`; at least one.
        kind: What the time column holds.
    """
    chosen, table = index.take(numbers), builder.table
    first = int(table.times[chosen.origins - chosen.lengths + 1].min())
    last = int(table.times[chosen.origins + builder.window.horizon].max())
    series = np.unique(table.series_of_row[chosen.origins])
    count = f"{len(numbers)} windows" if len(numbers) > 1 else "1 window"
    times = f"from {time_text(first, kind)} to {time_text(last, kind)}"
    return f"{count} {times}{_of_series([table.series_keys[number] for number in series])}"


def _of_series(keys: Sequence[tuple[str, ...]]) -> str:
    """Names the first few series; nothing where the file is one series."""
    if not any(keys):
        return ""
    named = ", ".join(f"'{' '.join(key)}'" for key in keys[:MOST_NAMES])
    more = f" and {len(keys) - MOST_NAMES} more" if len(keys) > MOST_NAMES else ""
    return f" of series {named}{more}"
