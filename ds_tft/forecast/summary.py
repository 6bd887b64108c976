"""The closing words of a training run: what went in, what it cost, how good it is, what to do next."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ds_tft.forecast.metrics import ErrorReport, Errors, level_name
from ds_tft.formatting import format_bytes, format_number, format_seconds

PLAIN_WIDTH = 100
MOST_LEVELS = 3
MEASURES = ("loss", "q-risk")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """Everything that the closing summary shows."""

    rows: int
    series: int
    windows: tuple[tuple[str, int], ...]
    """Split and number of its windows, in the order to show them."""
    dropped: tuple[str, ...] = ()
    """What was left out, filled or put in place of something else, and why, one line each."""
    parameters: int
    parameter_bytes: int
    epochs: int
    steps: int
    training_seconds: float
    seconds_per_step: float
    windows_per_second: float
    device: str
    peak_host_bytes: int
    peak_cuda_bytes: int | None
    """`None` without CUDA."""
    targets: tuple[str, ...]
    model: ErrorReport | None
    """Errors over the test period, in original units; `None` where it has no windows."""
    baselines: tuple[tuple[str, ErrorReport], ...] = ()
    """Name and errors over the same windows."""
    run_folder: str
    next_commands: tuple[str, ...] = ()


def print_summary(summary: RunSummary, console: Console) -> None:
    """Prints the summary: plain text, 100 columns wide, where the console is not a terminal."""
    plain = not console.is_terminal
    content = Group(*_blocks(summary, plain))
    # Soft wrap keeps the console from breaking lines at a width of its own.
    console.print(_as_text(content) if plain else content, soft_wrap=plain)
    for command in summary.next_commands:
        console.print(Text(f"  {command}"), soft_wrap=True)  # never broken, so that it can be copied


def _as_text(content: Group) -> Text:
    """Lays the content out in plain text."""
    page = Console(file=io.StringIO(), width=PLAIN_WIDTH, color_system=None, force_terminal=False)
    with page.capture() as capture:
        page.print(content)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    kept = [line for line, before in zip(lines, ["", *lines], strict=False) if line or before]
    return Text("\n".join(kept))


def _blocks(summary: RunSummary, plain: bool) -> Iterator[RenderableType]:
    """Everything but the commands, from top to bottom."""
    yield _facts(summary)
    if summary.model is None:
        yield Text("\nTest: no windows, so nothing to compare.")
    else:
        for index, target in enumerate(summary.targets):
            yield Text(f"\nTest: {target}, in original units", style="bold")
            for measure in MEASURES:
                yield _scores(summary, summary.model, index, measure, plain)
                yield Text("")
        for note in _score_notes(summary, summary.model):
            yield Text(note)
    if summary.next_commands:
        yield Text("\nNext:", style="bold")


def _facts(summary: RunSummary) -> Table:
    """The lines before the scores: a name and what there is to say."""
    windows = ", ".join(f"{name} {count:,}" for name, count in summary.windows)
    memory = f"host {format_bytes(summary.peak_host_bytes)}"
    if summary.peak_cuda_bytes is not None:
        memory += f", CUDA {format_bytes(summary.peak_cuda_bytes)} allocated"
    lines = [
        ("Data", f"{summary.rows:,} rows, {summary.series:,} series"),
        ("Windows", windows),
        *(("Notes" if first else "", line) for first, line in _first_marked(summary.dropped)),
        ("Model", f"{summary.parameters:,} parameters, {format_bytes(summary.parameter_bytes)}"),
        (
            "Training",
            f"{summary.epochs:,} epochs, {summary.steps:,} steps in "
            f"{format_seconds(summary.training_seconds)} on {summary.device}",
        ),
        (
            "Speed",
            f"{format_seconds(summary.seconds_per_step)} per step, "
            f"{format_number(summary.windows_per_second)} windows/s",
        ),
        ("Peak memory", memory),
        ("Run folder", summary.run_folder),
    ]
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, line in lines:
        table.add_row(name, Text(line))
    return table


def _scores(summary: RunSummary, model: ErrorReport, target: int, measure: str, plain: bool) -> Table:
    """One measure per level: the model, the baselines, and the model against the best baseline."""
    levels = _shown_levels(model)
    table = Table(box=box.MARKDOWN if plain else box.SIMPLE_HEAD, show_edge=plain, pad_edge=plain)
    table.add_column(measure)
    for heading in (*(level_name(model.quantiles[level]).upper() for level in levels), "mean"):
        table.add_column(heading, justify="right", no_wrap=True)
    own = _figures(model.targets[target], measure, levels)
    others = [_figures(report.targets[target], measure, levels) for _, report in summary.baselines]
    table.add_row("this model", *map(format_number, own), style="bold")
    for (name, _), figures in zip(summary.baselines, others, strict=True):
        table.add_row(name, *map(format_number, figures))
    if others:
        best = [_smallest(column) for column in zip(*others, strict=True)]
        ratios = [mine / other if other else math.nan for mine, other in zip(own, best, strict=True)]
        table.add_row("model / best baseline", *map(format_number, ratios), style="bold")
    return table


def _score_notes(summary: RunSummary, model: ErrorReport) -> Iterator[str]:
    """What the tables leave unsaid."""
    if summary.baselines:
        yield "A ratio below 1 means that the model is better than the best baseline of that column."
    hidden = len(model.quantiles) - len(_shown_levels(model))
    if hidden:
        yield f"{hidden} of {len(model.quantiles)} levels are not shown; the run folder has them all."
    for target, errors in zip(summary.targets, model.targets, strict=True):
        for (low, high), share in zip(model.intervals[:1], errors.interval_coverage[:1], strict=True):
            yield (
                f"{target}: {format_number(100 * share)} % of labels lie between {level_name(low).upper()} "
                f"and {level_name(high).upper()} ({format_number(100 * (high - low))} % expected)"
            )
    yield from model.notes


def _shown_levels(model: ErrorReport) -> list[int]:
    """All levels if few, otherwise the lowest, the median and the highest."""
    count = len(model.quantiles)
    if count <= MOST_LEVELS:
        return list(range(count))
    return sorted({0, model.quantiles.index(model.median_level), count - 1})


def _figures(errors: Errors, measure: str, levels: list[int]) -> list[float]:
    """The measure at the levels shown, then its mean over all levels."""
    values, mean = (errors.pinball, errors.mean_pinball) if measure == "loss" else (errors.q_risk, errors.wql)
    return [*(values[level] for level in levels), mean]


def _smallest(values: tuple[float, ...]) -> float:
    """The smallest value that is a number; NaN where none is."""
    return min((value for value in values if not math.isnan(value)), default=math.nan)


def _first_marked(lines: tuple[str, ...]) -> Iterator[tuple[bool, str]]:
    """Each line with whether it is the first."""
    for index, line in enumerate(lines):
        yield index == 0, line
