"""The errors of a model and of the baselines on the same windows, in original units.

Letters: B batch, K horizon steps, O targets, Q quantiles.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import nn

from ds_tft.data.batches import BatchBuilder
from ds_tft.data.sampler import evaluation_batches
from ds_tft.data.windows import WindowIndex
from ds_tft.forecast.baselines import Baseline
from ds_tft.forecast.metrics import ErrorReport, ForecastErrors


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Errors over the windows of one period."""

    windows: int
    model: ErrorReport
    baselines: tuple[tuple[str, ErrorReport], ...]
    notes: tuple[str, ...] = ()


def write_evaluation(path: Path, evaluation: Evaluation) -> None:
    """Writes everything as strict JSON; a figure that nothing stands behind is null."""
    text = json.dumps(_without_nan(asdict(evaluation)), indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


@torch.no_grad()
def evaluate(
    model: nn.Module,
    builder: BatchBuilder,
    windows: WindowIndex,
    quantiles: Sequence[float],
    baselines: dict[str, Baseline],
    *,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
) -> Evaluation:
    """Forecasts every window once, spread over the processes, and compares with what came.

    Args:
        model: The model; left in evaluation mode.
        builder: Makes batches of windows.
        windows: The windows, at least one.
        quantiles: The model's levels, ascending.
        baselines: By name.
        batch_size: Windows per forward.
        rank: This process.
        world_size: Number of processes; all of them must call this.

    Returns:
        The same on every process.
    """
    model.eval()
    num_targets = builder.table.targets.shape[1]
    errors = {name: ForecastErrors(quantiles, num_targets) for name in ("", *baselines)}
    for indices in evaluation_batches(len(windows), batch_size, rank, world_size):
        used = indices[indices >= 0]
        if not len(used):
            continue
        labels = _labels(builder, windows.take(used))  # (B, K, O)
        errors[""].add(labels, forecast(model, builder, windows, indices)[indices >= 0])
        for name, baseline in baselines.items():
            transformed = baseline.forecast(windows.origins[used])
            errors[name].add(labels, builder.target.inverse(transformed))
    notes = tuple(
        f"{name}: {note}"
        for name, baseline in baselines.items()
        for note in _baseline_notes(baseline, windows)
    )
    merged = {name: _over_processes(one, world_size).result() for name, one in errors.items()}
    return Evaluation(
        windows=len(windows),
        model=merged[""],
        baselines=tuple((name, merged[name]) for name in baselines),
        notes=notes,
    )


def forecast(
    model: nn.Module, builder: BatchBuilder, windows: WindowIndex, indices: np.ndarray
) -> np.ndarray:
    """Returns the model's quantiles in original units, (B, K, O, Q) float64; NaN in empty places.

    Args:
        model: In evaluation mode; call this under `torch.no_grad`.
        builder: Makes batches of windows.
        windows: Windows of a table.
        indices: (B,) positions in `windows`, -1 for an empty place.
    """
    parameter = next(model.parameters())
    batch = builder.build(windows, indices)
    prediction = model(batch.inputs.to(parameter.device, parameter.dtype))  # (B, K, O, Q)
    return builder.to_original_units(prediction.double().cpu().numpy(), windows, indices)


def _baseline_notes(baseline: Baseline, windows: WindowIndex) -> tuple[str, ...]:
    """What was put in place of something else in a baseline."""
    fallbacks = baseline.fallbacks(windows.origins)
    if not fallbacks:
        return baseline.notes
    return (
        *baseline.notes,
        f"{fallbacks:,} steps take the last value: the row they need is not in the segment",
    )


def _without_nan(value: Any) -> Any:
    """Replaces numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _labels(builder: BatchBuilder, windows: WindowIndex) -> np.ndarray:
    """(B, K, O) targets in original units; NaN where there is no label."""
    table = builder.table
    rows = windows.origins[:, None] + np.arange(1, builder.window.horizon + 1)  # (B, K)
    labels = builder.target.inverse(table.targets[rows])
    return np.where(table.synthetic[rows][..., None], np.nan, labels)


def _over_processes(errors: ForecastErrors, world_size: int) -> ForecastErrors:
    """Adds up the sums of all processes."""
    if world_size == 1:
        return errors
    parts: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(parts, errors)
    total = parts[0]
    for part in parts[1:]:
        total.merge(part)
    return total
