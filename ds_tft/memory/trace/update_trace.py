"""What the trace of one update shows, in bytes, and the same by tag for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ds_tft.formatting import format_bytes
from ds_tft.memory.meter import MIB, StateBytes
from ds_tft.memory.trace.timeline import BACKWARD, FORWARD, OUTSIDE, Stretch, Timeline

OTHER = "other"
"""What belongs to no block: what the model does between its blocks, and the loss."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """Memory while a phase or a block ran, the highest of several times."""

    peak: int
    """Live bytes above those when the update began."""
    workspace: int
    """Bytes needed in between only: neither found on arrival nor left on departure."""
    seconds: float
    """Time it ran, all times together; recording makes it longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockMemory:
    """Memory of one block; `None` where it did not run."""

    name: str
    kept: int
    """Bytes kept for backward at the end of forward."""
    forward: Use | None
    backward: Use | None


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateTrace:
    """Memory of one optimizer update of this process, in bytes."""

    step: int
    live_before: int
    """Live when the update began: on CUDA all tensors, on a CPU the states."""
    states: StateBytes
    """At their largest: with all gradients, before the optimizer's step."""
    kept: int
    """Kept for backward at the end of a forward; of several micro-batches, the most."""
    phases: dict[str, Use]
    blocks: tuple[BlockMemory, ...]
    timeline: Timeline

    @property
    def peak_live(self) -> int:
        """Highest live bytes of the update, states included."""
        return self.live_before + self.timeline.peak

    @property
    def peak_beyond_states(self) -> int:
        """The same without the states at their largest."""
        return self.peak_live - self.states.total

    @property
    def peak_stretch(self) -> Stretch:
        """When and where the peak was."""
        return max(self.timeline.stretches, key=lambda each: each.peak)

    def line(self) -> str:
        """Says the most important in one line for the log."""
        phases = ", ".join(
            f"{name} {format_bytes(self.live_before + use.peak)}" for name, use in self.phases.items()
        )
        return (
            f"memory of step {self.step}: peak live {format_bytes(self.peak_live)} ({phases}), of it states "
            f"{format_bytes(self.states.total)}; kept for backward {format_bytes(self.kept)}"
        )

    def scalars(self) -> dict[str, float]:
        """Returns MiB by tag."""
        found: dict[str, int] = {
            "trace/peak_live_mib": self.peak_live,
            "trace/peak_beyond_states_mib": self.peak_beyond_states,
            "trace/kept_for_backward_mib": self.kept,
            "trace/parameters_mib": self.states.parameters,
            "trace/gradients_mib": self.states.gradients,
            "trace/optimizer_mib": self.states.optimizer,
        }
        for phase, use in self.phases.items():
            found[f"trace/{phase}_peak_live_mib"] = self.live_before + use.peak
            found[f"trace/{phase}_workspace_mib"] = use.workspace
        for block in self.blocks:
            found[f"trace_blocks/{block.name}_kept_mib"] = block.kept
            for pass_, block_use in ((FORWARD, block.forward), (BACKWARD, block.backward)):
                if block_use is not None:
                    found[f"trace_blocks/{block.name}_{pass_}_workspace_mib"] = block_use.workspace
        return {tag: size / MIB for tag, size in found.items()}

    def record(self) -> dict[str, Any]:
        """Returns all but the course over time, for a JSON file; memory in MiB, time in seconds."""
        return {
            "step": self.step,
            "live_before_mib": self.live_before / MIB,
            "peak_live_mib": self.peak_live / MIB,
            "peak_phase": self.peak_stretch.place.phase,
            "peak_block": self.peak_stretch.place.block or OTHER,
            "peak_beyond_states_mib": self.peak_beyond_states / MIB,
            "kept_for_backward_mib": self.kept / MIB,
            "states_mib": {
                "parameters": self.states.parameters / MIB,
                "gradients": self.states.gradients / MIB,
                "optimizer": self.states.optimizer / MIB,
            },
            "phases": {name: self._use(use) for name, use in self.phases.items()},
            "blocks": {
                block.name: {
                    "kept_mib": block.kept / MIB,
                    FORWARD: self._use(block.forward),
                    BACKWARD: self._use(block.backward),
                }
                for block in self.blocks
            },
        }

    def _use(self, use: Use | None) -> dict[str, float] | None:
        """Returns a use as a JSON object."""
        if use is None:
            return None
        return {
            "peak_live_mib": (self.live_before + use.peak) / MIB,
            "workspace_mib": use.workspace / MIB,
            "seconds": use.seconds,
        }


def trace_of(
    step: int,
    timeline: Timeline,
    blocks: Iterable[str],
    *,
    live_before: int,
    states: StateBytes,
    kept: Mapping[str, int],
) -> UpdateTrace:
    """Sums up what was recorded.

    Args:
        step: Number of the update.
        timeline: Live bytes.
        blocks: Names of all blocks, in order.
        live_before: Live bytes when the update began.
        states: At their largest.
        kept: Bytes kept for backward by block.
    """
    by_phase = _grouped(timeline.runs(lambda place: place.phase), lambda run: run.place.phase)
    by_block = _grouped(timeline.runs(lambda place: place), lambda run: run.place)
    found = []
    for name in (*blocks, OUTSIDE):
        forward, backward = by_block.get((FORWARD, name)), by_block.get((BACKWARD, name))
        if forward or backward or kept.get(name):
            block = BlockMemory(
                name=name or OTHER, kept=kept.get(name, 0), forward=forward, backward=backward
            )
            found.append(block)
    return UpdateTrace(
        step=step,
        live_before=live_before,
        states=states,
        kept=sum(kept.values()),
        phases={name: use for name, use in by_phase.items() if name != OUTSIDE},
        blocks=tuple(found),
        timeline=timeline,
    )


def _grouped(runs: Iterable[Stretch], key: Any) -> dict[Any, Use]:
    """Joins what ran several times."""
    uses: dict[Any, Use] = {}
    for run in runs:
        before = uses.get(key(run), Use(peak=run.peak, workspace=0, seconds=0.0))
        uses[key(run)] = Use(
            peak=max(before.peak, run.peak),
            workspace=max(before.workspace, run.workspace),
            seconds=before.seconds + run.stop - run.start,
        )
    return uses
