"""Scaling of real inputs and of the target: fitted on training rows, saved with the model, undone exactly.

Letters: N rows, S series, G = S+1 or 1 rows of statistics (the last one for unseen series), V columns,
O targets, M segments, H horizon.
"""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, FiniteFloat, model_validator

from ds_tft.config.run import TargetScaling, WindowSettings
from ds_tft.data.changes import Anchored, change_statistics, running_mean, segment_of_rows
from ds_tft.data.statistics import Floats, GroupStatistics, Kind, group_statistics
from ds_tft.errors import DataError

Transform = Literal["none", "log", "log1p"]
Anchor = Literal["none", "last", "mean"]
Matrix = tuple[tuple[FiniteFloat, ...], ...]

_CHUNK_ROWS = 16_384


class RealScaler(BaseModel):
    """Centre and scale of the real inputs, one row per series or one row in all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[str, ...]
    center: Matrix  # (G, V)
    scale: Matrix  # (G, V)
    constant_columns: tuple[str, ...] = ()
    """Columns without spread in the training rows: only centred."""
    empty_columns: tuple[str, ...] = ()
    """Columns without a value in the training rows: left as they are."""
    fallback_series: int = 0
    """Series with too few training values in some column, which takes the statistics of all series there."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_matrices(self.names, self.center, self.scale)
        return self

    @classmethod
    def fit(
        cls,
        values: Floats,
        series: NDArray[np.integer],
        train: NDArray[np.bool_],
        *,
        names: tuple[str, ...],
        kind: Kind,
        per_series: bool,
        num_series: int,
    ) -> Self:
        """Fits in float64, column by column.

        Args:
            values: (N, V) raw values; NaN where missing.
            series: (N,) series of each row.
            train: (N,) True for training rows.
            names: V column names.
            kind: See `ScalingSettings.reals`.
            per_series: One row of statistics per series and one of all training rows for unseen series,
                or only the latter.
            num_series: S.

        Returns:
            The fitted scaler.

        Raises:
            DataError: Values of a column are too large for statistics.
        """
        groups = num_series if per_series and kind != "none" else 0
        rows = np.flatnonzero(train)
        fitted = [group_statistics(values[rows, v], series[rows], groups, kind) for v in range(len(names))]
        for v, name in enumerate(names):
            fitted[v].check(f"column '{name}'", values[rows, v])
        return cls(
            names=names,
            center=_matrix([column.center for column in fitted], groups + 1),
            scale=_matrix([column.scale for column in fitted], groups + 1),
            constant_columns=tuple(n for n, c in zip(names, fitted, strict=True) if c.constant and c.count),
            empty_columns=tuple(n for n, c in zip(names, fitted, strict=True) if c.count == 0),
            fallback_series=_num_fallen_back(fitted),
        )

    def transform(
        self, values: Floats, series: NDArray[np.integer], clip: float | None
    ) -> tuple[NDArray[np.float32], dict[str, int]]:
        """Scales in float64 and rounds to float32; NaN becomes 0, which is the centre.

        Args:
            values: (N, V) raw values; NaN where missing.
            series: (N,) series of each row as numbered in `fit`; -1 for an unseen one.
            clip: Largest magnitude of the result; None leaves the range of float32.

        Returns:
            The scaled values (N, V), and the number of clipped values of each column that had any.
        """
        center, scale = np.array(self.center), np.array(self.scale)  # (G, V)
        limit = float(np.finfo(np.float32).max) if clip is None else clip
        scaled = np.empty(values.shape, dtype=np.float32)
        clipped = np.zeros(len(self.names), dtype=np.int64)
        for first in range(0, len(values), _CHUNK_ROWS):
            rows = slice(first, first + _CHUNK_ROWS)
            group = _statistics_row(series[rows], len(center))
            with np.errstate(over="ignore"):  # an infinite one is limited and counted like any other
                chunk = (values[rows] - center[group]) / scale[group]
            clipped += (np.abs(chunk) > limit).sum(axis=0)
            scaled[rows] = np.nan_to_num(np.clip(chunk, -limit, limit), copy=False)
        counts = zip(self.names, clipped.tolist(), strict=True)
        return scaled, {name: count for name, count in counts if count}


def transform_targets(values: Floats, transform: Transform, names: tuple[str, ...]) -> Floats:
    """Applies the transform that comes before scaling.

    Args:
        values: (N, O) raw targets; NaN where missing.
        transform: `none`, `log` or `log1p`.
        names: O column names.

    Returns:
        (N, O) transformed targets, float64.

    Raises:
        DataError: A value lies outside the domain of the transform.
    """
    values = np.asarray(values, dtype=np.float64)
    if transform == "none":
        return values
    limit = 0.0 if transform == "log" else -1.0
    for name, column in zip(names, values.T, strict=True):
        bad = column[column <= limit]
        if len(bad):
            other = "'log1p' or 'none'" if transform == "log" else "'none'"
            raise DataError(
                f"target '{name}': transform '{transform}' needs values above {limit:g}, "
                f"got {len(bad)} of {len(column)} that are not, the first {bad[0]:g}; "
                f"set scaling.target.transform to {other}, or remove those rows"
            )
    return np.log(values) if transform == "log" else np.log1p(values)


