"""The plot of how cost grows: kept memory, peak and time over variables and over the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

BUDGET_MIB = 4 * 1024
STYLES = {
    "plain": ("#d55e00", "o"),
    "streaming": ("#0072b2", "s"),
    "checkpointing": ("#009e73", "^"),
}
"""Colour and marker. The colours (Okabe and Ito) can be told apart by the colour-blind."""
QUANTITIES = {
    "kept_mib": "kept for backward, MiB",
    "peak_mib": "peak live less states, MiB",
    "step_seconds": "step, CPU s",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """What was measured of one form at one size."""

    form: str
    hidden_size: int
    variables: int
    batch: int
    kept_mib: float
    peak_mib: float
    """Less the states."""
    step_seconds: float


def save_plot(points: Sequence[Point], path: Path) -> None:
    """Draws the points, a row of panels over variables at the smallest batch and one over batches.

    The row over batches is at the number of variables that has most of them.
    """
    if not points:
        return
    batch = min(point.batch for point in points)
    variables = max(points, key=lambda point: sum(p.variables == point.variables for p in points)).variables
    figure = Figure(figsize=(12, 7), layout="constrained")
    upper, lower = figure.subplots(2, len(QUANTITIES))
    _draw_row(upper, [point for point in points if point.batch == batch], "variables")
    _draw_row(lower, [point for point in points if point.variables == variables], "batch")
    for axes in upper:
        axes.set_xlabel(f"variables (batch {batch})")
    for axes in lower:
        axes.set_xlabel(f"batch, windows ({variables} variables)")
    upper[0].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _draw_row(panels: Sequence[Axes], points: Sequence[Point], over: str) -> None:
    """Draws each quantity over `variables` or `batch`."""
    ticks = sorted({getattr(point, over) for point in points})
    for axes, (quantity, label) in zip(panels, QUANTITIES.items(), strict=True):
        for form, (colour, marker) in STYLES.items():
            line = sorted((getattr(p, over), getattr(p, quantity)) for p in points if p.form == form)
            axes.plot(*zip(*line, strict=True), color=colour, marker=marker, label=form)
        if quantity == "peak_mib":
            axes.axhline(BUDGET_MIB, color="grey", linestyle="--", linewidth=1)
            axes.annotate("4 GiB", (ticks[0], BUDGET_MIB), color="grey", va="bottom")
        axes.set(xscale="log", yscale="log", ylabel=label)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
