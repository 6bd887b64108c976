"""The errors of a model beside those of the baselines, as tables to print."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ds_tft.forecast.evaluate import ScaledComparison
from ds_tft.forecast.metrics import ErrorReport, level_name
from ds_tft.forecast.report import figures_table
from ds_tft.forecast.scaled_errors import ScaledReport
from ds_tft.formatting import format_number

MOST_LEVELS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """Another form of the same model."""

    name: str
    errors: ErrorReport
    """Over the same windows."""
    scaled: ScaledReport | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Errors over the windows of one period."""

    title: str
    """What the windows are, such as `Test`."""
    targets: tuple[str, ...]
    model: ErrorReport
    baselines: tuple[tuple[str, ErrorReport], ...] = ()
    """Name and errors over the same windows."""
    scaled: ScaledComparison | None = None
    variants: tuple[Variant, ...] = ()


def score_blocks(scores: Scores, plain: bool) -> Iterator[RenderableType]:
    """Yields, for every target, tables of the loss, the q-risk and the errors of the median; then notes.

    Args:
        scores: The errors.
        plain: Draw for plain text rather than a terminal.
    """
    for target, name in enumerate(scores.targets):
        yield Text(f"\n{scores.title}: {name}, in original units", style="bold")
        for measure in ("loss", "q-risk"):
            yield _level_table(scores, target, measure, plain)
            yield Text("")
        yield _median_table(scores, target, plain)
        yield Text("")
    for note in _notes(scores):
        yield Text(note)


def _level_table(scores: Scores, target: int, measure: str, plain: bool) -> Table:
    """One measure per level, then its mean over all levels."""
    levels = _shown_levels(scores.model)
    names = [level_name(scores.model.quantiles[level]).upper() for level in levels]

    def figures(report: ErrorReport) -> list[float]:
        errors = report.targets[target]
        values, mean = (
            (errors.pinball, errors.mean_pinball) if measure == "loss" else (errors.q_risk, errors.wql)
        )
        return [*(values[level] for level in levels), mean]

    return _comparison(
        measure,
        [*names, "mean"],
        _Figures(
            own=figures(scores.model),
            variants=[(variant.name, figures(variant.errors)) for variant in scores.variants],
            baselines=[(name, figures(report)) for name, report in scores.baselines],
        ),
        plain,
    )


def _median_table(scores: Scores, target: int, plain: bool) -> Table:
    """Errors of the median and, where there is a season, errors in units of the seasonal naive forecast's."""
    scaled = scores.scaled

    def figures(report: ErrorReport, in_seasons: ScaledReport | None) -> list[float]:
        errors = report.targets[target]
        shared = [] if in_seasons is None else [in_seasons.target_mase[target], in_seasons.target_sql[target]]
        return [errors.mae, errors.rmse, *shared]

    of_baselines = {} if scaled is None else dict(scaled.baselines)
    return _comparison(
        "error",
        ["MAE", "RMSE", *(() if scaled is None else ("MASE", "SQL"))],
        _Figures(
            own=figures(scores.model, None if scaled is None else scaled.model),
            variants=[(variant.name, figures(variant.errors, variant.scaled)) for variant in scores.variants],
            baselines=[(name, figures(report, of_baselines.get(name))) for name, report in scores.baselines],
        ),
        plain,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Figures:
    """The rows of a table."""

    own: list[float]
    variants: list[tuple[str, list[float]]]
    baselines: list[tuple[str, list[float]]]


def _comparison(measure: str, headings: list[str], figures: _Figures, plain: bool) -> Table:
    """The model in its forms, the baselines, and the model against the best baseline of each column."""
    table = figures_table(plain)
    table.add_column(measure)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row("this model", *map(format_number, figures.own), style="bold")
    for name, row in (*figures.variants, *figures.baselines):
        table.add_row(name, *map(format_number, row))
    if figures.baselines:
        best = [_smallest(column) for column in zip(*(row for _, row in figures.baselines), strict=True)]
        ratios = [mine / other if other else math.nan for mine, other in zip(figures.own, best, strict=True)]
        table.add_row("model / best baseline", *map(format_number, ratios), style="bold")
    return table


def _notes(scores: Scores) -> Iterator[str]:
    """What the tables leave unsaid."""
    model, scaled = scores.model, scores.scaled
    if scores.baselines:
        yield "A ratio below 1 means that the model is better than the best baseline of that column."
    hidden = len(model.quantiles) - len(_shown_levels(model))
    if hidden:
        yield f"{hidden} of {len(model.quantiles)} levels are not shown; evaluation.json has them all."
    yield f"MAE and RMSE are those of {level_name(model.median_level).upper()}."
    if scaled is not None:
        yield (
            "MASE and SQL are in units of the error that the value of "
            f"{scaled.season} rows earlier makes in the training rows of the series."
        )
        yield from scaled.model.notes
    for target, errors in zip(scores.targets, model.targets, strict=True):
        shares = ", ".join(
            f"{level_name(level).upper()} {format_number(100 * share)} %"
            for level, share in zip(model.quantiles, errors.coverage, strict=True)
        )
        yield f"{target}: labels at or below each level: {shares}"
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


def _smallest(values: tuple[float, ...]) -> float:
    """The smallest value that is a number; NaN where none is."""
    return min((value for value in values if not math.isnan(value)), default=math.nan)