class TargetScaler(BaseModel):
    """Brings the target to unit scale and predictions back.

    The label in model units is `(transformed target - anchor) / scale`. With anchor `none` the anchor is the
    centre and the scale that of the transformed target. With `last` or `mean` the scale is the root mean
    square of `target[t+k] - anchor[t]` over the steps k = 1..H, which is what the label consists of.

    A series that was not there in training, or had too few values, takes the statistics of all training rows;
    for the scale of changes, the median over the series, so that one large series does not set it. A constant
    series takes that scale too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[str, ...]
    transform: Transform
    anchor: Anchor
    center: Matrix  # (G, O) of the transformed target
    scale: Matrix  # (G, O) of the transformed target, or of its changes where anchored
    constant_columns: tuple[str, ...] = ()
    """Targets without spread (or change, where anchored) in the training rows: scale 1."""
    fallback_series: int = 0
    """Series with too few training values, which take the statistics of all series."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_matrices(self.names, self.center, self.scale)
        return self

    @classmethod
    def fit(
        cls,
        targets: Floats,
        history: Floats,
        series: NDArray[np.integer],
        train: NDArray[np.bool_],
        segments: NDArray[np.int64],
        *,
        names: tuple[str, ...],
        settings: TargetScaling,
        window: WindowSettings,
        num_series: int,
    ) -> Self:
        """Fits on the training rows.

        Args:
            targets: (N, O) transformed targets; NaN where there is no label.
            history: (N, O) the same as inputs: missing ones carried forward.
            series: (N,) series of each row.
            train: (N,) True for rows that may be training labels.
            segments: (M, 3) series, first row, row after the last; ordered.
            names: O column names.
            settings: With `transform` and `anchor` settled: neither is `auto`.
            window: Encoder length and horizon, over which changes are measured.
            num_series: S.

        Returns:
            The fitted scaler.

        Raises:
            DataError: A target has no value in the training rows, or values too large for statistics.
        """
        assert settings.transform != "auto", "settle `auto` first"
        assert settings.anchor != "auto", "settle `auto` first"
        groups = num_series if settings.per_series and settings.kind != "none" else 0
        segment = segment_of_rows(segments, len(targets))
        fitted = []
        for o, name in enumerate(names):
            labels = np.where(train, targets[:, o], np.nan)
            level = group_statistics(targets[train, o], series[train], groups, settings.kind)
            if level.count == 0:
                raise DataError(
                    f"target '{name}': no value in the training period, got {int(train.sum())} rows "
                    "without one; name another target or move the split"
                )
            if settings.anchor != "none" and settings.kind != "none":
                means = settings.anchor == "mean"
                anchors = running_mean(history[:, o], segments, window) if means else history[:, o]
                target = Anchored(labels, anchors, segment, series)
                level = change_statistics(level, target, window.horizon, settings.kind)
            level.check(f"target '{name}'", labels)
            fitted.append(level)
        return cls(
            names=names,
            transform=settings.transform,
            anchor=settings.anchor,
            center=_matrix([column.center for column in fitted], groups + 1),
            scale=_matrix([column.scale for column in fitted], groups + 1),
            constant_columns=tuple(n for n, c in zip(names, fitted, strict=True) if c.constant),
            fallback_series=_num_fallen_back(fitted),
        )

    def forward(self, values: Floats) -> Floats:
        """Transforms raw targets (N, O); neither anchors nor scales them.

        Raises:
            DataError: A value lies outside the domain of the transform.
        """
        return transform_targets(values, self.transform, self.names)

    def inverse(self, values: Floats) -> Floats:
        """Undoes `forward` on transformed values of any shape, in float64."""
        values = np.asarray(values, dtype=np.float64)
        if self.transform == "none":
            return values
        return np.exp(values) if self.transform == "log" else np.expm1(values)

    def of_series(self, series: NDArray[np.integer]) -> tuple[Floats, Floats]:
        """Centre and scale of series as numbered in `fit`, -1 for an unseen one: (S,) -> (S, O), (S, O)."""
        center, scale = np.array(self.center), np.array(self.scale)
        group = _statistics_row(series, len(center))
        return center[group], scale[group]


def _matrix(columns: list[Floats], num_rows: int) -> Matrix:
    """Stacks V columns of (G,) into plain rows."""
    stacked = np.stack(columns, axis=1) if columns else np.empty((num_rows, 0))
    return tuple(tuple(row) for row in stacked.tolist())


def _num_fallen_back(columns: list[GroupStatistics]) -> int:
    """Number of series that fell back in some column."""
    return int(np.any([column.fell_back for column in columns], axis=0).sum()) if columns else 0


def _statistics_row(series: NDArray[np.integer], num_rows: int) -> NDArray[np.integer]:
    """Row of the statistics for each series; the last one serves the unseen."""
    last = num_rows - 1
    return np.full(len(series), last) if last == 0 else np.where(series < 0, last, series)


def _check_matrices(names: tuple[str, ...], center: Matrix, scale: Matrix) -> None:
    """Refuses statistics that are not one number above 0 (scale), or one number (centre), per column."""
    if len(center) != len(scale) or any(len(row) != len(names) for row in (*center, *scale)):
        raise ValueError(f"center and scale must be as many rows of {len(names)} numbers")
    if any(number <= 0 for row in scale for number in row):
        raise ValueError("scale must be above 0")
