"""A parquet source to the data that a trained model forecasts from, prepared the way its training data was.

Letters: N rows, n windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ds_tft.data.assemble import assemble
from ds_tft.data.bar_features import compute_bar_features
from ds_tft.data.given_roles import ROLE_KINDS
from ds_tft.data.parquet import ParquetSource
from ds_tft.data.prepare import source_lines
from ds_tft.data.preprocessor import Layout, Preprocessor
from ds_tft.data.raw import CleanRows, behind_last_target, clean_rows, read_rows
from ds_tft.data.schema import Roles, TimeKind
from ds_tft.data.table import Table
from ds_tft.data.times import time_text
from ds_tft.data.windows import any_ahead
from ds_tft.errors import DataError, suggestion

TIME_KINDS = {
    TimeKind.NAIVE: "times without a zone",
    TimeKind.ZONED: "times with a zone",
    TimeKind.INDEX: "integers",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownInputs:
    """Where inputs that must be known over the horizon have no value, behind the last target of a series."""

    columns: tuple[str, ...]
    """Inputs known for the horizon."""
    first: NDArray[
        np.int16
    ]  # (N,) place in `columns` of the first one without a value, -1 where all have one

    def ahead(self, origins: NDArray[np.int64], horizon: int) -> NDArray[np.bool_]:
        """Says which windows (n,) lack a value within their horizon, given their origins (n,)."""
        return any_ahead(self.first >= 0, origins, horizon)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastData:
    """A table to forecast from."""

    table: Table
    unknown: UnknownInputs
    kind: TimeKind
    zone: str | None
    """Zone of the time column."""
    num_rows: int
    """Rows of the source."""
    lines: tuple[str, ...]
    """What was read, cleaned and noticed."""

    def place(self, row: int) -> str:
        """Where a row is, for messages: its series and time."""
        name = "/".join(self.table.series_keys[self.table.series_of_row[row]])
        time = time_text(int(self.table.times[row]), self.kind)
        return f"series '{name}' at {time}" if name else time


def prepare_forecast(source: ParquetSource, preprocessor: Preprocessor, future_steps: int) -> ForecastData:
    """Reads and transforms data the way training did.

    Args:
        source: The parquet data; columns are found by name.
        preprocessor: The state fitted at training.
        future_steps: Rows that each series must have behind its last target, as room for a forecast; those
            that the file lacks are added.

    Returns:
        The table, and what was noticed.

    Raises:
        DataError: A column is absent, or the data does not suit the model.
    """
    layout = preprocessor.layout
    _check_columns(source, layout)
    raw = read_rows(source, layout.roles, layout.bar_columns)
    if raw.rows.kind is not layout.time_kind:
        raise DataError(
            f"{source.path}: time column '{layout.roles.time}' holds {TIME_KINDS[raw.rows.kind]}, the model "
            f"was trained on {TIME_KINDS[layout.time_kind]}; store it as in the training data"
        )
    clean = clean_rows(
        raw,
        layout.roles,
        preprocessor.data,
        gaps=layout.gaps,
        bars=layout.bar_columns,
        frequency=layout.step,
        indicator_columns=layout.indicators,
        future_steps=future_steps,
    )
    features = None if layout.bars is None else compute_bar_features(clean.raw.rows, layout.bars)
    assembled = assemble(clean, features, preprocessor)
    return ForecastData(
        table=assembled.table,
        unknown=_unknown_inputs(clean, layout.roles),
        kind=layout.time_kind,
        zone=raw.zone,
        num_rows=source.num_rows,
        lines=(
            *source_lines(source, clean),
            *(() if features is None else features.lines()),
            *_unseen_series_line(clean, preprocessor),
            *assembled.lines,
        ),
    )


def _check_columns(source: ParquetSource, layout: Layout) -> None:
    """Refuses a source without a column that the model reads, and says what for."""
    roles = layout.roles.model_dump()
    uses: dict[str, str] = {}
    for role in ROLE_KINDS:
        named = roles.get(role) or ()
        uses |= dict.fromkeys((named,) if isinstance(named, str) else named, role)
    for name in (*uses, *layout.bar_columns):
        if name not in source.columns:
            raise DataError(
                f"{source.path}: no column '{name}', which the model was trained on as "
                f"{uses.get(name, 'bars')}; {suggestion(name, source.columns)}"
            )


def _unknown_inputs(clean: CleanRows, roles: Roles) -> UnknownInputs:
    """Finds inputs without a value of the file. A null category is a value where the file has the row."""
    rows = clean.raw.rows  # before anything was filled
    first = np.full(rows.num_rows, -1, dtype=np.int16)
    behind = np.flatnonzero(behind_last_target(rows, roles.target))
    names = roles.known_reals + roles.known_categories
    for place, name in reversed(list(enumerate(names))):
        known_real = name in rows.reals
        missing = np.isnan(rows.reals[name][behind]) if known_real else rows.inserted[behind]
        first[behind[missing]] = place
    return UnknownInputs(columns=names, first=first)


def _unseen_series_line(clean: CleanRows, preprocessor: Preprocessor) -> tuple[str, ...]:
    """Says which series training did not have."""
    keys = clean.raw.ids.keys
    unseen = [keys[place] for place in np.flatnonzero(preprocessor.series_numbers(keys) < 0).tolist()]
    if not unseen:
        return ()
    named = ", ".join("/".join(key) or "the only one" for key in unseen[:5])
    more = f" and {len(unseen) - 5:,} more" if len(unseen) > 5 else ""
    return (
        f"series: {len(unseen):,} of {len(keys):,} were not in training; they take the statistics of all of "
        f"its series: {named}{more}",
    )
