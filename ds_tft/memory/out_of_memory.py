"""Memory that ran out, on a GPU or a CPU. Standard library only, so that a command can ask before torch is there."""

from __future__ import annotations

import errno

MESSAGES = (
    "DefaultCPUAllocator",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "could not execute a primitive",  # oneDNN, which runs LSTMs on a CPU
    "could not create a primitive",
    "std::bad_alloc",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Says whether an error means that there was not enough memory.

    By name and text: torch has no class for the CPU.
    """
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and any(message in str(error) for message in MESSAGES))
    )
