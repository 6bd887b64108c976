"""Histograms, what their state must be, and processes that share one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from ds_tft.quantization.histogram import MagnitudeHistogram

CPU = torch.device("cpu")
SECONDS = 60


def histogram_of(values: Tensor, num_bins: int = 4096, *, batches: Iterable[int] = ()) -> MagnitudeHistogram:
    """Counts values (G, N), after each number of columns in `batches` in another call."""
    histogram = MagnitudeHistogram(len(values), CPU, num_bins)
    for part in values.tensor_split(sorted(batches), dim=1):
        histogram.add(part, 0)
    return histogram


def state(histogram: MagnitudeHistogram) -> dict[str, Tensor]:
    """All that it knows."""
    return {
        name: getattr(histogram, name).clone() for name in ("counts", "exponents", "largest", "not_finite")
    }


def expected_state(values: Tensor, num_bins: int) -> dict[str, Tensor]:
    """The same from values (G, N) in float32, in exact arithmetic, one by one."""
    groups = [_expected_group(row, num_bins) for row in values.tolist()]
    counts, exponents, largest, not_finite = zip(*groups, strict=True)
    return {
        "counts": torch.tensor(counts),
        "exponents": torch.tensor(exponents, dtype=torch.int32),
        "largest": torch.tensor(largest),
        "not_finite": torch.tensor(not_finite),
    }


def _expected_group(row: list[float], num_bins: int) -> tuple[list[int], int, float, int]:
    """Does one group."""
    finite = [abs(value) for value in row if math.isfinite(value)]
    largest = max(finite, default=0.0)
    exponent = max(-100, math.frexp(largest)[1]) if largest else -100
    counts = [0] * num_bins
    for value in finite:
        counts[math.floor(Fraction(value) * num_bins / Fraction(2) ** exponent)] += 1
    return counts, exponent, largest, len(row) - len(finite)


def assert_same_state(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Bit by bit, types too."""
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype, name
        assert torch.equal(actual[name], tensor), name


def run_processes(count: int, work: Callable[[int], Any], folder: Path) -> list[Any]:
    """Returns `work(rank)` of processes that form a group."""
    context = get_context("spawn")
    processes = [
        context.Process(target=_join, args=(rank, count, work, folder), daemon=True) for rank in range(count)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
    assert [process.exitcode for process in processes] == [0] * count
    return [torch.load(folder / f"{rank}.pt") for rank in range(count)]


def _join(rank: int, count: int, work: Callable[[int], Any], folder: Path) -> None:
    """Runs one process."""
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(folder / "store"), count)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=count)
    torch.save(work(rank), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()
