"""Clock arithmetic on int64 times: zones, and times as text.

A time is microseconds since 1970 (UTC where zoned), or an integer that counts steps. Letter: N times.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
from numpy.typing import NDArray

from ds_tft.data.schema import TimeKind
from ds_tft.errors import ConfigError, suggestion

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Python's calendar covers the years 1 to 9999; outside, a zone's offset is taken from the nearer end.
_FIRST_SECOND = int((datetime(1, 1, 3, tzinfo=UTC) - _EPOCH).total_seconds())
_LAST_SECOND = int((datetime(9999, 12, 29, tzinfo=UTC) - _EPOCH).total_seconds())


def time_text(time: int, kind: TimeKind) -> str:
    """Returns a time as a user would write it: ISO 8601 (with `Z` where zoned), or the integer."""
    if kind is TimeKind.INDEX:
        return str(time)
    text = str(np.datetime_as_string(np.datetime64(time, "us"), unit="us"))
    text = text.removesuffix(".000000")
    return f"{text}Z" if kind is TimeKind.ZONED else text


def zone_info(zone: str) -> tzinfo:
    """Looks up an IANA zone such as `Europe/Berlin`, or a fixed offset such as `+05:30`.

    Raises:
        ConfigError: There is no such zone.
    """
    offset = re.fullmatch(r"([+-])(\d{2}):?(\d{2})", zone)
    if offset and int(offset[2]) < 24 and int(offset[3]) < 60:
        size = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        return timezone(-size if offset[1] == "-" else size)
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError):  # also raised for names of folders and unsafe paths
        hint = suggestion(zone, available_timezones())
    hint = hint if hint.startswith("did") else "give an IANA name such as 'Europe/Berlin', or 'UTC'"
    raise ConfigError(f"data.timezone: unknown zone, got {zone!r}; {hint}")


def wall_time(times: NDArray[np.int64], zone: str | None) -> NDArray[np.int64]:
    """Converts UTC times to the clock on the wall of a zone, exactly across changes of the clock.

    Args:
        times: (N,) microseconds since 1970, UTC.
        zone: IANA name or fixed offset; None leaves the times as they are.

    Returns:
        (N,) microseconds since 1970 of the local clock.

    Raises:
        ConfigError: There is no such zone.
    """
    if zone is None or len(times) == 0:
        return times
    starts, offsets = _offsets(times, zone_info(zone))
    return times + offsets[np.searchsorted(starts, times, side="right")]


def from_wall_time(wall: NDArray[np.int64], zone: str | None) -> NDArray[np.int64]:
    """Converts the clock on the wall of a zone back to UTC; the inverse of `wall_time`.

    Of the two readings of a repeated hour, the earlier is taken. A clock time that was skipped becomes as
    much later as the clock was moved.

    Args:
        wall: (N,) microseconds since 1970 of the local clock.
        zone: IANA name or fixed offset; None leaves the times as they are.

    Returns:
        (N,) microseconds since 1970, UTC.

    Raises:
        ConfigError: There is no such zone.
    """
    if zone is None or len(wall) == 0:
        return wall
    starts, offsets = _offsets(wall, zone_info(zone))
    # A change is over, on the wall, once neither of its two offsets can still mean a time before it.
    starts = starts + np.maximum(offsets[:-1], offsets[1:])
    return wall - offsets[np.searchsorted(starts, wall, side="right")]


def _offsets(times: NDArray[np.int64], zone: tzinfo) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """UTC times (K,) at which the offset changes on days near `times`; offsets (K+1,) between them."""
    days = np.unique(times // DAY)
    days = np.unique(days[:, None] + np.arange(-2, 4))  # an offset is below a day; both directions are served
    seconds = np.unique(np.clip(days * (DAY // SECOND), _FIRST_SECOND, _LAST_SECOND))
    offsets = np.array([_offset_at(int(second), zone) for second in seconds], dtype=np.int64)
    changes = np.flatnonzero(np.diff(offsets))
    starts = [_change_between(int(seconds[i]), int(seconds[i + 1]), zone) for i in changes]
    return np.array(starts, dtype=np.int64) * SECOND, np.append(offsets[changes], offsets[-1]) * SECOND


def _offset_at(second: int, zone: tzinfo) -> int:
    """Seconds that the local clock is ahead of UTC."""
    offset = (_EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
    return 0 if offset is None else round(offset.total_seconds())


def _change_between(before: int, after: int, zone: tzinfo) -> int:
    """First second with another offset than `before`, found by bisection."""
    offset = _offset_at(before, zone)
    while after - before > 1:
        middle = (before + after) // 2
        if _offset_at(middle, zone) == offset:
            before = middle
        else:
            after = middle
    return after
