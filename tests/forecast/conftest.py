from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch

from ds_tft.data.table import Table


def _table(pieces: Sequence[tuple[int, np.ndarray]], scale: Sequence[float]) -> Table:
    """Builds a table from segments: (series, targets (rows, O)), in order."""
    targets = np.concatenate([values for _, values in pieces])
    rows, outputs, series = len(targets), targets.shape[1], len(scale)
    ends = np.cumsum([len(values) for _, values in pieces])
    starts = ends - [len(values) for _, values in pieces]
    history = targets.copy()
    for row in range(1, rows):
        history[row] = np.where(np.isnan(history[row]), history[row - 1], history[row])
    return Table(
        times=np.arange(rows),
        series_of_row=np.repeat([s for s, _ in pieces], [len(v) for _, v in pieces]).astype(np.int32),
        series_keys=tuple((str(s),) for s in range(series)),
        segments=np.stack([[s for s, _ in pieces], starts, ends], axis=1).astype(np.int64),
        targets=targets,
        history=history,
        observed_reals=np.zeros((rows, 0), np.float32),
        observed_categories=np.zeros((rows, 0), np.int32),
        known_reals=np.zeros((rows, 0), np.float32),
        known_categories=np.zeros((rows, 0), np.int32),
        static_reals=np.zeros((series, 0), np.float32),
        static_categories=np.zeros((series, 0), np.int32),
        weights=np.ones(rows, np.float32),
        usable=np.ones(rows, np.bool_),
        synthetic=np.zeros(rows, np.bool_),
        center=np.zeros((series, outputs)),
        scale=np.tile(np.asarray(scale, dtype=np.float64)[:, None], (1, outputs)),
    )


@pytest.fixture
def build_table() -> Callable[[Sequence[tuple[int, np.ndarray]], Sequence[float]], Table]:
    return _table


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Models of a few numbers: threads would mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
