"""The errors of a model and of the baselines on the same windows, in original units.

Letters: B batch, K horizon steps, O targets, Q quantiles.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch import nn

from ds_tft.data.batches import BatchBuilder
from ds_tft.data.sampler import evaluation_batches
from ds_tft.data.windows import WindowIndex
from ds_tft.forecast.baselines import Baseline
from ds_tft.forecast.metrics import ErrorReport, Floats, ForecastErrors
from ds_tft.forecast.scaled_errors import ScaledErrors, ScaledReport, SeasonalScale

Progress = Callable[[NDArray[np.int64]], Iterable[NDArray[np.int64]]]
"""Passes on the batches of a matrix, row by row, and shows how far they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledComparison:
    """SQL and MASE of the model and of the baselines."""

    season: int
    """Rows per season of the naive forecast that sets the scale."""
    model: ScaledReport
    baselines: tuple[tuple[str, ScaledReport], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Errors over the windows of one period."""

    period: str = "test"
    """The split, or the range of origins."""
    windows: int
    model: ErrorReport
    baselines: tuple[tuple[str, ErrorReport], ...]
    scaled: ScaledComparison | None = None
    """None where the step of the time column has no season."""
    notes: tuple[str, ...] = ()


def write_evaluation(path: Path, evaluation: Evaluation) -> None:
    """Writes the evaluation as strict JSON; a figure that nothing stands behind is null.

    Arrays of figures per series stay out: the file does not grow with the data.
    """
    text = json.dumps(_for_json(asdict(evaluation)), indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def evaluate(
    model: nn.Module,
    builder: BatchBuilder,
    windows: WindowIndex,
    quantiles: Sequence[float],
    baselines: dict[str, Baseline],
    *,
    batch_size: int,
    scale: SeasonalScale | None = None,
    rank: int = 0,
    world_size: int = 1,
    progress: Progress = iter,
) -> Evaluation:
    """Forecasts every window once, spread over the processes, and compares with what came.

    Args:
        model: The model; left in evaluation mode.
        builder: Makes batches of windows.
        windows: The windows, at least one.
        quantiles: The model's levels, ascending.
        baselines: By name.
        batch_size: Windows per forward.
        scale: Scale of each series for SQL and MASE; None leaves these out.
        rank: This process.
        world_size: Number of processes; all of them must call this, in a process group if there are several.
        progress: Shows how far it is.

    Returns:
        The same on every process.
    """
    model.eval()
    num_targets = builder.table.targets.shape[1]
    errors = {name: _Errors(quantiles, num_targets, scale) for name in ("", *baselines)}
    for indices in progress(evaluation_batches(len(windows), batch_size, rank, world_size)):
        used = indices[indices >= 0]
        if not len(used):
            continue
        origins = windows.origins[used]
        labels = horizon_labels(builder, origins)  # (B, K, O)
        series = builder.table.series_of_row[origins]
        errors[""].add(labels, forecast(model, builder, windows, indices)[indices >= 0], series)
        for name, baseline in baselines.items():
            errors[name].add(labels, builder.target.inverse(baseline.forecast(origins)), series)
    merged = {name: _over_processes(one, world_size) for name, one in errors.items()}
    return Evaluation(
        windows=len(windows),
        model=merged[""].errors.result(),
        baselines=tuple((name, merged[name].errors.result()) for name in baselines),
        scaled=_scaled(merged, scale),
        notes=tuple(
            f"{name}: {note}"
            for name, baseline in baselines.items()
            for note in _baseline_notes(baseline, windows)
        ),
    )


@torch.inference_mode()
def forecast(
    model: nn.Module, builder: BatchBuilder, windows: WindowIndex, indices: np.ndarray
) -> np.ndarray:
    """Returns the model's quantiles in original units, (B, K, O, Q) float64; NaN in empty places.

    Args:
        model: In evaluation mode.
        builder: Makes batches of windows.
        windows: Windows of a table.
        indices: (B,) positions in `windows`, -1 for an empty place.
    """
    parameter = next(model.parameters())
    batch = builder.build(windows, indices)
    prediction = model(batch.inputs.to(parameter.device, parameter.dtype))  # (B, K, O, Q)
    return builder.to_original_units(prediction.double().cpu().numpy(), windows, indices)


def horizon_labels(builder: BatchBuilder, origins: NDArray[np.int64]) -> Floats:
    """Returns the targets after each origin (B,) in original units, (B, K, O), NaN where there is none."""
    table = builder.table
    rows = origins[:, None] + np.arange(1, builder.window.horizon + 1)  # (B, K)
    labels = builder.target.inverse(table.targets[rows])
    return np.where(table.synthetic[rows][..., None], np.nan, labels)


class _Errors:
    """Errors in original units and, where there is a scale, in units of it. Instances can be pickled."""

    def __init__(self, quantiles: Sequence[float], num_targets: int, scale: SeasonalScale | None) -> None:
        self.errors = ForecastErrors(quantiles, num_targets)
        self.scaled = None if scale is None else ScaledErrors(quantiles, scale.error)

    def add(self, labels: Floats, forecasts: Floats, series: NDArray[np.integer]) -> None:
        """Adds a batch: (B, K, O), (B, K, O, Q), (B,)."""
        self.errors.add(labels, forecasts)
        if self.scaled is not None:
            self.scaled.add(labels, forecasts, series)

    def merge(self, other: _Errors) -> None:
        """Adds what another process has summed."""
        self.errors.merge(other.errors)
        if self.scaled is not None and other.scaled is not None:
            self.scaled.merge(other.scaled)


def _over_processes(errors: _Errors, world_size: int) -> _Errors:
    """Adds up the sums of all processes."""
    if world_size == 1:
        return errors
    parts: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(parts, errors)
    total = parts[0]
    for part in parts[1:]:
        total.merge(part)
    return total


def _scaled(errors: dict[str, _Errors], scale: SeasonalScale | None) -> ScaledComparison | None:
    """SQL and MASE of the model, whose name is empty, and of the baselines."""
    if scale is None:
        return None
    reports = {name: one.scaled.result() for name, one in errors.items() if one.scaled is not None}
    return ScaledComparison(
        season=scale.season,
        model=reports[""],
        baselines=tuple((name, report) for name, report in reports.items() if name),
    )


def _baseline_notes(baseline: Baseline, windows: WindowIndex) -> tuple[str, ...]:
    """What was put in place of something else in a baseline."""
    fallbacks = baseline.fallbacks(windows.origins)
    if not fallbacks:
        return baseline.notes
    return (
        *baseline.notes,
        f"{fallbacks:,} steps take the last value: the row they need is not in the segment",
    )


def _for_json(value: Any) -> Any:
    """Replaces numbers that JSON does not have, and leaves out arrays."""
    if isinstance(value, dict):
        return {key: _for_json(item) for key, item in value.items() if not isinstance(item, np.ndarray)}
    if isinstance(value, (list, tuple)):
        return [_for_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
