"""Every allocation of tensor memory on a device while something runs, with the time at which it happened.

The record is exact for tensors, and does not see what math libraries take for themselves. On a CPU, memory
that was there before counts neither while it stays nor when it is freed.

It is made by the older of torch's two profilers: the newer one has one session per process and does not see
the threads that streaming starts (`workers.py`). Each of those records for itself under `worker_recording()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch.autograd.profiler import record_function

MARK = "ds_tft mark "

Label = TypeVar("Label")


class Change(NamedTuple):
    """Memory allocated, or freed where `bytes` is negative."""

    seconds: float
    """Since recording started."""
    bytes: int


class Mark(NamedTuple, Generic[Label]):
    """What begins at a moment."""

    seconds: float
    """Since recording started."""
    position: int
    """Number of changes before."""
    label: Label


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocations(Generic[Label]):
    """What was recorded, in the order of time."""

    changes: tuple[Change, ...]
    marks: tuple[Mark[Label], ...]
    seconds: float
    """How long it was recorded."""


class AllocationRecorder(Generic[Label]):
    """Records from `start` to `stop`, in the thread that starts it, in backward, and in recorded workers.

    Args:
        device: Whose memory is recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._labels: list[Label] = []
        self._workers: list[Any] = []
        self._token: Token[AllocationRecorder[Any] | None] | None = None

    def start(self) -> None:
        """Begins to record."""
        _enable()
        self._token = _RECORDING.set(self)

    def mark(self, label: Label) -> None:
        """Marks this moment; from any thread that is recorded."""
        number = len(self._labels)
        self._labels.append(label)
        with record_function(f"{MARK}{number}"):
            pass

    def stop(self) -> Allocations[Label]:
        """Ends the record and returns it."""
        assert self._token is not None, "start comes first"
        _RECORDING.reset(self._token)
        self._token = None
        threads: list[Any] = [events for events in torch.autograd._disable_profiler_legacy() if events]
        start_us = min(events[0].start_us() for events in threads)
        stop_us = max(events[-1].start_us() for events in threads)
        changes: list[Change] = []
        marks: list[Mark[Label]] = []
        for time_us, bytes_, number in self._in_order([*threads, *self._workers]):
            seconds = (time_us - start_us) / 1e6
            if number is None:
                changes.append(Change(seconds, bytes_))
            else:
                marks.append(Mark(seconds, len(changes), self._labels[number]))
        return Allocations(changes=tuple(changes), marks=tuple(marks), seconds=(stop_us - start_us) / 1e6)

    def _in_order(self, threads: list[Any]) -> list[tuple[float, int, int | None]]:
        """Returns time in us, bytes and number of the mark, if it is one, in the order of time."""
        found: list[tuple[float, int, int | None]] = []
        for event in (event for events in threads for event in events):
            kind = event.kind()
            if kind == "memory_alloc":
                bytes_ = (
                    event.cuda_memory_usage() if self._device.type == "cuda" else event.cpu_memory_usage()
                )
                if bytes_:
                    found.append((event.start_us(), bytes_, None))
            elif kind == "push" and event.name().startswith(MARK):
                found.append((event.start_us(), 0, int(event.name().removeprefix(MARK))))
        return sorted(found, key=lambda each: each[0])  # stable: events of one moment keep their order

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Records the thread that enters this."""
        _enable()
        try:
            yield
        finally:
            self._workers.extend(torch.autograd._disable_profiler_legacy())


# A state of the running thread, like torch's grad mode; only a recorder sets it.
_RECORDING: ContextVar[AllocationRecorder[Any] | None] = ContextVar("running recorder", default=None)


def worker_recording() -> Callable[[], AbstractContextManager[None]]:
    """Returns what a thread that is started from here enters, so that its allocations count."""
    recorder = _RECORDING.get()
    return nullcontext if recorder is None else recorder.worker


def can_record() -> bool:
    """Whether this version of torch has the profiler that records."""
    return hasattr(torch.autograd, "_enable_profiler_legacy")


def _enable() -> None:
    """Starts the profiler in this thread."""
    torch.autograd._enable_profiler_legacy(
        torch.autograd.ProfilerConfig(
            torch.autograd.ProfilerState.CPU,  # of the operations' times, which are on the host
            False,  # report_input_shapes
            True,  # profile_memory
            False,  # with_stack
            False,  # with_flops
            False,  # with_modules
            torch._C._profiler._ExperimentalConfig(),
        )
    )
