"""CUDA peaks by phase, of all updates; on a CPU there are none, and nothing is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ds_tft.memory.meter import CudaPeaks, MemoryMeter


class PhasePeaks:
    """Keeps the peaks until they are taken, as a rule from one log line to the next.

    Args:
        meter: Of the device.
    """

    def __init__(self, meter: MemoryMeter) -> None:
        self._meter = meter
        self._peaks: dict[str, CudaPeaks] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures a phase."""
        self._meter.restart_peaks()
        yield
        peaks = self._meter.restart_peaks()
        if peaks is not None:
            self._peaks[name] = peaks.joined(self._peaks.get(name, peaks))

    def take(self) -> dict[str, CudaPeaks]:
        """Returns the peaks by phase since the last call."""
        peaks, self._peaks = self._peaks, {}
        return peaks
