"""The closing words of a training run: what went in, what it cost, how good it is, what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.text import Text

from ds_tft.forecast.evaluate import ScaledComparison
from ds_tft.forecast.metrics import ErrorReport
from ds_tft.forecast.report import facts_table, note_facts, print_report
from ds_tft.forecast.scaled_errors import ScaledReport
from ds_tft.forecast.score_tables import Scores, Variant, score_blocks
from ds_tft.formatting import format_bytes, format_number, format_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Int8Summary:
    """The INT8 model of a run."""

    folder: str
    line: str
    """What it is, in a few words."""
    bytes: int
    model: ErrorReport | None
    """Errors over the test period; `None` where it has no windows."""
    scaled: ScaledReport | None
    """The same in units of the seasonal naive forecast; `None` where the time step has no season."""


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
    resumed_step: int = 0
    """Step that a resumed run went on from."""
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
    scaled: ScaledComparison | None = None
    """SQL and MASE over the same windows; `None` where the time step has no season."""
    int8: Int8Summary | None = None
    """`None` where the settings ask for none."""
    run_folder: str
    next_commands: tuple[str, ...] = ()


def print_summary(summary: RunSummary, console: Console) -> None:
    """Prints the summary: plain text, 100 columns wide, where the console is not a terminal."""
    print_report(_blocks(summary, not console.is_terminal), console)
    for command in summary.next_commands:
        console.print(Text(f"  {command}"), soft_wrap=True)  # never broken, so that it can be copied


def _blocks(summary: RunSummary, plain: bool) -> Iterator[RenderableType]:
    """Everything but the commands, from top to bottom."""
    yield facts_table(_facts(summary))
    if summary.model is None:
        yield Text("\nTest: no windows, so nothing to compare.")
    else:
        scores = Scores(
            title="Test",
            targets=summary.targets,
            model=summary.model,
            baselines=summary.baselines,
            scaled=summary.scaled,
            variants=_variants(summary.int8),
        )
        yield from score_blocks(scores, plain)
    if summary.next_commands:
        yield Text("\nNext:", style="bold")


def _facts(summary: RunSummary) -> list[tuple[str, str]]:
    """The lines before the scores: a name and what there is to say."""
    windows = ", ".join(f"{name} {count:,}" for name, count in summary.windows)
    memory = f"host {format_bytes(summary.peak_host_bytes)}"
    if summary.peak_cuda_bytes is not None:
        memory += f", CUDA {format_bytes(summary.peak_cuda_bytes)} allocated"
    return [
        ("Data", f"{summary.rows:,} rows, {summary.series:,} series"),
        ("Windows", windows),
        *note_facts(summary.dropped),
        ("Model", f"{summary.parameters:,} parameters, {format_bytes(summary.parameter_bytes)}"),
        (
            "Training",
            f"{summary.epochs:,} epochs, {summary.steps:,} steps{_resumed(summary)} in "
            f"{format_seconds(summary.training_seconds)} on {summary.device}",
        ),
        (
            "Speed",
            f"{format_seconds(summary.seconds_per_step)} per step, "
            f"{format_number(summary.windows_per_second)} windows/s",
        ),
        ("Peak memory", memory),
        *_int8_facts(summary),
        ("Run folder", summary.run_folder),
    ]


def _variants(int8: Int8Summary | None) -> tuple[Variant, ...]:
    """The INT8 model, to be shown beside that in floating point."""
    if int8 is None or int8.model is None:
        return ()
    return (Variant(name="INT8 model", errors=int8.model, scaled=int8.scaled),)


def _int8_facts(summary: RunSummary) -> list[tuple[str, str]]:
    """What the INT8 model is."""
    int8 = summary.int8
    if int8 is None:
        return []
    share = int8.bytes / summary.parameter_bytes
    return [("INT8 model", f"{int8.line}, {format_bytes(int8.bytes)}, {share:.3f} of fp32, in {int8.folder}")]


def _resumed(summary: RunSummary) -> str:
    """How many of the steps the time is that of, in a resumed run."""
    done = summary.steps - summary.resumed_step
    return f", {done:,} of them since step {summary.resumed_step:,}," if summary.resumed_step else ""
