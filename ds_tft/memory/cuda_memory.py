"""Memory of a CUDA device: of PyTorch's allocator, and of the driver."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaMemory:
    """Memory of one CUDA device in bytes; peaks since the meter was made."""

    allocated: int
    allocated_peak: int
    reserved: int
    reserved_peak: int
    used: int
    total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaPeaks:
    """Highest memory of one CUDA device over some time, in bytes."""

    allocated: int
    reserved: int

    def joined(self, other: CudaPeaks) -> CudaPeaks:
        """Returns the peaks over the time of both."""
        return CudaPeaks(
            allocated=max(self.allocated, other.allocated), reserved=max(self.reserved, other.reserved)
        )


def cuda_peaks(device: torch.device) -> CudaPeaks:
    """Returns the peaks since torch last reset them."""
    return CudaPeaks(
        allocated=torch.cuda.max_memory_allocated(device), reserved=torch.cuda.max_memory_reserved(device)
    )


def read_cuda(device: torch.device, earlier: CudaPeaks) -> CudaMemory:
    """Reads PyTorch's allocator and the driver.

    Args:
        device: Which device.
        earlier: The peaks up to when torch last reset them.
    """
    free, total = torch.cuda.mem_get_info(device)
    peaks = earlier.joined(cuda_peaks(device))
    return CudaMemory(
        allocated=torch.cuda.memory_allocated(device),
        allocated_peak=peaks.allocated,
        reserved=torch.cuda.memory_reserved(device),
        reserved_peak=peaks.reserved,
        used=total - free,
        total=total,
    )
