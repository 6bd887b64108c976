"""Batches: windows gathered from the table into the model's inputs, and predictions brought back.

Letters: B batch, L encoder length, K horizon steps, V variables of a group, O targets, Q quantiles.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_all_start_methods
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ds_tft.config.run import WindowSettings
from ds_tft.data.scaling import TargetScaler
from ds_tft.data.table import Table
from ds_tft.data.windows import WindowIndex
from ds_tft.model.inputs import ModelInputs

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]
T = TypeVar("T")


class Batch(NamedTuple):
    """Windows as tensors. An empty place repeats the first window with weight 0."""

    inputs: ModelInputs
    labels: Tensor  # (B, K, O) float32 in model units; 0 where there is none
    weights: Tensor  # (B, K, O) float32; 0 where there is no label
    windows: Tensor  # (B,) int64 number of the window, -1 for an empty place; always on the CPU

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """Moves to `device`; real inputs also become `dtype`, labels and weights stay float32."""
        labels = self.labels.to(device, non_blocking=True)
        weights = self.weights.to(device, non_blocking=True)
        return Batch(self.inputs.to(device, dtype), labels, weights, self.windows)


class _Places(NamedTuple):
    """Rows that a batch reads."""

    origins: Numbers  # (B,)
    lengths: Numbers  # (B,)
    history: Numbers  # (B, L) left-aligned; padding repeats the origin
    padding: NDArray[np.bool_] | None  # (B, L); None where every history is full
    horizon: Numbers  # (B, K)


@dataclass(frozen=True, slots=True)
class BatchBuilder:
    """Builds batches of any windows of a table. It holds only the table, so overlap costs no memory."""

    table: Table
    window: WindowSettings
    target: TargetScaler

    def build(self, index: WindowIndex, windows: Numbers) -> Batch:
        """Gathers one batch.

        Args:
            index: Windows of a split.
            windows: (B,) positions in `index`; -1 for an empty place.

        Returns:
            The batch, on the CPU.
        """
        table = self.table
        places = self._places(index.take(np.maximum(windows, 0)))
        series = table.series_of_row[places.origins]
        anchor, scale = self._anchor(places), table.scale[series]  # (B, O)
        inputs = ModelInputs(
            static_reals=torch.from_numpy(table.static_reals[series]),
            static_categories=torch.from_numpy(table.static_categories[series].astype(np.int64)),
            observed_reals=torch.from_numpy(self._observed(places, anchor, scale)),
            observed_categories=_categories(self.table.observed_categories, places, with_horizon=False),
            known_reals=torch.from_numpy(self._known(places)),
            known_categories=_categories(self.table.known_categories, places, with_horizon=True),
            encoder_lengths=torch.from_numpy(places.lengths),
        )
        labels, weights = self._labels(places, anchor, scale)
        weights[windows < 0] = 0
        return Batch(inputs, torch.from_numpy(labels), torch.from_numpy(weights), torch.tensor(windows))

    def labels(self, index: WindowIndex) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Labels in model units and their weights, (n, K, O) each, without the inputs."""
        places = self._places(index)
        return self._labels(
            places, self._anchor(places), self.table.scale[self.table.series_of_row[index.origins]]
        )

    def window_weights(self, index: WindowIndex) -> Floats:
        """Sums the label weights of each window, (n,), without building batches."""
        known = np.isfinite(self.table.targets).sum(axis=1) * ~self.table.synthetic
        total = np.append(0.0, np.cumsum(known * self.table.weights.astype(np.float64)))  # before each row
        return total[index.origins + self.window.horizon + 1] - total[index.origins + 1]

    def to_original_units(self, prediction: Floats, index: WindowIndex, windows: Numbers) -> Floats:
        """Brings predictions back from model units, in float64.

        Args:
            prediction: (B, K, O, Q) in model units.
            index: Windows of a split.
            windows: (B,) positions in `index`; -1 for an empty place.

        Returns:
            (B, K, O, Q) in units of the target column; NaN in empty places.
        """
        places = self._places(index.take(np.maximum(windows, 0)))
        scale = self.table.scale[self.table.series_of_row[places.origins]]  # (B, O)
        anchor = self._anchor(places)
        transformed = np.asarray(prediction, dtype=np.float64) * scale[:, None, :, None]
        original = self.target.inverse(transformed + anchor[:, None, :, None])
        original[windows < 0] = np.nan
        return original

    def _places(self, index: WindowIndex) -> _Places:
        """Rows of the windows."""
        length, horizon = self.window.encoder_length, self.window.horizon
        origins, lengths = index.origins, index.lengths.astype(np.int64)
        step = np.arange(length)
        rows = (origins - lengths + 1)[:, None] + step  # (B, L)
        is_full = bool((lengths == length).all())
        return _Places(
            origins=origins,
            lengths=lengths,
            history=rows if is_full else np.minimum(rows, origins[:, None]),
            padding=None if is_full else step >= lengths[:, None],
            horizon=origins[:, None] + np.arange(1, horizon + 1),
        )

    def _anchor(self, places: _Places) -> Floats:
        """What labels are measured from, in units of the transformed target: (B, O)."""
        table = self.table
        if self.target.anchor == "none":
            return table.center[table.series_of_row[places.origins]]
        if self.target.anchor == "last":
            return table.history[places.origins]
        history = table.history[places.history]  # (B, L, O)
        if places.padding is not None:
            history[places.padding] = 0
        return history.sum(axis=1) / places.lengths[:, None]

    def _observed(self, places: _Places, anchor: Floats, scale: Floats) -> NDArray[np.float32]:
        """The targets' own history, then the observed reals: (B, L, O+V)."""
        num_targets = self.table.history.shape[1]
        shape = (*places.history.shape, num_targets + self.table.observed_reals.shape[1])
        observed = np.empty(shape, dtype=np.float32)
        history = self.table.history[places.history]  # (B, L, O)
        observed[..., :num_targets] = (history - anchor[:, None]) / scale[:, None]
        observed[..., num_targets:] = self.table.observed_reals[places.history]
        if places.padding is not None:
            observed[places.padding] = 0
        return observed

    def _known(self, places: _Places) -> NDArray[np.float32]:
        """The relative time index, then the known reals, over history and horizon: (B, L+K, 1+V)."""
        length, horizon = self.window.encoder_length, self.window.horizon
        rows = np.concatenate([places.history, places.horizon], axis=1)  # (B, L+K)
        known = np.empty((*rows.shape, 1 + self.table.known_reals.shape[1]), dtype=np.float32)
        known[:, :length, 0] = (np.arange(length) - (places.lengths - 1)[:, None]) / length
        known[:, length:, 0] = np.arange(1, horizon + 1) / length
        known[..., 1:] = self.table.known_reals[rows]
        if places.padding is not None:
            known[:, :length][places.padding] = 0
        return known

    def _labels(
        self, places: _Places, anchor: Floats, scale: Floats
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Labels in model units, and their weights: (B, K, O) each."""
        rows = places.horizon
        labels = (self.table.targets[rows] - anchor[:, None]) / scale[:, None]
        known = np.isfinite(labels) & ~self.table.synthetic[rows][..., None]
        weights = np.where(known, self.table.weights[rows][..., None], 0)
        return np.where(known, labels, 0).astype(np.float32), weights.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Loader:
    """Iterates over batches given as a matrix of window numbers."""

    builder: BatchBuilder
    index: WindowIndex
    workers: int = 0
    """Processes that build batches; 0 does it in this one."""
    pin_memory: bool = False

    def batches(self, windows: Numbers, start: int = 0) -> Iterator[Batch]:
        """Yields the batches of the rows of `windows` (P, B), from row `start` on, in order.

        The number of workers changes nothing in them.
        """
        loader: DataLoader[Batch] = DataLoader(
            _Batches(self.builder, self.index, windows),
            batch_size=None,
            sampler=range(start, len(windows)),
            num_workers=self.workers,
            collate_fn=_unchanged,
            # Of its own: the default would draw a seed from the generator that dropout uses.
            generator=torch.Generator(),
            worker_init_fn=_ignore_signals,
            pin_memory=self.pin_memory,
            # Forked workers share the table's memory; any other way of starting them copies it.
            multiprocessing_context="fork" if self.workers and "fork" in get_all_start_methods() else None,
        )
        return iter(loader)


class _Batches(Dataset[Batch]):
    """Batches by position."""

    def __init__(self, builder: BatchBuilder, index: WindowIndex, windows: Numbers) -> None:
        self.builder = builder
        self.index = index
        self.windows = windows

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, position: int) -> Batch:
        return self.builder.build(self.index, self.windows[position])


def _categories(values: NDArray[np.int32], places: _Places, with_horizon: bool) -> Tensor:
    """Gathers codes over the history, (B, L, V), or over history and horizon, (B, L+K, V)."""
    codes = values[places.history].astype(np.int64)
    if places.padding is not None:
        codes[places.padding] = 0
    if with_horizon:
        codes = np.concatenate([codes, values[places.horizon].astype(np.int64)], axis=1)
    return torch.from_numpy(codes)


def _ignore_signals(worker: int) -> None:  # noqa: ARG001
    """Leaves it to the training process what a signal means: it ends its workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _unchanged(batch: T) -> T:
    """A batch needs no collating."""
    return batch
