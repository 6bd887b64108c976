"""Calendar features of the time column, as inputs that are known for the horizon too.

A feature that comes round (hour, month) becomes a point on the unit circle, so that 23 h lies next to 0 h.
Letters: N rows, V columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ds_tft.config.run import CalendarFeature
from ds_tft.data.frequency import BusinessDays, FixedStep, Frequency, Months, day_in_month
from ds_tft.data.schema import TimeKind
from ds_tft.data.times import DAY, HOUR, MINUTE, wall_time
from ds_tft.errors import ConfigError

BARS_CALENDAR: tuple[CalendarFeature, ...] = ("hour", "day_of_week", "day_of_month", "month", "is_month_end")
"""The calendar of bars: 9 columns."""


def calendar_columns(features: Sequence[CalendarFeature]) -> tuple[str, ...]:
    """Names the V columns of `calendar_values`: `*_sin` and `*_cos` of a cyclic feature, one of a flag."""
    return tuple(
        column
        for feature in features
        for column in ((feature,) if feature.startswith("is_") else (f"{feature}_sin", f"{feature}_cos"))
    )


def check_calendar(features: Sequence[CalendarFeature], kind: TimeKind) -> None:
    """Refuses calendar features of a time column that has no calendar.

    Raises:
        ConfigError: The time column holds integers.
    """
    if features and kind is TimeKind.INDEX:
        raise ConfigError(
            f"data.calendar: an integer time column has no calendar, got {list(features)}; "
            "use 'none', or name a column of timestamps as data.time"
        )


def auto_calendar(frequency: Frequency) -> tuple[CalendarFeature, ...]:
    """Picks the features that vary at this step; none for an integer time column or whole years."""
    if isinstance(frequency, BusinessDays):
        return ("day_of_week", "day_of_month", "month") if frequency.count % 5 else ("week_of_year", "month")
    if isinstance(frequency, Months):
        if frequency.count % 12 == 0:
            return ()
        return ("quarter",) if frequency.count % 3 == 0 else ("month", "quarter")
    if not isinstance(frequency, FixedStep) or frequency.count >= 360 * DAY:
        return ()
    if frequency.count < HOUR or frequency.count % HOUR:
        return ("minute", "hour", "day_of_week", "day_of_month", "month")
    if frequency.count % DAY:
        return ("hour", "day_of_week", "day_of_month", "month")
    return (
        ("day_of_week", "day_of_month", "month") if frequency.count % (7 * DAY) else ("week_of_year", "month")
    )


def calendar_values(
    times: NDArray[np.int64], features: Sequence[CalendarFeature], zone: str | None
) -> NDArray[np.float32]:
    """Computes calendar features.

    Args:
        times: (N,) microseconds since 1970: UTC if `zone` is given, else read as they are.
        features: Which features.
        zone: Zone of the clock and calendar to read; None for times without a zone.

    Returns:
        (N, V) in the order of `calendar_columns`; sines and cosines within [-1, 1], flags 0 or 1.

    Raises:
        ConfigError: There is no such zone.
    """
    wall = wall_time(times, zone)
    columns: list[NDArray[np.float64]] = []
    for feature in features:
        if feature.startswith("is_"):
            columns.append(_flag(feature, wall // DAY))
        else:
            angle = 2 * np.pi * _turn(feature, wall)
            # Rounded so that sin(pi) is 0: a column that never varies must be seen to be constant.
            columns += [np.sin(angle).round(9), np.cos(angle).round(9)]
    values = np.empty((len(times), len(columns)), dtype=np.float32)  # (N, V)
    for i, column in enumerate(columns):
        values[:, i] = column
    return values


def _flag(feature: CalendarFeature, days: NDArray[np.int64]) -> NDArray[np.float64]:
    """(N,) 0 or 1."""
    if feature == "is_weekend":
        return np.asarray(_weekday(days) >= 5, dtype=np.float64)
    month_day = 1 if feature == "is_month_start" else 31
    return np.asarray(days == day_in_month(_periods(days, "M"), month_day), dtype=np.float64)


def _turn(feature: CalendarFeature, wall: NDArray[np.int64]) -> NDArray[np.float64]:
    """(N,) share of the circle that is done, from 0 to below 1."""
    days = wall // DAY
    match feature:
        case "minute":
            return wall // MINUTE % 60 / 60
        case "hour":
            return wall // HOUR % 24 / 24
        case "day_of_week":
            return _weekday(days) / 7
        case "day_of_month":
            return _share_of_period(days, "M")
        case "day_of_year":
            return _share_of_period(days, "Y")
        case "week_of_year":
            thursdays = days - _weekday(days) + 3  # an ISO week belongs to the year of its Thursday
            return (thursdays - _first_day(_periods(thursdays, "Y"), "Y")) // 7 / 53
        case "month":
            return _periods(days, "M") % 12 / 12
        case "quarter":
            return _periods(days, "M") % 12 // 3 / 4
    raise AssertionError(f"{feature} is not cyclic")


def _weekday(days: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 for Monday to 6 for Sunday; 1970-01-01 was a Thursday."""
    return (days + 3) % 7


def _periods(days: NDArray[np.int64], unit: str) -> NDArray[np.int64]:
    """Months (`M`) or years (`Y`) since 1970."""
    return days.astype("datetime64[D]").astype(f"datetime64[{unit}]").astype(np.int64)


def _first_day(periods: NDArray[np.int64], unit: str) -> NDArray[np.int64]:
    """Days since 1970 of the first day of months or years."""
    return periods.astype(f"datetime64[{unit}]").astype("datetime64[D]").astype(np.int64)


def _share_of_period(days: NDArray[np.int64], unit: str) -> NDArray[np.float64]:
    """Days of the month or year that are over, as a share of its own length."""
    periods = _periods(days, unit)
    first = _first_day(periods, unit)
    return (days - first) / (_first_day(periods + 1, unit) - first)
