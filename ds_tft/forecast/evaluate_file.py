"""The errors of a trained model on a file, beside those of the baselines.

Letters: N rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.text import Text

from ds_tft.data.forecast_data import ForecastData
from ds_tft.data.parquet import open_source
from ds_tft.data.split import Split, SplitBounds
from ds_tft.data.times import time_text
from ds_tft.data.windows import WindowIndex, find_windows, windows_between
from ds_tft.errors import ConfigError, DataError
from ds_tft.export import read_export
from ds_tft.forecast.baselines import make_baselines
from ds_tft.forecast.evaluate import Evaluation, Progress, evaluate, write_evaluation
from ds_tft.forecast.forecast_windows import describe_windows, dropped_notes
from ds_tft.forecast.model_data import ModelData, check_count, output_folder, prepare_model_data
from ds_tft.forecast.report import facts_table, note_facts, print_report
from ds_tft.forecast.scaled_errors import seasonal_scale
from ds_tft.forecast.score_tables import Scores, score_blocks
from ds_tft.forecast.time_range import TimeRange

SUFFIX = ".json"


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateArguments:
    """What the command line of `launch/evaluate.py` said."""

    model: str
    parquet: str
    split: Split | None = None
    """None means `test`, unless a range of origins is given."""
    origins: TimeRange = TimeRange()
    batch_size: int | None = None
    output: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chosen:
    """The windows of an evaluation."""

    windows: WindowIndex
    period: str
    notes: tuple[str, ...]


def evaluate_file(arguments: EvaluateArguments, console: Console) -> Evaluation:
    """Evaluates a trained model on a file and prints the result.

    Args:
        arguments: The command line.
        console: Where to print; progress is shown on a terminal.

    Returns:
        The errors, as written to `arguments.output`.

    Raises:
        UserError: Something in the arguments or the data that the user can mend.
    """
    output = _check(arguments)
    loaded = read_export(Path(arguments.model))
    prepared = prepare_model_data(loaded, open_source(arguments.parquet), beyond_end=False)
    chosen = _choose_windows(prepared, arguments)
    if output is not None:
        output_folder(output)
    evaluation, notes = _evaluate(prepared, chosen, arguments.batch_size, console)
    if not evaluation.model.overall.labels:
        raise DataError(
            f"{arguments.parquet}: none of the {len(chosen.windows):,} windows has a label; give data with "
            "targets after the origins"
        )
    _print(arguments, prepared, chosen, evaluation, notes, console)
    if output is not None:
        try:
            write_evaluation(output, evaluation)
        except OSError as error:
            raise ConfigError(f"--output: cannot write '{output}', got {error}; give another path") from None
        console.print(Text(f"written: {output}"), soft_wrap=True)
    return evaluation


def _check(arguments: EvaluateArguments) -> Path | None:
    """Refuses arguments that make no sense whatever the data; returns the file to write."""
    check_count("--batch-size", arguments.batch_size)
    if arguments.split is not None and arguments.origins.is_given:
        raise ConfigError(
            f"--split: a range of origins is given too, got '{arguments.split}'; give one of the two"
        )
    if arguments.output is None:
        return None
    output = Path(arguments.output)
    if output.suffix.lower() != SUFFIX:
        raise ConfigError(f"--output: the evaluation is JSON, got '{output.name}'; end it in {SUFFIX}")
    return output


def _choose_windows(prepared: ModelData, arguments: EvaluateArguments) -> _Chosen:
    """The windows of the split or of the range."""
    data, window = prepared.data, prepared.builder.window
    if not arguments.origins.is_given:
        return _split_windows(prepared, arguments.split or "test", arguments.parquet)
    first, last = arguments.origins.read(data)
    windows, report = windows_between(data.table, window, first, last, window.evaluation_stride)
    return _Chosen(
        windows=windows,
        period=f"origins from {time_text(first, data.kind)} to {time_text(last, data.kind)}",
        notes=tuple(dropped_notes(report)),
    )


def _split_windows(prepared: ModelData, split: Split, parquet: str) -> _Chosen:
    """The windows that training gave to a split, found in this file."""
    data, bounds, table = prepared.data, prepared.description.bounds, prepared.data.table
    if not bounds.has(split):
        raise ConfigError(
            f"--split: the model was trained without a {split} period, got '{split}'; give another split, or "
            "--from and --to"
        )
    windows, report = find_windows(table, prepared.builder.window, bounds, required=())
    if not len(windows[split]):
        start, end = bounds.period(split)
        times = table.times[~table.synthetic]
        period, rows = (
            f"{time_text(int(first), data.kind)} to {time_text(int(last), data.kind)}"
            for first, last in ((start, end - 1), (times.min(), times.max()))
        )
        raise DataError(
            f"{parquet}: no window has its labels in the {split} period of the model, {period}, "
            f"got rows from {rows}; give the file of the training, or --from and --to"
        )
    return _Chosen(windows=windows[split], period=split, notes=(*report.lines(), *_later_rows(data, bounds)))


def _later_rows(data: ForecastData, bounds: SplitBounds) -> tuple[str, ...]:
    """Says that the file goes on after the data of the training."""
    later = int(((data.table.times > bounds.last_time) & ~data.table.synthetic).sum())
    if not later:
        return ()
    return (
        f"{later:,} rows are later than {time_text(bounds.last_time, data.kind)}, where the data of the "
        "training ended; they belong to no split, --from and --to reach them",
    )


def _evaluate(
    prepared: ModelData, chosen: _Chosen, batch_size: int | None, console: Console
) -> tuple[Evaluation, tuple[str, ...]]:
    """Evaluates; also returns notes about what the baselines could learn from."""
    table, bounds = prepared.data.table, prepared.description.bounds
    train_rows = (table.times < bounds.train_end) & ~table.synthetic  # (N,)
    season = prepared.layout.step.seasonal_periods()
    baselines = make_baselines(
        table,
        train_rows,
        horizon=prepared.builder.window.horizon,
        quantiles=prepared.quantiles,
        season=season,
    )
    scale = seasonal_scale(table, prepared.builder.target, train_rows, season) if train_rows.any() else None
    evaluation = evaluate(
        prepared.model,
        prepared.builder,
        chosen.windows,
        prepared.quantiles,
        baselines,
        batch_size=batch_size or prepared.description.batch_size,
        scale=scale,
        progress=_progress(console),
    )
    return replace(evaluation, period=chosen.period), _training_notes(prepared.data, train_rows, bounds)


def _training_notes(
    data: ForecastData, train_rows: NDArray[np.bool_], bounds: SplitBounds
) -> tuple[str, ...]:
    """Says where the file lacks rows of the training period, from which baselines learn."""
    end = time_text(bounds.train_end, data.kind)
    if not train_rows.any():
        return (
            f"baselines: no row of the file is before {end}, the end of the training period; those that "
            "learn from training rows are left out, and so are MASE and SQL",
        )
    first = int(data.table.times[train_rows].min())
    if first <= bounds.first_time:
        return ()
    return (
        f"baselines: they learn from {time_text(first, data.kind)} to before {end}; the data of the training "
        f"began {time_text(bounds.first_time, data.kind)}",
    )


def _progress(console: Console) -> Progress:
    """A bar on a terminal, nothing elsewhere."""

    def show(batches: NDArray[np.int64]) -> Iterable[NDArray[np.int64]]:
        return track(
            list(batches), "evaluating", console=console, transient=True, disable=not console.is_terminal
        )

    return show


def _print(
    arguments: EvaluateArguments,
    prepared: ModelData,
    chosen: _Chosen,
    evaluation: Evaluation,
    notes: tuple[str, ...],
    console: Console,
) -> None:
    """Prints what was evaluated, and the errors."""
    lines = (*prepared.data.lines, *chosen.notes, *notes, *evaluation.notes)
    overall = evaluation.model.overall
    facts = [
        *prepared.facts(arguments.model),
        ("Period", evaluation.period),
        ("Windows", describe_windows(prepared.data, chosen.windows)),
        ("Labels", f"{overall.labels:,} known, {overall.unknown_labels:,} unknown"),
        ("Crossings", f"{overall.crossings:,} neighbouring levels out of order"),
        *note_facts(lines),
    ]
    scores = Scores(
        title=evaluation.period[0].upper() + evaluation.period[1:],
        targets=prepared.layout.roles.target,
        model=evaluation.model,
        baselines=evaluation.baselines,
        scaled=evaluation.scaled,
    )
    print_report([facts_table(facts), *score_blocks(scores, not console.is_terminal)], console)
