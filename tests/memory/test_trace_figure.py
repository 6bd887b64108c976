from __future__ import annotations

import pytest
import torch
from trace_cases import Chain, engine_of, record

from ds_tft.memory.meter import MIB, StateBytes
from ds_tft.memory.trace.allocations import Allocations, Change
from ds_tft.memory.trace.figure import PHASE_STYLES, draw
from ds_tft.memory.trace.timeline import PHASES, timeline_of
from ds_tft.memory.trace.update_trace import trace_of


@pytest.fixture(scope="module")
def trace():
    engine = engine_of(Chain())
    record(engine, [torch.ones(1000)])
    return record(engine, [torch.ones(1000)])


def test_axes_have_names_and_units(trace):
    figure = draw(trace)
    live, blocks = figure.axes
    assert live.get_ylabel() == "live memory [MiB]"
    assert blocks.get_xlabel() == "time since the update began [ms]; recording makes it longer"
    assert blocks.get_ylabel() == "block that runs"
    assert figure.get_suptitle() == "memory of step 1"


def test_blocks_are_named_with_what_they_keep(trace):
    _, blocks = draw(trace).axes
    labels = [label.get_text() for label in blocks.get_yticklabels()]
    assert labels == [f"{name} (keeps 3.906 KiB)" for name in ("small", "large", "other")]
    assert all(len(bars.get_paths()) for bars in blocks.collections)


def test_the_line_is_the_live_memory(trace):
    live, _ = draw(trace).axes
    line = live.lines[0]
    assert max(line.get_ydata()) == trace.peak_live / MIB
    assert line.get_ydata()[0] == trace.live_before / MIB
    assert live.lines[1].get_ydata()[0] == trace.states.total / MIB
    assert live.get_ylim()[0] == 0
    assert live.get_ylim()[1] > trace.peak_live / MIB


def test_the_legend_says_peak_states_and_phases_with_units(trace):
    (legend,) = draw(trace).legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[:3] == ["live tensors", "states, 11.72 KiB", "peak, 175.8 KiB,\nin backward, large"]
    assert [text.split(",")[0] for text in texts[3:]] == list(PHASES)
    assert all("KiB" in text for text in texts[1:])


def test_phases_differ_in_colour_and_hatch():
    assert len({colour for colour, _ in PHASE_STYLES.values()}) == len(PHASES)
    assert len({hatch for _, hatch in PHASE_STYLES.values()}) == len(PHASES)


def test_an_update_that_failed_at_once_can_be_drawn():
    """Nothing was allocated, no phase began; the note is in the title."""
    for changes in ((), (Change(1.0, 4000),)):
        timeline = timeline_of(Allocations(changes=changes, marks=(), seconds=2.0))
        states = StateBytes(parameters=0, gradients=0, optimizer=0)
        figure = draw(trace_of(7, timeline, ["a"], live_before=0, states=states, kept={}), "why")
        assert figure.get_suptitle() == "memory of step 7\nwhy"
        assert figure.axes[1].get_xlabel().startswith("time since the update began [s]")


def test_a_long_note_is_in_the_figure(trace):
    figure = draw(trace, "CUDA out of memory. " * 20)
    figure.canvas.draw()
    (title,) = figure.texts
    box, whole = title.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 < box.x1 <= whole.x1
