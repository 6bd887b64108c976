"""Memory that ran out, on a GPU or a CPU. Standard library only, so that a command can ask before torch is there."""

from __future__ import annotations


def is_out_of_memory(error: BaseException) -> bool:
    """Says whether an error means that there was not enough memory.

    By name and text: torch has no class for the CPU.
    """
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(text in str(error) for text in ("DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED"))
    )
