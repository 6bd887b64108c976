"""A parquet source to training data.

Letters: N rows, S series.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ds_tft.config.run import CalendarFeature, DataSettings, RunSettings
from ds_tft.data.assemble import assemble, columns, id_codes, observed_values
from ds_tft.data.bar_features import (
    BarFeatures,
    bar_feature_columns,
    compute_bar_features,
    compute_bar_statics,
)
from ds_tft.data.calendar import BARS_CALENDAR, auto_calendar, check_calendar
from ds_tft.data.categories import CategoryMap
from ds_tft.data.fit_target import fit_target
from ds_tft.data.frequency import Frequency
from ds_tft.data.infer import InferredRoles
from ds_tft.data.parquet import ParquetSource
from ds_tft.data.preprocessor import Layout, Preprocessor, StaticRow
from ds_tft.data.raw import CleanRows, clean_rows, read_rows, static_codes, static_values
from ds_tft.data.scaling import RealScaler, TargetScaler
from ds_tft.data.schema import TimeKind
from ds_tft.data.split import Split, SplitBounds, split_bounds
from ds_tft.data.statistics import Kind
from ds_tft.data.table import Table
from ds_tft.data.windows import WindowIndex, find_windows

GapPolicy = Literal["fill", "tolerate", "split", "error"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingData:
    """Everything that training and the evaluation after it need from the file."""

    table: Table
    preprocessor: Preprocessor
    bounds: SplitBounds
    windows: dict[Split, WindowIndex]
    train_rows: NDArray[np.bool_]  # (N,) rows that scalers and baselines may learn from
    lines: tuple[str, ...]
    """What was read, cleaned, dropped and noticed."""


def prepare_training(source: ParquetSource, inferred: InferredRoles, settings: RunSettings) -> TrainingData:
    """Reads, cleans and splits the data, and fits scalers and categories on the training rows.

    Args:
        source: The parquet data.
        inferred: The role of each column.
        settings: The run JSON.

    Returns:
        The training data.

    Raises:
        DataError: The data does not allow what the settings ask for.
        ConfigError: The settings do not suit the data.
    """
    data, roles = settings.data, inferred.roles
    bars = data.bars if data.features == "ohlcv" else None
    bar_columns = () if bars is None else bar_feature_columns(bars)
    raw = read_rows(source, roles, bar_columns)
    gaps = _gap_policy(data)
    clean = clean_rows(raw, roles, data, gaps=gaps, bars=bar_columns)
    layout = Layout(
        roles=roles,
        time_kind=raw.rows.kind,
        zone=data.timezone or raw.zone,
        frequency=clean.frequency.to_text(),
        gaps=gaps,
        calendar=_calendar(data, clean.frequency, raw.rows.kind),
        bars=bars,
        indicators=clean.filled.indicator_columns,
    )
    rows = clean.rows
    bounds = split_bounds(
        np.unique(rows.times[~rows.synthetic]), settings.split, rows.kind, raw.zone or "UTC"
    )
    train = (rows.times < bounds.train_end) & ~rows.synthetic
    features = None if bars is None else compute_bar_features(clean.raw.rows, bars)
    target_scaler, target_line = fit_target(clean, settings, train, roles.target, bars is not None)
    preprocessor = _fit(clean, features, layout, settings, train, target_scaler)
    assembled = assemble(clean, features, preprocessor)
    windows, report = find_windows(assembled.table, settings.window, bounds)
    lines = (
        *source_lines(source, clean),
        *bounds.lines(),
        *report.lines(),
        *_feature_lines(features),
        target_line,
        *_scaler_lines(preprocessor),
        *assembled.lines,
    )
    return TrainingData(
        table=assembled.table,
        preprocessor=preprocessor,
        bounds=bounds,
        windows=windows,
        train_rows=train,
        lines=lines,
    )


def _fit(
    clean: CleanRows,
    features: BarFeatures | None,
    layout: Layout,
    settings: RunSettings,
    train: NDArray[np.bool_],
    target_scaler: TargetScaler,
) -> Preprocessor:
    """Fits scalers and categories on the training rows (N,)."""
    rows, roles, scaling = clean.rows, layout.roles, settings.scaling
    num_series = len(clean.raw.ids.keys)
    statics, bar_rows = _fit_statics(clean, layout, scaling.reals, train)
    observed_names = roles.observed_reals + (() if features is None else features.names)

    def scaler(values: NDArray[np.float64], names: tuple[str, ...]) -> RealScaler:
        return RealScaler.fit(
            values,
            rows.series,
            train,
            names=names,
            kind=scaling.reals,
            per_series=scaling.per_series,
            num_series=num_series,
        )

    return Preprocessor(
        data=settings.data,
        window=settings.window,
        clip=scaling.clip,
        layout=layout,
        series_keys=clean.raw.ids.keys,
        static_scaler=statics,
        observed_scaler=scaler(observed_values(rows, features, roles.observed_reals), observed_names),
        known_scaler=scaler(columns(rows, roles.known_reals), roles.known_reals),
        target_scaler=target_scaler,
        categories=_fit_categories(clean, layout, train),
        bar_statics=bar_rows,
    )


def _fit_statics(
    clean: CleanRows, layout: Layout, kind: Kind, train: NDArray[np.bool_]
) -> tuple[RealScaler, tuple[StaticRow, ...]]:
    """Fits the scaler of the statics over series with training rows; also returns the bar statics."""
    num_series = len(clean.raw.ids.keys)
    values = static_values(clean.raw.rows, layout.roles.static_reals, num_series)  # (S, V)
    bar_rows: tuple[StaticRow, ...] = ()
    if layout.bars is not None:
        of_bars = compute_bar_statics(clean.raw.rows, layout.bars, train)
        bar_rows = tuple(
            tuple(value if math.isfinite(value) else None for value in row) for row in of_bars.tolist()
        )
        values = np.concatenate([values, of_bars], axis=1)
    scaler = RealScaler.fit(
        values,
        np.zeros(num_series, dtype=np.int32),
        _series_with_rows(clean, train),
        names=layout.static_reals,
        kind=kind,
        per_series=False,
        num_series=1,
    )
    return scaler, bar_rows


def _fit_categories(clean: CleanRows, layout: Layout, train: NDArray[np.bool_]) -> dict[str, CategoryMap]:
    """Fits the code of every category."""
    in_training = _series_with_rows(clean, train)  # (S,)
    maps = {
        name: CategoryMap.fit(codes, values, in_training)
        for name, (codes, values) in id_codes(clean, layout.id_categories).items()
    }
    roles, meaning = layout.roles, clean.raw.categories
    statics = static_codes(clean.raw.rows, roles.static_categories, len(in_training))  # (S, V)
    for v, name in enumerate(roles.static_categories):
        maps[name] = CategoryMap.fit(statics[:, v], meaning[name], in_training)
    for name in roles.observed_categories + roles.known_categories:
        maps[name] = CategoryMap.fit(clean.rows.categories[name], meaning[name], train)
    return maps


def _series_with_rows(clean: CleanRows, train: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(S,) True for series with a training row."""
    found = np.zeros(len(clean.raw.ids.keys), dtype=np.bool_)
    found[np.unique(clean.rows.series[train])] = True
    return found


