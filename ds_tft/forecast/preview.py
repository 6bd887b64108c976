"""The first rows of a table of forecasts, to print."""

from __future__ import annotations

import pyarrow as pa
from rich.table import Table
from rich.text import Text

from ds_tft.data.schema import TimeKind
from ds_tft.data.times import time_text
from ds_tft.forecast.report import figures_table
from ds_tft.formatting import format_number

ZEROS = ("T00:00:00", ":00")
"""What times that all end in it are shown without."""

DIGITS = 6
"""Significant digits of values: prices that differ little must not look alike."""


def preview_table(rows: pa.RecordBatch, kind: TimeKind, *, plain: bool) -> Table:
    """Returns the rows as a table to print.

    Args:
        rows: Few rows.
        kind: What their times are.
        plain: Draw for plain text rather than a terminal.
    """
    table = figures_table(plain)
    for field in rows.schema:
        is_text = pa.types.is_string(field.type)
        table.add_column(field.name, justify="left" if is_text else "right", overflow="fold")
    columns = [_texts(rows.column(field.name), field, kind) for field in rows.schema]
    for texts in zip(*columns, strict=True):
        table.add_row(*map(Text, texts))
    return table


def _texts(values: pa.Array, field: pa.Field, kind: TimeKind) -> list[str]:
    """One text per row; empty where there is no value."""
    if field.name.endswith("_time"):
        texts = [time_text(int(time), kind) for time in values.cast(pa.int64()).to_numpy()]
        zeros = next((end for end in ZEROS if all(text.endswith(end) for text in texts)), "")
        return [text.removesuffix(zeros) for text in texts]
    if pa.types.is_floating(field.type):
        return ["" if value is None else format_number(value, DIGITS) for value in values.to_pylist()]
    return [str(value) for value in values.to_pylist()]
