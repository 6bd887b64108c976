from datetime import UTC, date, datetime, timedelta
from typing import get_args
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import micros

from ds_tft.config.run import CalendarFeature
from ds_tft.data.calendar import (
    BARS_CALENDAR,
    auto_calendar,
    calendar_columns,
    calendar_values,
    check_calendar,
)
from ds_tft.data.frequency import Frequency
from ds_tft.data.schema import TimeKind
from ds_tft.data.times import HOUR
from ds_tft.errors import ConfigError

ALL = get_args(CalendarFeature)


def days_in_month(day: date) -> int:
    return ((day.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)).day


def turn(feature: str, local: datetime) -> float:
    """The share of the circle, by the standard library."""
    year_days = (date(local.year, 12, 31) - date(local.year, 1, 1)).days + 1
    return {
        "minute": local.minute / 60,
        "hour": local.hour / 24,
        "day_of_week": local.weekday() / 7,
        "day_of_month": (local.day - 1) / days_in_month(local.date()),
        "day_of_year": (local.timetuple().tm_yday - 1) / year_days,
        "week_of_year": (local.isocalendar().week - 1) / 53,
        "month": (local.month - 1) / 12,
        "quarter": (local.month - 1) // 3 / 4,
    }[feature]


def flag(feature: str, local: datetime) -> bool:
    return {
        "is_weekend": local.weekday() >= 5,
        "is_month_start": local.day == 1,
        "is_month_end": local.day == days_in_month(local.date()),
    }[feature]


@settings(deadline=None)
@given(
    st.lists(st.integers(-(10**9), 4 * 10**9), min_size=1, max_size=10),
    st.sampled_from(["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe"]),
)
def test_values_agree_with_the_standard_library(seconds, zone):
    values = calendar_values(np.array(seconds) * 10**6, ALL, zone)
    by_name = dict(zip(calendar_columns(ALL), values.T, strict=True))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for i, second in enumerate(seconds):
        local = (epoch + timedelta(seconds=second)).astimezone(ZoneInfo(zone))
        for feature in ALL:
            if feature.startswith("is_"):
                assert by_name[feature][i] == flag(feature, local)
            else:
                angle = 2 * np.pi * turn(feature, local)
                assert by_name[f"{feature}_sin"][i] == pytest.approx(np.sin(angle), abs=1e-6)
                assert by_name[f"{feature}_cos"][i] == pytest.approx(np.cos(angle), abs=1e-6)


def test_every_hour_of_a_change_of_the_clock():
    times = np.arange(*micros("2024-10-26T22:00", "2024-10-27T04:00"), HOUR)  # the hour from 2 comes twice
    values = calendar_values(times, ["hour"], "Europe/Berlin")
    hours = np.round(np.arctan2(values[:, 0], values[:, 1]) / (2 * np.pi) * 24).astype(int) % 24
    assert hours.tolist() == [0, 1, 2, 2, 3, 4]
    spring = np.arange(*micros("2024-03-30T23:00", "2024-03-31T03:00"), HOUR)
    values = calendar_values(spring, ["hour"], "Europe/Berlin")
    hours = np.round(np.arctan2(values[:, 0], values[:, 1]) / (2 * np.pi) * 24).astype(int) % 24
    assert hours.tolist() == [0, 1, 3, 4]


def test_times_without_a_zone_are_read_as_they_are():
    values = calendar_values(
        micros("2024-02-29T06:00", "2024-03-02T18:00"), ["hour", "is_month_end", "is_weekend"], None
    )
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, [[1, 0, 1, 0], [-1, 0, 0, 1]], atol=1e-7)


def test_columns_of_cyclic_features_and_flags():
    assert calendar_columns(["hour", "is_weekend", "month"]) == (
        "hour_sin",
        "hour_cos",
        "is_weekend",
        "month_sin",
        "month_cos",
    )
    assert calendar_values(micros("2024-01-01"), [], None).shape == (1, 0)


def test_bars_have_nine_columns():
    assert len(calendar_columns(BARS_CALENDAR)) == 9
    assert calendar_values(micros("2024-01-01"), BARS_CALENDAR, None).shape == (1, 9)


@pytest.mark.parametrize(
    ("form", "features"),
    [
        ("1s", ("minute", "hour", "day_of_week", "day_of_month", "month")),
        ("90min", ("minute", "hour", "day_of_week", "day_of_month", "month")),
        ("1h", ("hour", "day_of_week", "day_of_month", "month")),
        ("1D", ("day_of_week", "day_of_month", "month")),
        ("1B", ("day_of_week", "day_of_month", "month")),
        ("5B", ("week_of_year", "month")),
        ("1W", ("week_of_year", "month")),
        ("1MS", ("month", "quarter")),
        ("3ME", ("quarter",)),
        ("12MS", ()),
        ("365D", ()),
        ("index", ()),
    ],
)
def test_auto_calendar(form, features):
    assert auto_calendar(Frequency.parse(form)) == features


@pytest.mark.parametrize("form", ["7min", "30min", "1h", "6h", "1D", "1B", "5B", "1W", "1MS", "3MS", "1ME"])
def test_every_automatic_feature_varies_at_its_step(form):
    frequency = Frequency.parse(form)
    grid = frequency.advance(micros("2024-01-31"), np.arange(36 if "M" in form else 10_000))
    for feature in auto_calendar(frequency):
        assert np.ptp(calendar_values(grid, [feature], None), axis=0).max() > 0.5, feature


def test_a_column_that_does_not_vary_is_exactly_constant():
    half_hours = Frequency.parse("30min").advance(micros("2024-01-01"), np.arange(100))
    assert np.ptp(calendar_values(half_hours, ["minute"], None), axis=0).tolist() == [0, 2]


def test_integers_have_no_calendar():
    check_calendar((), TimeKind.INDEX)
    check_calendar(("hour",), TimeKind.NAIVE)
    with pytest.raises(
        ConfigError, match=r"data.calendar: an integer time column has no calendar, got \['hour'\]"
    ):
        check_calendar(("hour",), TimeKind.INDEX)


def test_unknown_zone():
    with pytest.raises(ConfigError, match="data.timezone: unknown zone, got 'Mars'"):
        calendar_values(micros("2024-01-01"), ["hour"], "Mars")
