"""Watches the updates of a run: traces some, measures CUDA peaks by phase, and notes where memory ran out.

The loop says where it is, and nothing else:

    with tracer.update(step):
        with tracer.phase(FORWARD): ...
        with tracer.phase(BACKWARD): ...
        with tracer.phase(OPTIMIZER): ...

A traced update computes what any other does, bit by bit. The first update since the start is recorded as
well, and written only if it runs out of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch

from ds_tft.memory.meter import CudaPeaks, MemoryMeter, StateBytes
from ds_tft.memory.out_of_memory import is_out_of_memory
from ds_tft.memory.trace.allocations import can_record
from ds_tft.memory.trace.failure import OutOfMemory, drop_locals, failing_block, first_line
from ds_tft.memory.trace.files import FAILURE_NAME, TraceFiles, step_name
from ds_tft.memory.trace.phase_peaks import PhasePeaks
from ds_tft.memory.trace.recording import UpdateRecording
from ds_tft.memory.trace.settings import TraceSettings
from ds_tft.memory.trace.snapshot import start_history, stop_history
from ds_tft.memory.trace.states import Engine
from ds_tft.memory.trace.timeline import OUTSIDE
from ds_tft.memory.trace.update_trace import UpdateTrace


class StepTracer:
    """Traces the updates of one process."""

    def __init__(
        self,
        engine: Engine,
        device: torch.device,
        meter: MemoryMeter,
        files: TraceFiles,
        settings: TraceSettings,
        *,
        say: Callable[[str], None],
        is_first: bool = True,
    ) -> None:
        """Prepares the tracer; it does nothing to the engine until an update is traced.

        Args:
            engine: The DeepSpeed engine.
            device: Where the model is.
            meter: Of the device.
            files: Where traces go.
            settings: Which updates are traced.
            say: Writes a line to the log.
            is_first: False on all processes but the first: they trace nothing, and note where memory ran out.
        """
        self._engine = engine
        self._device = device
        self._meter = meter
        self._files = files
        self._settings = settings
        self._say = say
        self._traces = is_first and can_record()
        if is_first and not self._traces:
            say(f"memory traces: off, torch {torch.__version__} has no profiler that sees all threads")
        self._peaks = PhasePeaks(meter)
        self._updates = 0
        self._phase = OUTSIDE
        self._recording: UpdateRecording | None = None
        self.states: StateBytes | None = None
        """The training state at the last traced update."""

    @contextmanager
    def update(self, step: int) -> Iterator[None]:
        """Surrounds an update.

        Args:
            step: Its number in the whole run, from 1.
        """
        self._updates += 1
        self._phase = OUTSIDE
        traced = self._traces and self._settings.is_due(step, self._updates)
        if traced or (self._traces and self._updates == 1):
            self._start()
        try:
            yield
        except BaseException as error:
            self._fail(error, step)
            raise
        try:
            self._finish(step, traced=traced)
        except Exception as error:  # a long run does not end for a picture
            if not isinstance(error, OSError) and not is_out_of_memory(error):
                raise
            self._say(f"memory traces: step {step} not written, got {first_line(error)}")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Surrounds a phase of an update; phases follow each other."""
        self._phase = name
        recorded = nullcontext() if self._recording is None else self._recording.phase(name)
        with self._peaks.phase(name), recorded:
            yield
        self._phase = OUTSIDE

    def lines(self) -> list[str]:
        """Says for the end of a run what was asked for and did not happen."""
        if self._settings.every_steps is None or not self._traces or self.states is not None:
            return []
        return [
            f"ds_tft.trace_every_steps: no update was traced, got {self._updates} of them since the start"
        ]

    @property
    def last_phase(self) -> str:
        """Phase that runs, or in which the update failed; empty between phases."""
        return self._phase

    def take_phase_peaks(self) -> dict[str, CudaPeaks]:
        """Returns the CUDA peaks by phase since the last call; empty on a CPU."""
        return self._peaks.take()

    def _finish(self, step: int, *, traced: bool) -> None:
        """Ends the record of an update that went well, if there is one, and writes it where it is due."""
        trace = self._stop(step, step_name(step) if traced else None)
        if trace is not None and traced:
            self.states = trace.states
            self._say(trace.line())
            self._files.write_trace(trace)

    def _start(self) -> None:
        """Begins to record."""
        if self._settings.snapshot:
            start_history()
        self._recording = UpdateRecording(self._engine, self._device)
        self._recording.start()

    def _stop(self, step: int, snapshot: str | None) -> UpdateTrace | None:
        """Ends the record, if there is one; `snapshot` is the name of the file that the history goes to."""
        recording, self._recording = self._recording, None
        if recording is None:
            return None
        trace = recording.stop(step)
        if self._settings.snapshot:
            stop_history(None if snapshot is None else self._files.path(snapshot, ".pickle"))
        return trace

    def _fail(self, error: BaseException, step: int) -> None:
        """Ends the record of an update that failed, and writes what is known if memory ran out."""
        is_memory = is_out_of_memory(error)
        block = failing_block(error, self._engine.module)
        if self._recording is not None:
            block = self._recording.last_block
        try:
            trace = self._stop(step, FAILURE_NAME if is_memory else None)
            if is_memory:
                failure = self._failure(error, step, block, trace)
                drop_locals(error)
                self._say(f"{failure.line()}; see {self._files.path(FAILURE_NAME, '.json')}")
                self._files.write_failure(failure, trace)
        except Exception as second:  # whatever it is, it must not take the place of the error that it follows
            error.add_note(f"memory traces: not complete, got {first_line(second)}")

    def _failure(self, error: BaseException, step: int, block: str, trace: UpdateTrace | None) -> OutOfMemory:
        """Puts together what is known."""
        reading, live = self._meter.read(), None
        if reading.cuda is not None:
            live = reading.cuda.allocated
        elif trace is not None:
            live = trace.live_before + trace.timeline.stretches[-1].exit
        return OutOfMemory(
            step=step, phase=self._phase, block=block, message=first_line(error), reading=reading, live=live
        )
