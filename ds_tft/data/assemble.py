"""Cleaned rows and a fitted preprocessor to a table. Letters: N rows, S series, V variables, O targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ds_tft.data.bar_features import BarFeatures
from ds_tft.data.calendar import calendar_values
from ds_tft.data.categories import unseen_line
from ds_tft.data.preprocessor import SERIES, Preprocessor
from ds_tft.data.raw import CleanRows, static_codes, static_values
from ds_tft.data.rows import Rows
from ds_tft.data.table import Table
from ds_tft.errors import DataError

Floats = NDArray[np.float64]

MOST_SCALES = 1e18
"""Largest distance of a target from its centre, in scales: its square still fits float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembled:
    """A table, and what was noticed while filling it."""

    table: Table
    lines: tuple[str, ...]


def assemble(clean: CleanRows, features: BarFeatures | None, preprocessor: Preprocessor) -> Assembled:
    """Scales and encodes rows into a table.

    Args:
        clean: Cleaned rows.
        features: Their bar features, where the layout has bars.
        preprocessor: The fitted state.

    Returns:
        The table, and lines about clipped values and unseen categories.

    Raises:
        DataError: A target lies outside its transform or beyond all sense, or a weight is missing or
            negative.
    """
    rows, roles = clean.rows, preprocessor.layout.roles
    numbers = preprocessor.series_numbers(clean.raw.ids.keys)  # (S,)
    series = numbers[rows.series]  # (N,) as numbered at training
    observed, clipped = preprocessor.observed_scaler.transform(
        observed_values(rows, features, roles.observed_reals), series, preprocessor.clip
    )
    known, clipped_known = preprocessor.known_scaler.transform(
        columns(rows, roles.known_reals), series, preprocessor.clip
    )
    statics, clipped_statics = _static_reals(clean, preprocessor, numbers)
    flags, known_flags = _flags(clean, preprocessor)
    calendar = calendar_values(rows.times, preprocessor.layout.calendar, preprocessor.layout.zone)
    categories, unseen = _categories(clean, preprocessor)
    center, scale = preprocessor.target_scaler.of_series(numbers)
    history = preprocessor.target_scaler.forward(columns(rows, roles.target))
    _refuse_extremes(rows, roles.target, history, center, scale)
    weights = _weights(rows, roles.weight)
    table = Table(
        times=rows.times,
        series_of_row=rows.series,
        series_keys=clean.raw.ids.keys,
        segments=rows.segments,
        targets=preprocessor.target_scaler.forward(columns(clean.raw.rows, roles.target)),
        history=history,
        observed_reals=np.concatenate([observed, flags], axis=1),
        observed_categories=_stack(categories, roles.observed_categories, rows.num_rows),
        known_reals=np.concatenate([known, known_flags, calendar], axis=1),
        known_categories=_stack(categories, roles.known_categories, rows.num_rows),
        static_reals=statics,
        static_categories=_stack(categories, preprocessor.layout.static_categories, len(clean.raw.ids.keys)),
        weights=weights,
        usable=clean.filled.usable,
        synthetic=rows.synthetic,
        center=center,
        scale=scale,
    )
    clip_counts = {**clipped, **clipped_known, **clipped_statics}
    lines = [unseen_line(name, counts) for name, counts in unseen.items() if counts]
    if clip_counts:
        lines.append(_clip_line(clip_counts, preprocessor.clip))
    if not_labels := int(((weights == 0) & ~rows.synthetic).sum()):
        lines.append(f"weights: {not_labels:,} rows of weight 0 are no labels")
    return Assembled(table=table, lines=tuple(lines))


def columns(rows: Rows, names: tuple[str, ...]) -> Floats:
    """Real columns side by side: (N, V)."""
    values = np.empty((rows.num_rows, len(names)))
    for v, name in enumerate(names):
        values[:, v] = rows.reals[name]
    return values


def observed_values(rows: Rows, features: BarFeatures | None, names: tuple[str, ...]) -> Floats:
    """Observed reals of the file, then bar features: (N, V)."""
    own = columns(rows, names)
    if features is None:
        return own
    return features.values if not names else np.concatenate([own, features.values], axis=1)


def id_codes(
    clean: CleanRows, preprocessor_ids: tuple[str, ...]
) -> dict[str, tuple[NDArray[np.int32], tuple[str, ...]]]:
    """Codes of the series in each id category, and the codes' values: (S,) each."""
    keys = clean.raw.ids.keys
    if preprocessor_ids == (SERIES,) and keys == ((),):
        keys = (("",),)
    found = {}
    for position, name in enumerate(preprocessor_ids):
        values = sorted({key[position] for key in keys})
        number = {value: code for code, value in enumerate(values)}
        found[name] = (np.array([number[key[position]] for key in keys], dtype=np.int32), tuple(values))
    return found


