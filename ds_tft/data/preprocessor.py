"""Everything that training settles about the data, saved with the model: roles, scalers, category codes.

Letters: N rows, S series, V variables of a group.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, model_validator

from ds_tft.config.run import BarColumns, CalendarFeature, DataSettings, WindowSettings
from ds_tft.data.bar_features import bar_feature_columns
from ds_tft.data.bar_statics import bar_static_names
from ds_tft.data.calendar import calendar_columns
from ds_tft.data.categories import CategoryMap
from ds_tft.data.frequency import Frequency
from ds_tft.data.indicators import indicator_names
from ds_tft.data.scaling import RealScaler, TargetScaler
from ds_tft.data.schema import Roles, TimeKind

RELATIVE_TIME = "relative_time"
SERIES = "series"
"""Name of the id category of bars whose file is one series."""

StaticRow = tuple[float | None, ...]


class Layout(BaseModel):
    """Which variables there are, in the model's order, and how their values come about."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    roles: Roles
    time_kind: TimeKind
    zone: str | None
    """Zone of the clock that calendar features read."""
    frequency: str
    gaps: Literal["fill", "tolerate", "split", "error"]
    calendar: tuple[CalendarFeature, ...]
    bars: BarColumns | None
    indicators: tuple[str, ...]
    """Real inputs that have an indicator of missing values."""

    @property
    def bar_columns(self) -> tuple[str, ...]:
        """Columns of the file that bar features are computed from."""
        return () if self.bars is None else bar_feature_columns(self.bars)

    @property
    def step(self) -> Frequency:
        """Step of the time column."""
        return Frequency.parse(self.frequency)

    @property
    def static_reals(self) -> tuple[str, ...]:
        """Names of the static reals."""
        of_bars = () if self.bars is None else bar_static_names(self.bars.volume is not None)
        return self.roles.static_reals + of_bars

    @property
    def id_categories(self) -> tuple[str, ...]:
        """Static categories that tell the series apart."""
        if self.bars is not None and not self.roles.series:
            return (SERIES,)
        return self.roles.series

    @property
    def static_categories(self) -> tuple[str, ...]:
        """Names of the static categories."""
        return self.id_categories + self.roles.static_categories

    @property
    def observed_reals(self) -> tuple[str, ...]:
        """Names of the observed reals after the targets."""
        indicators = () if self.bars is None else indicator_names(self.bars.volume is not None)
        flags = tuple(f"{name}_missing" for name in self.indicators if name not in self.roles.known_reals)
        return self.roles.observed_reals + indicators + flags

    @property
    def known_reals(self) -> tuple[str, ...]:
        """Names of the known reals after the relative time index."""
        flags = tuple(f"{name}_missing" for name in self.indicators if name in self.roles.known_reals)
        return self.roles.known_reals + flags + calendar_columns(self.calendar)


class Preprocessor(BaseModel):
    """The fitted state that turns a parquet source into the model's inputs, the same way every time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: DataSettings
    window: WindowSettings
    clip: float | None
    layout: Layout
    series_keys: tuple[tuple[str, ...], ...]
    """Series of the training data, as numbered in per-series scalers."""
    static_scaler: RealScaler
    observed_scaler: RealScaler
    known_scaler: RealScaler
    target_scaler: TargetScaler
    categories: dict[str, CategoryMap]
    """By name of the category column."""
    bar_statics: tuple[StaticRow, ...] = ()
    """Bar statics of each training series, None where it had no training row."""

    @model_validator(mode="after")
    def _check(self) -> Preprocessor:
        """The parts must fit each other; a file that was edited may have parts that do not."""
        layout, roles, num_series = self.layout, self.layout.roles, len(self.series_keys)
        own = () if layout.bars is None else indicator_names(layout.bars.volume is not None)
        scalers = (
            ("static_scaler", self.static_scaler, layout.static_reals),
            ("observed_scaler", self.observed_scaler, roles.observed_reals + own),
            ("known_scaler", self.known_scaler, roles.known_reals),
            ("target_scaler", self.target_scaler, roles.target),
        )
        for name, scaler, columns in scalers:
            if scaler.names != columns:
                raise ValueError(f"{name} must be of the columns {columns}, got {scaler.names}")
            if len(scaler.center) not in (1, num_series + 1):
                raise ValueError(f"{name} must have rows for {num_series} series, got {len(scaler.center)}")
        coded = layout.static_categories + roles.observed_categories + roles.known_categories
        if set(self.categories) != set(coded):
            raise ValueError(f"categories must be {sorted(coded)}, got {sorted(self.categories)}")
        if layout.bars is not None and len(self.bar_statics) != num_series:
            raise ValueError(f"bar_statics must be of {num_series} series, got {len(self.bar_statics)}")
        return self

    def series_numbers(self, keys: tuple[tuple[str, ...], ...]) -> NDArray[np.int64]:
        """Numbers series as in training, -1 for one that was not there: (S,)."""
        number = {key: i for i, key in enumerate(self.series_keys)}
        return np.array([number.get(key, -1) for key in keys], dtype=np.int64)

    def variable_names(self) -> dict[str, tuple[str, ...]]:
        """Names of the inputs in the order of the model's variables, by group: static, history, future."""
        layout, roles = self.layout, self.layout.roles
        known_reals = (RELATIVE_TIME, *layout.known_reals)
        return {
            "static": layout.static_reals + layout.static_categories,
            "history": (
                *roles.target,
                *layout.observed_reals,
                *known_reals,
                *roles.observed_categories,
                *roles.known_categories,
            ),
            "future": known_reals + roles.known_categories,
        }
