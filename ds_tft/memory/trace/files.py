"""Where traces go: folder `traces` of the run folder, and TensorBoard. All of it is on disk at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ds_tft.memory.trace.failure import OutOfMemory
from ds_tft.memory.trace.update_trace import UpdateTrace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = "traces"
FAILURE_NAME = "out-of-memory"
FIGURE_TAG, FAILURE_TAG = "trace/timeline", "trace/out_of_memory"


class TensorBoard(Protocol):
    """What is asked of the run's TensorBoard writer."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes values by tag."""

    def figure(self, step: int, tag: str, figure: Figure) -> None:
        """Writes a figure."""

    def text(self, step: int, tag: str, text: str) -> None:
        """Writes a text."""

    def flush(self) -> None:
        """Writes everything to disk now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceFiles:
    """Writes traces of one process."""

    run_folder: Path
    tensorboard: TensorBoard
    suffix: str = ""
    """Ends the names of files of all processes but the first."""

    def path(self, name: str, ending: str) -> Path:
        """Returns the path of a trace, and sees to it that its folder is there."""
        folder = self.run_folder / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}{self.suffix}{ending}"

    def write_trace(self, trace: UpdateTrace) -> None:
        """Writes `step-N.json` and `.png`, scalars and the figure."""
        name = step_name(trace.step)
        self._write_json(name, trace.record())
        self.tensorboard.write(trace.step, trace.scalars())
        self._write_figure(name, trace, FIGURE_TAG, note="")

    def write_failure(self, failure: OutOfMemory, trace: UpdateTrace | None) -> None:
        """Writes `out-of-memory.json`, and, if the update was recorded, what was seen of it and `.png`."""
        self._write_json(
            FAILURE_NAME, failure.record() | ({} if trace is None else {"trace": trace.record()})
        )
        self.tensorboard.text(failure.step, FAILURE_TAG, failure.line())
        self.tensorboard.flush()
        if trace is not None:
            self._write_figure(FAILURE_NAME, trace, FAILURE_TAG, note=failure.line())

    def _write_json(self, name: str, record: Mapping[str, Any]) -> None:
        """Writes one object."""
        text = json.dumps(record, indent=2, allow_nan=False)
        self.path(name, ".json").write_text(text + "\n", encoding="utf-8")

    def _write_figure(self, name: str, trace: UpdateTrace, tag: str, note: str) -> None:
        """Writes the timeline as a file and to TensorBoard."""
        from ds_tft.memory.trace.figure import draw  # here: matplotlib takes half a second to import

        figure = draw(trace, note)
        figure.savefig(self.path(name, ".png"))
        self.tensorboard.figure(trace.step, tag, figure)
        self.tensorboard.flush()


def step_name(step: int) -> str:
    """Returns the name of an update's files."""
    return f"step-{step}"
