"""Which windows a prediction is made for, and what it says about those it is not.

Letters: n windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ds_tft.config.run import WindowSettings
from ds_tft.data.forecast_data import ForecastData
from ds_tft.data.times import time_text
from ds_tft.data.windows import WindowIndex, WindowReport, latest_windows, windows_between
from ds_tft.errors import DataError
from ds_tft.forecast.time_range import TimeRange


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastWindows:
    """The windows, and lines about them."""

    windows: WindowIndex
    description: str
    notes: tuple[str, ...]
    """Windows and series that are left out, and why."""


def find_forecast_windows(
    data: ForecastData, window: WindowSettings, origins: TimeRange, stride: int | None = None
) -> ForecastWindows:
    """Finds the windows to forecast.

    Args:
        data: Prepared with room behind each series.
        window: Lengths.
        origins: Range of origins; without one, each series is forecast from its last known target on.
        stride: Rows between the origins of a series.

    Returns:
        The windows whose known inputs have values over the horizon. In a range, those without are left out
        and counted.

    Raises:
        DataError: There is no window, or a known input has no value over the horizon of a last window.
    """
    if origins.is_given:
        first, last = origins.read(data)
        windows, report = windows_between(data.table, window, first, last, stride or 1)
    else:
        windows, report = latest_windows(data.table, window)
    notes = dropped_notes(report)
    unknown = data.unknown.ahead(windows.origins, window.horizon)  # (n,)
    if unknown.any():
        reason = _unknown_reason(data, window, int(windows.origins[unknown][0]))
        if not origins.is_given or unknown.all():
            raise DataError(f"{reason}; give rows for the horizon, {window.horizon} after the last target")
        windows = windows.take(np.flatnonzero(~unknown))
        notes.append(f"windows not used: {int(unknown.sum()):,}, known inputs without a value: {reason}")
    return ForecastWindows(
        windows=windows,
        description=describe_windows(data, windows),
        notes=(*notes, *_series_without(data, windows)),
    )


def describe_windows(data: ForecastData, windows: WindowIndex) -> str:
    """Says how many windows there are and from when."""
    times = data.table.times[windows.origins]
    first, last = (time_text(int(time), data.kind) for time in (times.min(), times.max()))
    series = len(np.unique(data.table.series_of_row[windows.origins]))
    span = f"origin {first}" if first == last else f"origins from {first} to {last}"
    return f"{len(windows):,} in {series:,} series, {span}"


def dropped_notes(report: WindowReport) -> list[str]:
    """Says which windows were left out, one line for each reason."""
    return [f"windows not used: {count:,}, {reason}" for reason, count in report.dropped.items() if count]


def _unknown_reason(data: ForecastData, window: WindowSettings, origin: int) -> str:
    """Names the first known input without a value in the horizon of an origin."""
    ahead = np.arange(origin + 1, origin + 1 + window.horizon)
    row = int(ahead[(data.unknown.first[ahead] >= 0).argmax()])
    name = data.unknown.columns[data.unknown.first[row]]
    return f"column '{name}', {data.place(row)}: no value, but the model must know it over the horizon"


def _series_without(data: ForecastData, windows: WindowIndex) -> list[str]:
    """Names series that are not forecast."""
    keys = data.table.series_keys
    has = np.zeros(len(keys), dtype=np.bool_)
    has[data.table.series_of_row[windows.origins]] = True
    without = ["/".join(keys[place]) for place in np.flatnonzero(~has).tolist()]
    if not without:
        return []
    more = f" and {len(without) - 5:,} more" if len(without) > 5 else ""
    return [f"series without a forecast: {len(without):,} of {len(keys):,}: {', '.join(without[:5])}{more}"]
