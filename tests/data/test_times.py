from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import micros

from ds_tft.data.schema import TimeKind
from ds_tft.data.times import DAY, HOUR, MINUTE, from_wall_time, time_text, wall_time, zone_info
from ds_tft.errors import ConfigError

ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "Asia/Kathmandu",
    "UTC",
]
EPOCH = datetime(1970, 1, 1)
moments = st.lists(st.integers(-(10**9), 4 * 10**9), min_size=1, max_size=20)  # seconds, 1938 to 2096


@settings(deadline=None)
@given(moments, st.sampled_from(ZONES))
def test_wall_time_agrees_with_datetime(seconds, zone):
    times = np.array(seconds) * 10**6
    expected = []
    for second in seconds:
        local = (EPOCH + timedelta(seconds=second)).replace(tzinfo=UTC).astimezone(ZoneInfo(zone))
        expected.append((local.replace(tzinfo=None) - EPOCH) // timedelta(microseconds=1))
    assert wall_time(times, zone).tolist() == expected


@settings(deadline=None)
@given(moments, st.sampled_from(ZONES))
def test_from_wall_time_agrees_with_datetime(seconds, zone):
    expected = []
    for second in seconds:
        local = (EPOCH + timedelta(seconds=second)).replace(tzinfo=ZoneInfo(zone))
        expected.append((local.astimezone(UTC).replace(tzinfo=None) - EPOCH) // timedelta(microseconds=1))
    assert from_wall_time(np.array(seconds) * 10**6, zone).tolist() == expected


@pytest.mark.parametrize("zone", ZONES)
def test_every_quarter_hour_around_changes_of_the_clock(zone):
    times = np.arange(*micros("2023-01-01", "2024-01-01"), 15 * MINUTE)
    wall = wall_time(times, zone)
    oracle = [
        (EPOCH + timedelta(microseconds=int(t))).replace(tzinfo=UTC).astimezone(ZoneInfo(zone)) for t in times
    ]
    assert wall.tolist() == [(o.replace(tzinfo=None) - EPOCH) // timedelta(microseconds=1) for o in oracle]
    back = from_wall_time(wall, zone)
    assert (
        (back == times) | (back == times - HOUR) | (back == times - HOUR // 2)
    ).all()  # the earlier reading
    assert (back == times).mean() > 0.999


def test_the_change_of_the_clock_is_exact_to_the_microsecond():
    change = micros("2024-03-31T01:00:00")
    assert (wall_time(change - 1, "Europe/Berlin") - change + 1).tolist() == [HOUR]
    assert (wall_time(change, "Europe/Berlin") - change).tolist() == [2 * HOUR]


def test_skipped_and_repeated_clock_times():
    wall = micros("2024-03-31T02:30", "2024-10-27T02:30")
    assert (
        from_wall_time(wall, "Europe/Berlin").tolist()
        == micros("2024-03-31T01:30", "2024-10-27T00:30").tolist()
    )


def test_times_beyond_the_calendar_of_python_are_converted():
    times = np.array([-9 * 10**18 // 1000 * 1000, 8 * 10**18], dtype=np.int64)
    assert (np.abs(wall_time(times, "Europe/Berlin") - times) < DAY).all()


def test_no_zone_and_no_times():
    times = micros("2024-01-01")
    assert wall_time(times, None) is times
    assert len(wall_time(times[:0], "Europe/Berlin")) == 0


@pytest.mark.parametrize(("zone", "hours"), [("+05:30", 5.5), ("-0400", -4), ("Etc/GMT-3", 3)])
def test_fixed_offsets(zone, hours):
    times = micros("2024-07-01", "2024-01-01")
    assert (wall_time(times, zone) - times).tolist() == [hours * HOUR] * 2


@pytest.mark.parametrize("zone", ["Europe", "", "../etc/passwd", "+99:00", "Nowhere/At_All"])
def test_unknown_zone(zone):
    with pytest.raises(ConfigError, match="data.timezone: unknown zone"):
        zone_info(zone)


def test_misspelt_zone_gets_a_suggestion():
    with pytest.raises(ConfigError, match="got 'Europe/Berln'; did you mean 'Europe/Berlin'?"):
        wall_time(micros("2024-01-01"), "Europe/Berln")


def test_time_text():
    time = int(micros("2024-03-01T05:00")[0])
    assert time_text(time, TimeKind.NAIVE) == "2024-03-01T05:00:00"
    assert time_text(time + 1, TimeKind.ZONED) == "2024-03-01T05:00:00.000001Z"
    assert time_text(17, TimeKind.INDEX) == "17"