def _categories(
    clean: CleanRows, preprocessor: Preprocessor
) -> tuple[dict[str, NDArray[np.int32]], dict[str, dict[str, int]]]:
    """Encodes every category: (N,) or, for static ones, (S,) each; and counts unseen values."""
    layout, roles = preprocessor.layout, preprocessor.layout.roles
    own = id_codes(clean, layout.id_categories)
    statics = static_codes(clean.raw.rows, roles.static_categories, len(clean.raw.ids.keys))  # (S, V)
    for v, name in enumerate(roles.static_categories):
        own[name] = (statics[:, v], clean.raw.categories[name])
    for name in roles.observed_categories + roles.known_categories:
        own[name] = (clean.rows.categories[name], clean.raw.categories[name])
    encoded, unseen = {}, {}
    for name, (codes, values) in own.items():
        encoded[name], unseen[name] = preprocessor.categories[name].encode(codes, values)
    return encoded, unseen


def _static_reals(
    clean: CleanRows, preprocessor: Preprocessor, numbers: NDArray[np.int64]
) -> tuple[NDArray[np.float32], dict[str, int]]:
    """Scales the statics of each series, those of the file, then those of its bars at training: (S, V)."""
    own = static_values(clean.raw.rows, preprocessor.layout.roles.static_reals, len(numbers))
    values = own
    if preprocessor.layout.bars is not None:
        at_training = np.array(preprocessor.bar_statics, dtype=np.float64)  # None becomes NaN
        unseen = np.full((1, at_training.shape[1]), np.nan)
        values = np.concatenate([own, np.concatenate([at_training, unseen])[numbers]], axis=1)
    return preprocessor.static_scaler.transform(values, numbers, preprocessor.clip)


def _flags(clean: CleanRows, preprocessor: Preprocessor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Indicators of missing values: of observed inputs, of known ones."""
    filled, known = clean.filled, preprocessor.layout.roles.known_reals
    is_known = np.array([name in known for name in filled.indicator_columns], dtype=np.bool_)
    values = filled.indicators.astype(np.float32)
    return values[:, ~is_known], values[:, is_known]


def _weights(rows: Rows, name: str | None) -> NDArray[np.float32]:
    """Weights of the rows, (N,); 1 where there is no weight column.

    Raises:
        DataError: A weight is missing, negative or too large for float32.
    """
    if name is None:
        return np.ones(rows.num_rows, dtype=np.float32)
    weights = np.where(rows.synthetic, np.nan_to_num(rows.reals[name]), rows.reals[name])
    bad = ~((weights >= 0) & (weights <= np.finfo(np.float32).max))
    if bad.any():
        row = int(bad.argmax())
        raise DataError(
            f"data.weight: column '{name}' must hold numbers of 0 or more and below 3e38, "
            f"got {weights[row]:g} in {rows.place(row)} and {int(bad.sum()) - 1} more; correct them"
        )
    return weights.astype(np.float32)


def _refuse_extremes(
    rows: Rows, names: tuple[str, ...], history: Floats, center: Floats, scale: Floats
) -> None:
    """Refuses targets (N, O) so far from the centre of their series (S, O) that float32 does not hold them.

    Raises:
        DataError: There is one.
    """
    for o, name in enumerate(names):
        with np.errstate(over="ignore"):
            distance = np.abs(history[:, o] - center[rows.series, o]) / scale[rows.series, o]
        far = distance > MOST_SCALES
        if far.any():
            row = int(far.argmax())
            raise DataError(
                f"target '{name}', {rows.place(row)}: {distance[row]:g} times the usual size away from the "
                f"centre of the training rows, got {rows.reals[name][row]:g}; correct it"
            )


def _stack(encoded: dict[str, NDArray[np.int32]], names: tuple[str, ...], length: int) -> NDArray[np.int32]:
    """Categories side by side: (N, V) or (S, V)."""
    if not names:
        return np.empty((length, 0), dtype=np.int32)
    return np.stack([encoded[name] for name in names], axis=1)


def _clip_line(counts: dict[str, int], clip: float | None) -> str:
    """Says how many scaled values were limited."""
    most = sorted(counts.items(), key=lambda item: -item[1])[:3]
    named = ", ".join(f"{name} {count:,}" for name, count in most)
    total = sum(counts.values())
    limit = "the range of float32" if clip is None else f"{clip} scales"
    return f"scaling: {total:,} values of {len(counts)} inputs limited to {limit} (most: {named})"
