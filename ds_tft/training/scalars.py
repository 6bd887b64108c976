"""Memory readings as tags for TensorBoard and the metrics file."""

from __future__ import annotations

from collections.abc import Mapping

from ds_tft.memory.meter import MIB, CudaPeaks, MemoryReading, StateBytes


def memory_scalars(
    reading: MemoryReading,
    phase_peaks: Mapping[str, CudaPeaks] | None = None,
    states: StateBytes | None = None,
) -> dict[str, float]:
    """Names each quantity with its unit; what is not measured has no tag, as CUDA memory in a run on a CPU.

    Args:
        reading: What the meter read.
        phase_peaks: CUDA peaks of each phase since the last time.
        states: The training state, once it is known.

    Returns:
        MiB by tag.
    """
    found = {"host_rss": reading.host_rss, "host_rss_peak": reading.host_rss_peak}
    if states is not None:
        found["states"] = states.total
    if reading.cuda is not None:
        found |= {
            "cuda_allocated": reading.cuda.allocated,
            "cuda_allocated_peak": reading.cuda.allocated_peak,
            "cuda_reserved": reading.cuda.reserved,
            "cuda_reserved_peak": reading.cuda.reserved_peak,
            "cuda_device_used": reading.cuda.used,
        }
    for phase, peaks in (phase_peaks or {}).items():
        found[f"cuda_{phase}_allocated_peak"] = peaks.allocated
        found[f"cuda_{phase}_reserved_peak"] = peaks.reserved
    return {f"memory/{name}_mib": size / MIB for name, size in found.items()}
