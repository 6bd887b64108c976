"""Records one update: allocations, the place that they belong to, states, and what is kept for backward."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ds_tft.memory.meter import KeptForBackward, StateBytes
from ds_tft.memory.trace.allocations import AllocationRecorder
from ds_tft.memory.trace.blocks import BlockWatch
from ds_tft.memory.trace.states import Engine, engine_states
from ds_tft.memory.trace.timeline import FORWARD, OPTIMIZER, OUTSIDE, Place, timeline_of
from ds_tft.memory.trace.update_trace import UpdateTrace, trace_of


class UpdateRecording:
    """Records from `start` to `stop`; the phases in between are entered one after the other.

    Args:
        engine: Whose update it is.
        device: Whose memory is recorded.
    """

    def __init__(self, engine: Engine, device: torch.device) -> None:
        self._engine = engine
        self._device = device
        self._recorder = AllocationRecorder[Place](device)
        self._watch = BlockWatch(engine.module, self._recorder.mark, self._exclude_inputs)
        self._watching = self._watch.watching()
        self._kept_meter = KeptForBackward()
        self._kept: dict[str, int] = {}
        self._states = StateBytes(parameters=0, gradients=0, optimizer=0)
        self._live_before = 0

    @property
    def last_block(self) -> str:
        """The block that was entered last."""
        return self._watch.last_block

    def start(self) -> None:
        """Begins to record."""
        gc.collect()  # so that no garbage of earlier updates is freed in this one
        self._states = engine_states(self._engine, self._device)
        self._live_before = self._states.total
        if self._device.type == "cuda":
            self._live_before = torch.cuda.memory_allocated(self._device)
        self._watching.__enter__()
        self._recorder.start()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Marks a phase. One that fails is where the record ends."""
        self._watch.enter_phase(name)
        if name == OPTIMIZER:  # all gradients are there, and the state of the optimizer
            self._states = max(
                self._states, engine_states(self._engine, self._device), key=lambda each: each.total
            )
        if name == FORWARD:
            with self._keeping():
                yield
        else:
            yield
        self._watch.enter_phase(OUTSIDE)

    def stop(self, step: int) -> UpdateTrace:
        """Ends the record and returns what it shows."""
        self._watching.__exit__(None, None, None)
        timeline = timeline_of(self._recorder.stop())
        blocks = [name for name, _ in self._engine.module.named_children()]
        return trace_of(
            step, timeline, blocks, live_before=self._live_before, states=self._states, kept=self._kept
        )

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """Measures what a forward keeps; of several, the one that keeps most counts."""
        self._kept_meter = KeptForBackward(self._engine.module.parameters(), lambda: self._watch.place.block)
        with self._kept_meter:
            try:
                yield
            finally:
                kept = self._kept_meter.bytes_by_label
                self._kept = max(self._kept, kept, key=lambda each: sum(each.values()))
                self._kept_meter = KeptForBackward()  # lets go of the batch

    def _exclude_inputs(self, tensors: list[torch.Tensor]) -> None:
        """The batch is not kept for backward: it is there anyway."""
        self._kept_meter.exclude(tensors)
