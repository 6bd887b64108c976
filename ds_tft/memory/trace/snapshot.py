"""The history of PyTorch's CUDA allocator, for https://pytorch.org/memory_viz."""

from __future__ import annotations

from pathlib import Path

import torch

MAX_ENTRIES = 200_000
"""Allocations and frees that the history holds; the oldest go first."""


def start_history() -> None:
    """Begins to keep the history, with the Python stack of each allocation."""
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=MAX_ENTRIES)


def stop_history(path: Path | None) -> None:
    """Ends it, and writes it to a file, if one is given."""
    if path is not None:
        torch.cuda.memory._dump_snapshot(str(path))
    torch.cuda.memory._record_memory_history(enabled=None)
