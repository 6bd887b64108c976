"""Forecasts of a trained model for the series of a file, written as a table.

Letters: n windows, K horizon steps, O targets, Q quantiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.text import Text

from ds_tft.data.parquet import ParquetSource, open_source
from ds_tft.data.sampler import evaluation_batches
from ds_tft.data.windows import WindowIndex
from ds_tft.errors import ConfigError
from ds_tft.export import find_export, read_export
from ds_tft.forecast.evaluate import forecast, horizon_labels
from ds_tft.forecast.forecast_file import ForecastFile, check_suffix
from ds_tft.forecast.forecast_table import ForecastTable
from ds_tft.forecast.forecast_windows import ForecastWindows, find_forecast_windows
from ds_tft.forecast.metrics import Floats, sort_quantiles
from ds_tft.forecast.model_data import ModelData, check_count, output_folder, prepare_model_data
from ds_tft.forecast.preview import preview_table
from ds_tft.forecast.report import facts_table, note_facts, print_report
from ds_tft.forecast.time_range import TimeRange

DEFAULT_OUTPUT = "forecasts.parquet"
PREVIEW_ROWS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictArguments:
    """What the command line of `launch/predict.py` said."""

    model: str
    parquet: str
    output: str | None = None
    origins: TimeRange = TimeRange()
    stride: int | None = None
    batch_size: int | None = None


class ForecastBatch(NamedTuple):
    """Forecasts of some windows, in original units."""

    origins: NDArray[np.int64]  # (n,) last row of each history
    forecasts: Floats  # (n, K, O, Q) levels in rising order
    actual: Floats  # (n, K, O) NaN where unknown
    crossings: int
    """Neighbouring levels that the model had put in the wrong order."""


@dataclass(slots=True)
class _Written:
    """What has gone into the file."""

    crossings: int = 0
    not_finite: int = 0
    first: list[pa.RecordBatch] = field(default_factory=list)

    def notes(self) -> list[str]:
        """Says what was odd about the forecasts."""
        notes = []
        if self.crossings:
            notes.append(f"quantiles: {self.crossings:,} neighbouring levels out of order, put in order")
        if self.not_finite:
            notes.append(f"forecasts: {self.not_finite:,} values are not finite; look for extreme inputs")
        return notes


def predict(arguments: PredictArguments, console: Console) -> Path:
    """Forecasts and writes, and prints a short summary.

    Without a range of origins it forecasts once for every series, from its last known target on.

    Args:
        arguments: The command line.
        console: Where to print; progress is shown on a terminal.

    Returns:
        The file that was written.

    Raises:
        UserError: Something in the arguments or the data that the user can mend.
    """
    _check(arguments)
    loaded = read_export(Path(arguments.model))
    output = _choose_output(arguments)
    source = open_source(arguments.parquet)
    _protect_input(output, source)
    output_folder(output)
    prepared = prepare_model_data(loaded, source, beyond_end=True)
    chosen = find_forecast_windows(
        prepared.data, prepared.builder.window, arguments.origins, arguments.stride
    )
    batch_size = arguments.batch_size or prepared.description.batch_size
    written, num_rows = _write(prepared, chosen.windows, batch_size, output, console)
    _print_summary(arguments, prepared, chosen, written, console)
    console.print(Text(f"written: {num_rows:,} rows to {output}"), soft_wrap=True)
    return output


def forecast_batches(prepared: ModelData, windows: WindowIndex, batch_size: int) -> Iterator[ForecastBatch]:
    """Yields forecasts batch by batch; each is on the host before the next is made.

    Args:
        prepared: The model and the data.
        windows: The windows to forecast, at least one.
        batch_size: Windows per forward; the result does not depend on it, but for rounding.
    """
    size = min(batch_size, len(windows))
    for indices in evaluation_batches(len(windows), size):
        forecasts = forecast(prepared.model, prepared.builder, windows, indices)
        used = indices >= 0
        ordered, crossings = sort_quantiles(forecasts[used])
        origins = windows.origins[indices[used]]
        yield ForecastBatch(origins, ordered, horizon_labels(prepared.builder, origins), crossings)


def _check(arguments: PredictArguments) -> None:
    """Refuses arguments that make no sense whatever the data."""
    check_count("--batch-size", arguments.batch_size)
    check_count("--stride", arguments.stride)
    if arguments.stride is not None and not arguments.origins.is_given:
        raise ConfigError(
            f"--stride: thins out a range of origins, got {arguments.stride} without --from or --to; give one"
        )


def _choose_output(arguments: PredictArguments) -> Path:
    """The file to write, by default in the run folder."""
    if arguments.output is not None:
        output = Path(arguments.output)
        check_suffix(output)
        return output
    export = find_export(Path(arguments.model))
    return (export.parent if export.name == "export" else export) / DEFAULT_OUTPUT


def _protect_input(output: Path, source: ParquetSource) -> None:
    """Refuses to write where the input would be overwritten, or would be read as data the next time."""
    target = output.resolve()
    if target in (Path(file).resolve() for file in source.files):
        raise ConfigError(f"--output: '{output}' is the input itself; give another path")
    given = Path(source.path)
    in_folder = target.suffix == ".parquet" and given.is_dir() and given.resolve() in target.parents
    if in_folder or target.match(str(given.absolute())):
        raise ConfigError(
            f"--output: '{output}' would be read as data of the input '{given}' the next time; "
            "give a path outside it"
        )


def _write(
    prepared: ModelData, windows: WindowIndex, batch_size: int, output: Path, console: Console
) -> tuple[_Written, int]:
    """Forecasts all windows into the file; also returns its number of rows."""
    roles = prepared.layout.roles
    table = ForecastTable.of(
        prepared.data.table,
        kind=prepared.data.kind,
        zone=prepared.data.zone,
        series_columns=roles.series,
        targets=roles.target,
        quantiles=prepared.quantiles,
    )
    written = _Written()
    batches = track(
        forecast_batches(prepared, windows, batch_size),
        "forecasting",
        total=-(-len(windows) // min(batch_size, len(windows))),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with ForecastFile(output, table.schema) as file:
        for batch in batches:
            rows = table.rows(batch.origins, batch.forecasts, batch.actual)
            file.write(rows)
            written.crossings += batch.crossings
            written.not_finite += int((~np.isfinite(batch.forecasts)).sum())
            if not written.first:
                written.first.append(rows.slice(0, PREVIEW_ROWS))
    return written, file.num_rows


def _print_summary(
    arguments: PredictArguments,
    prepared: ModelData,
    chosen: ForecastWindows,
    written: _Written,
    console: Console,
) -> None:
    """Prints what was forecast, from what, and the first rows."""
    notes = (*prepared.data.lines, *chosen.notes, *written.notes())
    facts = [
        *prepared.facts(arguments.model),
        ("Windows", chosen.description),
        ("Device", str(next(prepared.model.parameters()).device)),
        *note_facts(notes),
    ]
    preview = preview_table(written.first[0], prepared.data.kind, plain=not console.is_terminal)
    print_report([facts_table(facts), Text(""), preview, Text("")], console)
