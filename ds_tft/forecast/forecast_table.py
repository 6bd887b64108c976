"""Forecasts as rows of a long table: one for each window, step and target.

Letters: n windows, K horizon steps, O targets, Q quantiles, S series, R rows of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ds_tft.data.schema import TimeKind
from ds_tft.data.table import Table
from ds_tft.forecast.metrics import Floats, level_name

SERIES = "series"
"""Column of the series where the data has no column that names one."""
ONLY_SERIES = "all"
"""Its value in every row."""


@dataclass(frozen=True, slots=True)
class ForecastTable:
    """Turns forecasts of a table's windows into Arrow rows."""

    table: Table
    schema: pa.Schema
    targets: tuple[str, ...]
    series: tuple[pa.Array, ...]
    """Values of each id column, by series."""

    @staticmethod
    def of(
        table: Table,
        *,
        kind: TimeKind,
        zone: str | None,
        series_columns: Sequence[str],
        targets: Sequence[str],
        quantiles: Sequence[float],
    ) -> ForecastTable:
        """Settles the columns.

        Args:
            table: The prepared data.
            kind: What its times are.
            zone: Zone of its time column, where zoned.
            series_columns: Columns that name a series; none where the data is one series.
            targets: O names.
            quantiles: Q levels, ascending.
        """
        moment: pa.DataType = pa.int64() if kind is TimeKind.INDEX else pa.timestamp("us", zone)
        values: list[tuple[str, pa.DataType]] = [
            ("origin_time", moment),
            ("target_time", moment),
            ("step", pa.int32()),
        ]
        if len(targets) > 1:
            values.append(("target", pa.string()))
        values += [(level_name(level), pa.float64()) for level in quantiles]
        values.append(("actual", pa.float64()))
        names = _id_names(series_columns, [name for name, _ in values])
        keys = table.series_keys if series_columns else ((ONLY_SERIES,),)
        return ForecastTable(
            table,
            pa.schema([*((name, pa.string()) for name in names), *values]),
            tuple(targets),
            tuple(pa.array([key[place] for key in keys], pa.string()) for place in range(len(names))),
        )

    def rows(self, origins: NDArray[np.int64], forecasts: Floats, actual: Floats) -> pa.RecordBatch:
        """Lays out the forecasts of some windows, window by window, then step, then target.

        Args:
            origins: (n,) last row of each window's history.
            forecasts: (n, K, O, Q) in original units.
            actual: (n, K, O) what came; NaN where unknown.

        Returns:
            R = n * K * O rows.
        """
        count, horizon, num_targets, num_levels = forecasts.shape
        each = np.repeat(origins, horizon * num_targets)  # (R,)
        step = np.tile(np.repeat(np.arange(1, horizon + 1), num_targets), count)  # (R,)
        series = pa.array(self.table.series_of_row[each], pa.int32())
        columns = [values.take(series) for values in self.series]
        columns += [pa.array(self.table.times[each]), pa.array(self.table.times[each + step])]
        columns.append(pa.array(step))
        if len(self.targets) > 1:
            columns.append(pa.array(np.tile(np.array(self.targets), count * horizon)))
        levels = forecasts.reshape(-1, num_levels)  # (R, Q)
        columns += [pa.array(levels[:, place]) for place in range(num_levels)]
        columns.append(pa.array(actual.reshape(-1), from_pandas=True))  # NaN becomes null
        cast = [values.cast(field.type) for values, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(cast, schema=self.schema)


def _id_names(series_columns: Sequence[str], taken: list[str]) -> list[str]:
    """Names of the id columns; one that the result needs for itself gets a prefix."""
    names: list[str] = []
    for column in series_columns or (SERIES,):
        name = column
        while name in taken or name in names:
            name = f"{SERIES}_{name}"
        names.append(name)
    return names
