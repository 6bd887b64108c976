"""The step of the time column: times to consecutive ordinals and back.

Each kind of step numbers time in its own unit (microseconds, business days, months, integers). An ordinal
is that number, from a phase on, divided by the units in a step and rounded down: a row off the grid belongs
to the step it falls into. Letter: N rows.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ds_tft.data.times import DAY, HOUR, MINUTE, SECOND, from_wall_time, wall_time, zone_info
from ds_tft.errors import ConfigError

KNOWN_FORMS = (
    "1s, 5min, 1h, 1D, 1W, 1B (business days), 1MS or 1ME (month start or end), 3MS, 1M15, index, 500us"
)

_FORM = re.compile(r"(\d{0,15})(us|s|min|h|D|W|B|MS|ME|M[1-9]\d?|index)(?:@(\d{1,18}))?(?:\[(.+)\])?")
_UNITS = {"us": 1, "s": SECOND, "min": MINUTE, "h": HOUR, "D": DAY, "W": 7 * DAY}
_FIRST_MONDAY = np.datetime64("1970-01-05", "D")


@dataclass(frozen=True, kw_only=True, slots=True)
class Frequency(ABC):
    """A regular step of time. Subclasses say what is counted."""

    count: int = 1
    """Units in a step."""
    phase: int = 0
    """Unit at which a step begins; from 0 to below `count`."""
    zone: str | None = None
    """Zone whose clock decides where days, weeks and months begin; None takes the times as they are."""

    @staticmethod
    def parse(text: str) -> Frequency:
        """Reads a frequency as a user writes it (`5min`, `1B`, `3MS`, `index`) or as `to_text` does.

        Raises:
            ConfigError: The text is no known form, or names an unknown zone.
        """
        match = _FORM.fullmatch(text.strip())
        count = int(match[1] or 1) if match else 0
        units = count * _UNITS.get(match[2], 1) if match else 0
        phase = int(match[3] or 0) if match else 0
        if match is None or not 0 < units < 2**61 or (match[3] and phase >= units):
            raise ConfigError(f"data.frequency: unknown step, got {text!r}; known forms: {KNOWN_FORMS}")
        unit, zone = match[2], match[4]
        if zone is not None:
            zone_info(zone)
        if unit in _UNITS:
            return FixedStep(count=units, phase=phase, zone=zone)
        if unit == "B":
            return BusinessDays(count=count, phase=phase, zone=zone)
        if unit == "index":
            return IndexStep(count=count, phase=phase)
        day = {"MS": 1, "ME": 31}.get(unit) or int(unit[1:])
        if day > 31:
            raise ConfigError(f"data.frequency: a month has no day {day}, got {text!r}; use 1ME for its end")
        return Months(count=count, phase=phase, zone=zone, day=day)

    def to_text(self) -> str:
        """Returns the text from which `parse` restores this frequency, phase and zone included."""
        phase = f"@{self.phase}" if self.phase else ""
        return self.name + phase + (f"[{self.zone}]" if self.zone else "")

    def ordinals(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers the steps: neighbouring steps differ by one, times within a step share a number.

        Args:
            times: (N,) int64 times.

        Returns:
            (N,) int64 ordinals; never falling where times rise, but for a clock set back across the phase.
        """
        return (self._units(times) - self.phase) // self.count

    def anchored(self, times: NDArray[np.int64]) -> Frequency:
        """Returns the same step with its phase taken from the data, such as daily bars stamped 16:00."""
        return replace(self, phase=_usual_phase(self._units(times) % self.count, self.count))

    def in_zone(self, zone: str | None) -> Frequency:
        """Returns the same step counted on the clock of `zone`, where the clock makes a difference."""
        return replace(self, zone=zone)

    @property
    @abstractmethod
    def name(self) -> str:
        """Count and unit, such as `1h`."""

    @abstractmethod
    def advance(self, times: NDArray[np.int64], steps: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Returns the times `steps` later, at the same time of day; `ordinals` rise by exactly `steps`."""

    @abstractmethod
    def off_grid_count(self, times: NDArray[np.int64]) -> int:
        """Counts the rows that do not lie where a step usually begins."""

    @abstractmethod
    def seasonal_periods(self) -> int | None:
        """Steps after which the pattern of the data is expected to repeat: a day, week or year, or None."""

    @abstractmethod
    def _units(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """(N,) number of the unit each time falls into."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedStep(Frequency):
    """A fixed number of microseconds. Whole days are counted on the zone's clock, shorter steps in UTC."""

    @property
    def name(self) -> str:
        """Count and the largest unit that divides the step."""
        unit, size = next((u, s) for u, s in reversed(_UNITS.items()) if self.count % s == 0)
        return f"{self.count // size}{unit}"

    def in_zone(self, zone: str | None) -> Frequency:
        """Returns the step in `zone` if it is made of whole days; shorter ones know no zone."""
        return replace(self, zone=zone if self.count % DAY == 0 else None)

    def advance(self, times: NDArray[np.int64], steps: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Adds `steps` times the length of the step."""
        return from_wall_time(self._units(times) + np.asarray(steps, dtype=np.int64) * self.count, self.zone)

    def off_grid_count(self, times: NDArray[np.int64]) -> int:
        """Counts the rows that are not at the most common offset within a step."""
        return _uncommon(self._units(times) % self.count)

    def seasonal_periods(self) -> int | None:
        """A day for steps of a minute to half a day that divide it, 7 for days, 52 weeks for weeks."""
        if self.count % (7 * DAY) == 0:
            return _whole_periods(52, self.count // (7 * DAY))
        if self.count == DAY:
            return 7
        return _whole_periods(DAY, self.count) if self.count >= MINUTE else None

    def _units(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        return wall_time(times, self.zone)


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexStep(Frequency):
    """A fixed number of an integer time column."""

    @property
    def name(self) -> str:
        """`index`, after the count where it is not 1."""
        return "index" if self.count == 1 else f"{self.count}index"

    def in_zone(self, zone: str | None) -> Frequency:  # noqa: ARG002
        """Returns the step unchanged: integers know no zone."""
        return self

    def advance(self, times: NDArray[np.int64], steps: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Adds `steps` times the step."""
        return times + np.asarray(steps, dtype=np.int64) * self.count

    def off_grid_count(self, times: NDArray[np.int64]) -> int:
        """Counts the rows that are not at the most common offset within a step."""
        return _uncommon(times % self.count)

    def seasonal_periods(self) -> int | None:
        """None: an integer says nothing about seasons."""
        return None

    def _units(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        return times


@dataclass(frozen=True, kw_only=True, slots=True)
class BusinessDays(Frequency):
    """Monday to Friday, whatever the time of day. A row on a weekend belongs to the Friday before."""

    @property
    def name(self) -> str:
        """Count and `B`."""
        return f"{self.count}B"

    def advance(self, times: NDArray[np.int64], steps: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Moves on by business days; the time of day stays."""
        wall = wall_time(times, self.zone)
        offset = np.asarray(steps, dtype=np.int64) * self.count
        days = np.busday_offset(_dates(wall), offset, roll="backward").astype(np.int64)
        return from_wall_time(days * DAY + wall % DAY, self.zone)

    def off_grid_count(self, times: NDArray[np.int64]) -> int:
        """Counts the rows on a weekend or on another day than the most common one of a step."""
        weekend = ~np.is_busday(_dates(wall_time(times, self.zone)))
        return int(weekend.sum()) + _uncommon(self._units(times)[~weekend] % self.count)

    def seasonal_periods(self) -> int | None:
        """A week of five days."""
        return _whole_periods(5, self.count)

    def _units(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        days = np.busday_offset(_dates(wall_time(times, self.zone)), 0, roll="backward")
        return np.asarray(np.busday_count(_FIRST_MONDAY, days), dtype=np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Months(Frequency):
    """Calendar months. A row belongs to its month, whatever the day."""

    day: int = 1
    """Day of the month on which rows lie; the month's last day where it is shorter."""

    @property
    def name(self) -> str:
        """Count and `MS` (first day), `ME` (last day) or `M` with the day."""
        return f"{self.count}M{ {1: 'S', 31: 'E'}.get(self.day, self.day) }"

    def advance(self, times: NDArray[np.int64], steps: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Moves on by months, to `day`; the time of day stays."""
        wall = wall_time(times, self.zone)
        months = self._units(times) + np.asarray(steps, dtype=np.int64) * self.count
        return from_wall_time(day_in_month(months, self.day) * DAY + wall % DAY, self.zone)

    def off_grid_count(self, times: NDArray[np.int64]) -> int:
        """Counts the rows on another day, or in another month of a longer step, than the grid has."""
        months = self._units(times)
        days = wall_time(times, self.zone) // DAY
        off_grid = (days != day_in_month(months, self.day)) | ((months - self.phase) % self.count != 0)
        return int(off_grid.sum())

    def seasonal_periods(self) -> int | None:
        """A year."""
        return _whole_periods(12, self.count)

    def _units(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        return _dates(wall_time(times, self.zone)).astype("datetime64[M]").astype(np.int64)


def day_in_month(months: NDArray[np.int64], day: int) -> NDArray[np.int64]:
    """Returns the days since 1970 of day number `day`, or the last one, in months since 1970-01."""
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    following = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    return np.minimum(first + day, following) - 1


def _dates(wall: NDArray[np.int64]) -> NDArray[np.datetime64]:
    """Dates of wall times."""
    return (wall // DAY).astype("datetime64[D]")


def _whole_periods(cycle: int, step: int) -> int | None:
    """Steps in a cycle, if they are at least two and leave no rest."""
    return cycle // step if cycle % step == 0 and cycle > step else None


def _uncommon(values: NDArray[np.int64]) -> int:
    """Rows that do not have the most common value."""
    return len(values) - int(np.unique(values, return_counts=True)[1].max(initial=0))


def _usual_phase(offsets: NDArray[np.int64], count: int) -> int:
    """Where a step begins, given each row's offset from a multiple of the step."""
    if len(offsets) == 0:
        return 0
    values, rows = np.unique(offsets, return_counts=True)
    most_common = int(values[rows.argmax()])
    # Daily rows at a local midnight, kept in UTC, have two offsets an hour apart. A step begins at the
    # earlier, or a row could fall into the step of the day before. Rare offsets have no say.
    values = values[rows >= 0.02 * len(offsets)]
    if len(values) == 0:
        return most_common
    to_next = np.diff(values, append=values[0] + count)
    widest = int(to_next.argmax())
    together = count - int(to_next[widest]) < count / 2
    return int(values[(widest + 1) % len(values)]) if together else most_common
