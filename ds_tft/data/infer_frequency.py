"""Which step the time column has, from its rows. Letter: N rows, sorted by series then time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ds_tft.data.frequency import BusinessDays, FixedStep, Frequency, IndexStep, Months, day_in_month
from ds_tft.data.schema import TimeKind
from ds_tft.data.times import DAY, HOUR, MINUTE, SECOND, wall_time
from ds_tft.errors import ConfigError, DataError


def resolve_frequency(
    setting: str, times: NDArray[np.int64], series: NDArray[np.int32], kind: TimeKind, zone: str | None = None
) -> Frequency:
    """Carries out the setting `data.frequency`: infers the step, or checks the one given and finds its phase.

    Args:
        setting: `auto`, or any form that `Frequency.parse` reads.
        times: (N,) int64 times, sorted by series then time.
        series: (N,) series of each row.
        kind: What the time column holds.
        zone: Zone of the clock by which days and months are told; None for times without a zone.

    Raises:
        ConfigError: The step is of unknown form, or does not suit the kind of time.
        DataError: No step can be inferred.
    """
    if setting == "auto":
        return infer_frequency(times, series, kind, zone)
    frequency = Frequency.parse(setting)
    if isinstance(frequency, IndexStep) != (kind is TimeKind.INDEX):
        holds, fit = ("integers", "index") if kind is TimeKind.INDEX else ("dates or timestamps", "1h")
        raise ConfigError(
            f"data.frequency: the time column holds {holds}, got {setting!r}; "
            f"use 'auto' or a step such as '{fit}'"
        )
    return frequency.in_zone(zone).anchored(times)


def infer_frequency(
    times: NDArray[np.int64], series: NDArray[np.int32], kind: TimeKind, zone: str | None = None
) -> Frequency:
    """Infers the step as the most common difference of neighbouring rows within a series.

    Months are recognised by their unequal lengths, business days by daily rows that cross weekends without
    one on them. Where hardly any difference occurs twice, as with times that jitter, they are rounded first.

    Args:
        times: (N,) int64 times, sorted by series then time.
        series: (N,) series of each row.
        kind: What the time column holds.
        zone: Zone of the clock by which days and months are told; None for times without a zone.

    Raises:
        DataError: No series has rows at two different times.
    """
    pairs = np.flatnonzero((np.diff(series) == 0) & (np.diff(times) > 0))
    if len(pairs) == 0:
        raise DataError(
            "data.time: no series has rows at two different times, so no step can be inferred; "
            "set data.frequency, or check data.series"
        )
    if kind is TimeKind.INDEX:
        return IndexStep(count=_most_common(times[pairs + 1] - times[pairs])[0]).anchored(times)
    step = _clock_step(times[pairs + 1] - times[pairs])
    if step < DAY:
        return FixedStep(count=step).anchored(times)
    wall = wall_time(times, zone)
    step = _clock_step(_positive(wall[pairs + 1] - wall[pairs]))
    if step >= 28 * DAY and (months := _as_months(wall, pairs, step)) is not None:
        return months.in_zone(zone).anchored(times)
    if step == DAY and _skips_weekends(wall, pairs):
        return BusinessDays(zone=zone)
    return FixedStep(count=step).in_zone(zone).anchored(times)


def _positive(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The values above 0; a clock set back can make two rows equal on the wall."""
    return values[values > 0]


def _most_common(values: NDArray[np.int64]) -> tuple[int, float]:
    """The most common value (the smallest of several) and its share."""
    distinct, rows = np.unique(values, return_counts=True)
    return int(distinct[rows.argmax()]), float(rows.max() / len(values))


def _clock_step(differences: NDArray[np.int64]) -> int:
    """Most common difference, after rounding to a unit of the clock where hardly any occurs twice."""
    step, share = _most_common(differences)
    if share >= 0.1:
        return step
    for unit in (SECOND, MINUTE, HOUR, DAY):
        units, share = _most_common((differences + unit // 2) // unit)
        if units > 0 and share > 0.5:
            return units * unit
    return step


def _as_months(wall: NDArray[np.int64], pairs: NDArray[np.int64], step: int) -> Months | None:
    """The step in months, if months explain more differences than the fixed step does."""
    days = wall // DAY
    months = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    count, share = _most_common(months[pairs + 1] - months[pairs])
    fixed_share = float(np.mean(wall[pairs + 1] - wall[pairs] == step))
    # The later day of several: rows on the last day of short months only are at month end.
    matches = [int((day_in_month(months, day) == days).sum()) for day in range(31, 0, -1)]
    day = 31 - int(np.argmax(matches))
    regular = max(matches) == len(days)
    if count > 0 and (share > fixed_share or (share == fixed_share and regular)):
        return Months(count=count, day=day)
    return None


def _skips_weekends(wall: NDArray[np.int64], pairs: NDArray[np.int64]) -> bool:
    """Whether rows lie on Monday to Friday only and at least one pair of neighbours spans a weekend."""
    dates = (wall // DAY).astype("datetime64[D]")
    if not np.is_busday(dates).all():
        return False
    apart = (dates[pairs + 1] - dates[pairs]).astype(np.int64)
    return bool((apart > np.busday_count(dates[pairs], dates[pairs + 1])).any())
