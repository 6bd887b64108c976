"""Memory readings as tags for TensorBoard and the metrics file."""

from __future__ import annotations

from ds_tft.memory.meter import MIB, MemoryReading


def memory_scalars(reading: MemoryReading) -> dict[str, float]:
    """Names each quantity with its unit; a CPU run has no CUDA tags.

    Args:
        reading: What the meter read.

    Returns:
        MiB by tag.
    """
    scalars = {
        "memory/host_rss_mib": reading.host_rss / MIB,
        "memory/host_rss_peak_mib": reading.host_rss_peak / MIB,
    }
    if reading.cuda is not None:
        scalars |= {
            "memory/cuda_allocated_mib": reading.cuda.allocated / MIB,
            "memory/cuda_allocated_peak_mib": reading.cuda.allocated_peak / MIB,
            "memory/cuda_reserved_peak_mib": reading.cuda.reserved_peak / MIB,
            "memory/cuda_device_used_mib": reading.cuda.used / MIB,
        }
    return scalars
