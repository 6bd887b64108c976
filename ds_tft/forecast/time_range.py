"""The range of forecast origins that `--from` and `--to` name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ds_tft.data.forecast_data import ForecastData
from ds_tft.data.schema import TimeKind
from ds_tft.data.split import parse_time
from ds_tft.data.times import time_text
from ds_tft.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Both ends as the user wrote them; None leaves an end open."""

    first: str | None = None
    last: str | None = None

    @property
    def is_given(self) -> bool:
        """Whether there is a range at all."""
        return self.first is not None or self.last is not None

    def read(self, data: ForecastData) -> tuple[int, int]:
        """Returns both ends, inclusive, in the table's own time.

        Args:
            data: The data that the range is about.

        Raises:
            ConfigError: An end cannot be read, or the first is after the last.
            DataError: No row of the data lies in the range.
        """
        times = data.table.times[~data.table.synthetic]
        begin, end = int(times.min()), int(times.max())
        first = begin if self.first is None else _read("--from", self.first, data)
        last = end if self.last is None else _read("--to", self.last, data)
        given = f"{time_text(first, data.kind)} to {time_text(last, data.kind)}"
        if first > last and self.first is not None and self.last is not None:
            raise ConfigError(f"--from: lies after --to, got {given}; exchange them")
        if not ((times >= first) & (times <= last)).any():
            raise DataError(
                f"--from, --to: no row with a target in that time, got {given}; the data runs from "
                f"{time_text(begin, data.kind)} to {time_text(end, data.kind)}"
            )
        return first, last


def _read(flag: str, text: str, data: ForecastData) -> int:
    """One end of the range."""
    is_number = data.kind is TimeKind.INDEX and re.fullmatch(r"-?\d{1,18}", text.strip())
    return parse_time(int(text) if is_number else text, data.kind, flag, data.zone or "UTC")
