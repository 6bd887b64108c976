"""The course of one update: live bytes over time, phases shaded, and below it which block ran when."""

from __future__ import annotations

from itertools import pairwise
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ds_tft.formatting import format_bytes, format_seconds
from ds_tft.memory.meter import MIB
from ds_tft.memory.trace.timeline import BACKWARD, FORWARD, OPTIMIZER, OUTSIDE
from ds_tft.memory.trace.update_trace import OTHER, UpdateTrace

# Okabe and Ito's colours, which the colour-blind tell apart; hatches tell them apart in print.
PHASE_STYLES = {FORWARD: ("#56B4E9", ""), BACKWARD: ("#E69F00", "//"), OPTIMIZER: ("#009E73", "..")}
LINE_COLOUR, STATES_COLOUR = "#000000", "#D55E00"
INCHES_WIDE, INCHES_HIGH, INCHES_PER_BLOCK = 11.0, 4.2, 0.24
DOTS_PER_INCH = 110
TITLE_WIDTH = 120  # characters
SECONDS, MILLISECONDS = ("s", 1.0), ("ms", 1e3)


def draw(trace: UpdateTrace, note: str = "") -> Figure:
    """Draws a trace.

    Args:
        trace: The update.
        note: Goes below the title, such as why the update ended.
    """
    height = INCHES_PER_BLOCK * max(1, len(trace.blocks))
    figure = Figure(figsize=(INCHES_WIDE, INCHES_HIGH + height), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    live, blocks = figure.subplots(2, 1, sharex=True, height_ratios=(INCHES_HIGH, height))
    duration = trace.timeline.stretches[-1].stop
    unit, per_second = SECONDS if duration >= 1 else MILLISECONDS
    _draw_live(live, trace, per_second)
    _draw_blocks(blocks, trace, per_second)
    for axes in (live, blocks):
        _shade_phases(axes, trace, per_second)
        axes.set_xlim(0, duration * per_second)
    blocks.set_xlabel(f"time since the update began [{unit}]; recording makes it longer")
    title = "\n".join([f"memory of step {trace.step}", *wrap(note, TITLE_WIDTH)])
    figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize="medium")
    figure.legend(handles=_legend(live, trace), loc="outside right center", frameon=False)
    return figure


def _draw_live(axes: Axes, trace: UpdateTrace, per_second: float) -> None:
    """Live bytes over time, with the states and the peak."""
    line, before = trace.timeline, trace.live_before
    seconds = np.concatenate([[0.0], line.seconds, [line.stretches[-1].stop]])
    live = np.concatenate([[0], line.live, line.live[-1:] if len(line.live) else [0]])
    mib = (before + live) / MIB
    axes.step(seconds * per_second, mib, where="post", color=LINE_COLOUR, linewidth=1, label="live tensors")
    states = trace.states.total
    axes.axhline(
        states / MIB,
        color=STATES_COLOUR,
        linestyle="--",
        linewidth=1.2,
        label=f"states, {format_bytes(states)}",
    )
    at = int(live.argmax())
    place = trace.peak_stretch.place
    axes.plot(
        seconds[at] * per_second,
        mib[at],
        linestyle="none",
        marker="v",
        color=LINE_COLOUR,
        label=f"peak, {format_bytes(trace.peak_live)},\nin {place.phase or 'no phase'}, {place.block or OTHER}",
    )
    axes.set_ylim(0, max(mib.max(), states / MIB) * 1.08 or 1)
    axes.set_ylabel("live memory [MiB]")
    axes.grid(axis="y", alpha=0.3)


def _draw_blocks(axes: Axes, trace: UpdateTrace, per_second: float) -> None:
    """A row for each block, with a bar while it runs."""
    rows = {block.name: row for row, block in enumerate(trace.blocks)}
    runs = [run for run in trace.timeline.runs(lambda place: place) if run.place.phase in (FORWARD, BACKWARD)]
    for name, row in rows.items():
        bars = [
            (run.start * per_second, (run.stop - run.start) * per_second)
            for run in runs
            if (run.place.block or OTHER) == name
        ]
        # An edge, so that a block that ran for a moment can be seen.
        axes.broken_barh(bars, (row - 0.4, 0.8), facecolor=LINE_COLOUR, edgecolor=LINE_COLOUR, linewidth=0.8)
    labels = [
        f"{block.name} (keeps {format_bytes(block.kept)})" if block.kept else block.name
        for block in trace.blocks
    ]
    axes.set_yticks(range(len(rows)), labels, fontsize="small")
    axes.set_ylim(max(1, len(rows)) - 0.5, -0.5)
    axes.set_ylabel("block that runs")
    axes.grid(axis="y", alpha=0.3)


def _shade_phases(axes: Axes, trace: UpdateTrace, per_second: float) -> None:
    """Colours the background by phase, with a line at each change."""
    runs = trace.timeline.runs(lambda place: place.phase)
    for run in runs:
        if run.place.phase != OUTSIDE:
            colour, hatch = PHASE_STYLES.get(run.place.phase, ("#999999", ""))
            start, stop = run.start * per_second, run.stop * per_second
            axes.axvspan(
                start,
                stop,
                facecolor=colour,
                edgecolor=colour,
                hatch=hatch,
                alpha=0.22,
                linewidth=0,
                zorder=0,
            )
    for _, run in pairwise(runs):
        axes.axvline(run.start * per_second, color="#999999", linewidth=0.5)


def _legend(axes: Axes, trace: UpdateTrace) -> list[object]:
    """What the lines and the shades mean; a phase with its time."""
    handles: list[object] = list(axes.get_legend_handles_labels()[0])
    for name, use in trace.phases.items():
        colour, hatch = PHASE_STYLES.get(name, ("#999999", ""))
        label = f"{name}, {format_seconds(use.seconds)},\npeak {format_bytes(trace.live_before + use.peak)}"
        handles.append(Patch(facecolor=colour, edgecolor=colour, alpha=0.4, hatch=hatch, label=label))
    return handles
