"""Cutoffs in time: each split owns a period, and every label of its windows lies in it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from ds_tft.config.run import SplitSettings
from ds_tft.data.schema import TimeKind
from ds_tft.data.times import time_text, zone_info
from ds_tft.errors import ConfigError, DataError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


class SplitBounds(BaseModel):
    """Periods of the labels, in the table's own time. Starts are inclusive, ends exclusive.

    An embargo is the time between the end of a period and the start of the next.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: TimeKind
    first_time: int
    last_time: int
    train_end: int
    validation_start: int
    validation_end: int
    test_start: int

    def period(self, split: Split) -> tuple[int, int]:
        """Start and end of the label times of a split; equal where the split is off."""
        periods = {
            "train": (self.first_time, self.train_end),
            "validation": (self.validation_start, self.validation_end),
            "test": (self.test_start, self.last_time + 1),
        }
        return periods[split]

    def has(self, split: Split) -> bool:
        """Whether a split has a period at all."""
        start, end = self.period(split)
        return start < end

    def lines(self) -> list[str]:
        """Describes the periods, one line each, and says which are off."""
        return [self._line(split) for split in SPLITS]

    def _line(self, split: Split) -> str:
        """Describes one period."""
        start, end = self.period(split)
        if start >= end:
            return f"{split}: off, the settings leave it no period"
        if end > self.last_time:
            return f"{split}: labels from {time_text(start, self.kind)} to the end"
        return f"{split}: labels from {time_text(start, self.kind)} to before {time_text(end, self.kind)}"


def split_bounds(
    times: NDArray[np.int64], settings: SplitSettings, kind: TimeKind, zone: str = "UTC"
) -> SplitBounds:
    """Settles the periods of training, validation and test.

    Shares count distinct time steps of the whole file, oldest first, so that all series are cut at the same
    time. The embargo counts distinct time steps too. Validation is off when its share is 0 or both dates are
    equal; the test period is empty only when the shares add up to 1.

    Args:
        times: Distinct times of all series, sorted; at least one.
        settings: The `split` section.
        kind: What times are.
        zone: Zone of dates that carry none, for zoned times.

    Returns:
        The periods.

    Raises:
        ConfigError: A date cannot be read, or the dates are in the wrong order.
        DataError: A period without data.
    """
    if settings.validation_start is None or settings.test_start is None:
        validation_start, test_start = _cutoffs_by_share(times, settings, kind)
    else:
        validation_start = parse_time(settings.validation_start, kind, "split.validation_start", zone)
        test_start = parse_time(settings.test_start, kind, "split.test_start", zone)
        _check_dates(times, validation_start, test_start, kind)
    bounds = SplitBounds(
        kind=kind,
        first_time=int(times[0]),
        last_time=int(times[-1]),
        train_end=_before(times, validation_start, settings.embargo_steps),
        validation_start=validation_start,
        validation_end=max(validation_start, _before(times, test_start, settings.embargo_steps)),
        test_start=test_start,
    )
    _check_embargo(times, bounds, settings.embargo_steps)
    return bounds


def parse_time(value: str | int, kind: TimeKind, where: str, zone: str = "UTC") -> int:
    """Reads a time from the settings as the table's own: microseconds since 1970, or the integer itself.

    Args:
        value: ISO date or date and time, or an integer for an integer time column.
        kind: What the time column holds.
        where: Setting to name in a message.
        zone: Zone of a date that carries none, for zoned times.

    Returns:
        The time.

    Raises:
        ConfigError: The value does not fit the time column, or there is no such zone.
    """
    if kind is TimeKind.INDEX or isinstance(value, int):
        if kind is TimeKind.INDEX and isinstance(value, int):
            return value
        wanted = "an integer" if kind is TimeKind.INDEX else "an ISO date such as '2024-03-01T09:30'"
        raise ConfigError(f"{where}: does not fit the time column, got {value!r}; give {wanted}")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ConfigError(
            f"{where}: not a date, got {value!r}; give an ISO date such as '2024-03-01T09:30'"
        ) from None
    if kind is TimeKind.NAIVE:
        if moment.tzinfo is not None:
            raise ConfigError(f"{where}: the time column has no zone, got {value!r}; leave the offset out")
        moment = moment.replace(tzinfo=UTC)
    elif moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone_info(zone))
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _cutoffs_by_share(times: NDArray[np.int64], settings: SplitSettings, kind: TimeKind) -> tuple[int, int]:
    """Starts of validation and test after the asked shares of the time steps."""
    num_steps = len(times)
    covered = settings.train + settings.validation
    to_end = covered >= 1 - 1e-9
    train_end = int(num_steps * settings.train + 0.5)
    validation_end = num_steps if to_end else int(num_steps * covered + 0.5)
    sizes = {
        "train": train_end > 0,
        "validation": validation_end > train_end or settings.validation == 0,
        "test": validation_end < num_steps or to_end,
    }
    empty = [split for split, filled in sizes.items() if not filled]
    if empty:
        raise DataError(
            f"split: no time step for {' and '.join(empty)}, got {num_steps} time steps "
            f"{_span(times, kind)}; change split.train and split.validation, or give more data"
        )
    starts = np.append(times, times[-1] + 1)
    return int(starts[train_end]), int(starts[validation_end])


def _check_dates(times: NDArray[np.int64], validation_start: int, test_start: int, kind: TimeKind) -> None:
    """Refuses dates that leave a period without data."""
    given = {"validation_start": validation_start, "test_start": test_start}
    text = {name: time_text(time, kind) for name, time in given.items()}
    if test_start < validation_start:
        raise ConfigError(
            f"split.test_start: lies before validation_start ({text['validation_start']}), "
            f"got {text['test_start']}; give the later time"
        )
    if validation_start <= times[0]:
        raise DataError(
            f"split.validation_start: no training data before it, got {text['validation_start']}; "
            f"choose a time within the data, {_span(times, kind)}"
        )
    for name, time in given.items():
        if time > times[-1]:
            raise DataError(
                f"split.{name}: no data at or after it, got {text[name]}; "
                f"choose a time within the data, {_span(times, kind)}"
            )
    between = np.searchsorted(times, [validation_start, test_start])
    if validation_start < test_start and between[0] == between[1]:
        raise DataError(
            f"split.test_start: no data between validation_start ({text['validation_start']}) and it, "
            f"got {text['test_start']}; move one of them within the data, {_span(times, kind)}"
        )


def _before(times: NDArray[np.int64], cutoff: int, embargo_steps: int) -> int:
    """End of the period before a cutoff: the cutoff itself, or the embargo's first time step."""
    position = int(np.searchsorted(times, cutoff))
    if embargo_steps == 0 or position == len(times):
        return cutoff
    return int(times[max(position - embargo_steps, 0)])


def _check_embargo(times: NDArray[np.int64], bounds: SplitBounds, embargo_steps: int) -> None:
    """Refuses an embargo that swallows the period before it."""
    empty_train = bounds.train_end <= bounds.first_time
    is_on = bounds.validation_start < bounds.test_start
    ends = np.searchsorted(times, [bounds.validation_start, bounds.validation_end])
    empty_validation = is_on and ends[0] == ends[1]
    if empty_train or empty_validation:
        split = "train" if empty_train else "validation"
        raise DataError(
            f"split.embargo_steps: leaves no time step for {split}, got {embargo_steps}; "
            f"lower it or move the cutoffs, the data runs {_span(times, bounds.kind)}"
        )


def _span(times: NDArray[np.int64], kind: TimeKind) -> str:
    """First and last time of the data."""
    return f"from {time_text(int(times[0]), kind)} to {time_text(int(times[-1]), kind)}"
