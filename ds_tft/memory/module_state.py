"""Buffers of a block that runs twice: the second run starts where the first one did, and leaves no trace.

So statistics of a batch norm and ranges of an observer move once per step, and the second run computes with
the values that the first one saw.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor, nn


class _Buffer(NamedTuple):
    """One buffer and its value at the snapshot."""

    owner: nn.Module
    name: str
    value: Tensor


class BufferSnapshot:
    """The values that the buffers of a module have now.

    Args:
        module: Its own buffers and those of its submodules are copied.
    """

    def __init__(self, module: nn.Module) -> None:
        self._buffers = [
            _Buffer(owner, name, value.detach().clone())
            for owner in module.modules()
            for name, value in owner.named_buffers(recurse=False)
        ]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts copies of the values in place of the buffers, and the buffers themselves back afterwards."""
        present = [getattr(buffer.owner, buffer.name) for buffer in self._buffers]
        for buffer in self._buffers:
            setattr(buffer.owner, buffer.name, buffer.value.clone())
        try:
            yield
        finally:
            for buffer, value in zip(self._buffers, present, strict=True):
                setattr(buffer.owner, buffer.name, value)
