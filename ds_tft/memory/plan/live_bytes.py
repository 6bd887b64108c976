"""Bytes of live tensors while a dry run goes on: now, and at most in each phase."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor


class LiveBytes:
    """Adds up the storages that it is told of, for as long as each lives.

    Args:
        block: Bytes of which every storage takes a multiple.
    """

    def __init__(self, block: int = 1) -> None:
        self._block = block
        self.now = 0
        """Bytes of the storages that live."""
        self.peaks: dict[str, int] = {}
        """Most bytes that lived at one time, by phase."""
        self._phase: str | None = None
        self._known: dict[int, weakref.ref[object]] = {}

    @property
    def peak(self) -> int:
        """Most bytes that lived at one time in any phase."""
        return max(self.peaks.values(), default=0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts what happens inside as part of a phase."""
        self._phase = name
        self.peaks[name] = max(self.peaks.get(name, 0), self.now)
        try:
            yield
        finally:
            self._phase = None

    def add(self, tensor: Tensor) -> None:
        """Counts the storage of a tensor until it is freed; once, however often it is told."""
        if tensor.is_meta:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = -(-storage.nbytes() // self._block) * self._block

        def forget(_reference: object) -> None:
            self.now -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, forget)
        self.now += size
        if self._phase is not None and self.now > self.peaks[self._phase]:
            self.peaks[self._phase] = self.now
