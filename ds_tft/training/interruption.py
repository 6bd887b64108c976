"""What ends a run before its time: a signal, or the time that it was given.

While a model is trained, either is a request: the loop saves at the end of the update it is in and leaves. A second
signal ends the process at once. Outside of training a signal ends it at once, too.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType, TracebackType

import psutil
import torch

from ds_tft.errors import Stopped
from ds_tft.formatting import format_seconds
from ds_tft.training.agreement import largest

SAME_REQUEST_SECONDS = 1.0
"""A terminal sends its signal to all processes, and the launcher another one right after it: one request."""


class Cause(IntEnum):
    """Why a run leaves; of several, the one with the highest number."""

    NONE = 0
    TIME = 1
    SIGINT = signal.SIGINT.value
    SIGTERM = signal.SIGTERM.value

    @property
    def exit_code(self) -> int:
        """What the process ends with: for a signal, what a shell gives a program that one has ended."""
        return Stopped.EXIT_CODE if self is Cause.TIME else 128 + self.value


class Interruption:
    """Takes note of signals from `with` to its end.

    Args:
        max_seconds: Time that the process has from its start; None sets no limit.
        clock: Seconds since 1970.
        started: When the process started, by the same clock.
    """

    def __init__(
        self,
        max_seconds: float | None = None,
        *,
        clock: Callable[[], float] = time.time,
        started: float | None = None,
    ) -> None:
        self.max_seconds = max_seconds
        self._clock = clock
        self._started = psutil.Process().create_time() if started is None else started
        self._listens = False
        self._cause = Cause.NONE
        self._asked_at = 0.0
        self._last_look = 0.0
        self._longest = 0.0  # seconds between two looks at the time
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is not threading.main_thread():
            return self  # signals are the business of the main thread's owner
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Makes a signal a request, which `requested` gives, as long as this is entered."""
        self._listens, self._last_look = True, self._clock()
        try:
            yield
        finally:
            self._listens = False

    def requested(self, device: torch.device) -> Cause:
        """Says whether the run should leave now. Every process must call this, and gets the same answer.

        Time is up when another stretch as long as the longest one between two calls would pass the limit.

        Args:
            device: The device that the processes communicate from.
        """
        now = self._clock()
        self._longest, self._last_look = max(self._longest, now - self._last_look), now
        cause = self._cause
        if cause is Cause.NONE and self.max_seconds is not None:
            is_up = now + self._longest - self._started >= self.max_seconds
            cause = Cause.TIME if is_up else Cause.NONE
        return Cause(largest(cause, device))

    def describe(self, cause: Cause) -> str:
        """Names a cause, for a message."""
        if cause is Cause.TIME:
            assert self.max_seconds is not None
            return f"the time limit of {format_seconds(self.max_seconds)} is near"
        return cause.name

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Notes the first signal, or ends the process."""
        cause, now = Cause(number), self._clock()
        if self._cause is not Cause.NONE:
            if now - self._asked_at < SAME_REQUEST_SECONDS:
                return
            os.write(2, b"stopped at once: --resume auto goes on from the last checkpoint\n")
            os._exit(cause.exit_code)
        if not self._listens:
            if cause is Cause.SIGINT:
                raise KeyboardInterrupt
            raise Stopped(
                f"stopped by {cause.name}; a training run goes on with --resume auto", cause.exit_code
            )
        self._cause, self._asked_at = cause, now