def _gap_policy(data: DataSettings) -> GapPolicy:
    """Settles what `auto` means."""
    if data.gaps != "auto":
        return data.gaps
    return "tolerate" if data.features == "ohlcv" else "fill"


def _calendar(data: DataSettings, frequency: Frequency, kind: TimeKind) -> tuple[CalendarFeature, ...]:
    """Settles which calendar features there are."""
    if data.calendar == "none":
        return ()
    if data.calendar != "auto":
        check_calendar(data.calendar, kind)
        return data.calendar
    if kind is TimeKind.INDEX or data.known_reals or data.known_categories:
        return ()
    return BARS_CALENDAR if data.features == "ohlcv" else auto_calendar(frequency)


def source_lines(source: ParquetSource, clean: CleanRows) -> tuple[str, ...]:
    """Says what was read and cleaned, one line each."""
    files = f"{len(source.files)} files" if len(source.files) > 1 else "1 file"
    first = (
        f"rows: {source.num_rows:,} in {files}, {len(clean.raw.ids.keys):,} series, "
        f"step {clean.frequency.name}"
    )
    return (first, *clean.raw.notes, *clean.report.lines())


def _feature_lines(features: BarFeatures | None) -> tuple[str, ...]:
    """What was computed from bars."""
    return () if features is None else tuple(features.lines())


def _scaler_lines(preprocessor: Preprocessor) -> tuple[str, ...]:
    """What the scalers found odd."""
    scalers = [preprocessor.observed_scaler, preprocessor.known_scaler]
    if len(preprocessor.series_keys) > 1:  # every static is constant in a single series
        scalers.append(preprocessor.static_scaler)
    constant = [name for scaler in scalers for name in scaler.constant_columns]
    empty = [name for scaler in scalers for name in scaler.empty_columns]
    lines = []
    if constant:
        lines.append(f"scaling: constant in the training rows, only centred: {', '.join(constant)}")
    if empty:
        lines.append(f"scaling: without a value in the training rows: {', '.join(empty)}")
    if preprocessor.target_scaler.constant_columns:
        named = ", ".join(preprocessor.target_scaler.constant_columns)
        lines.append(f"scaling: target without a change in the training rows, left in its own unit: {named}")
    if preprocessor.target_scaler.fallback_series:
        lines.append(
            f"scaling: {preprocessor.target_scaler.fallback_series} series with too few training values take "
            "the target scale of all series"
        )
    return tuple(lines)
