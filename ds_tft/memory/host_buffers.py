"""Host memory for offloaded tensors, used again from step to step, and the copies to it and back.

On CUDA the buffers are page-locked and the copies run on a stream of their own, beside the computation. On a
CPU the same calls copy to separate memory at once.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class HostBuffers:
    """Buffers that are lent and given back. There are never more than were lent at one time.

    Args:
        pinned: Whether they are page-locked.
    """

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._free: list[Tensor] = []
        self.lent_bytes = 0
        """Bytes of the buffers in use."""

    @property
    def bytes(self) -> int:
        """Bytes of all buffers, lent or not."""
        return self.lent_bytes + sum(len(buffer) for buffer in self._free)

    def take(self, size: int) -> Tensor:
        """Lends a buffer of at least `size` bytes, uint8: the smallest free one that is large enough."""
        fitting = [buffer for buffer in self._free if len(buffer) >= size]
        if fitting:
            buffer = min(fitting, key=len)
            self._remove(buffer)
        else:
            if self._free:
                self._remove(max(self._free, key=len))  # a larger one takes its place
            buffer = torch.empty(self._capacity(size), dtype=torch.uint8, pin_memory=self._pinned)
        self.lent_bytes += len(buffer)
        return buffer

    def give_back(self, buffer: Tensor) -> None:
        """Takes a buffer back."""
        self.lent_bytes -= len(buffer)
        self._free.append(buffer)

    def _capacity(self, size: int) -> int:
        """Page-locked memory comes in powers of two: the rest would be lost."""
        return 1 << (size - 1).bit_length() if self._pinned else size

    def _remove(self, buffer: Tensor) -> None:
        """Takes one buffer off the list; tensors compare by value, so `list.remove` would not do."""
        self._free = [other for other in self._free if other is not buffer]


class Layout(NamedTuple):
    """What a tensor is like, apart from its values."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(tensor: Tensor) -> Layout:
        """Describes a tensor."""
        return Layout(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)

    def on_host(self, buffer: Tensor) -> Tensor:
        """Returns the part of a buffer that holds the values, contiguous."""
        size = self.shape.numel() * self.dtype.itemsize
        return buffer[:size].view(self.dtype).view(self.shape)

    def empty(self) -> Tensor:
        """Returns a tensor like it, values undefined."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


class Fetch(NamedTuple):
    """A copy from the host that has been started."""

    tensor: Tensor
    done: torch.cuda.Event | None


class Copies(Protocol):
    """Copies between a device and the host."""

    def to_host(self, tensor: Tensor, target: Tensor) -> None:
        """Starts a copy; the tensor may be dropped at once."""

    def start(self, source: Tensor, layout: Layout) -> Fetch:
        """Starts a copy back."""

    def finish(self, fetch: Fetch) -> Tensor:
        """Returns the tensor, for use by what is launched from now on."""


class CpuCopies:
    """Copies that are done when the call returns."""

    def to_host(self, tensor: Tensor, target: Tensor) -> None:
        """Copies to separate memory."""
        target.copy_(tensor)

    def start(self, source: Tensor, layout: Layout) -> Fetch:
        """Copies back."""
        return Fetch(layout.empty().copy_(source), None)

    def finish(self, fetch: Fetch) -> Tensor:
        """Returns the copy."""
        return fetch.tensor


class CudaCopies:
    """Copies on a stream of their own, so that kernels need not wait for them.

    All copies run in the order in which they were started: a buffer that is given back and lent again is not
    overwritten before it has been read.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def to_host(self, tensor: Tensor, target: Tensor) -> None:
        """Starts when the kernels launched so far have written the tensor."""
        self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(self._stream):
            target.copy_(tensor, non_blocking=True)
        tensor.record_stream(self._stream)  # its memory is used again only after the copy

    def start(self, source: Tensor, layout: Layout) -> Fetch:
        """Starts when the memory, which may just have been freed, is no longer in use."""
        tensor = layout.empty()
        self._stream.wait_stream(torch.cuda.current_stream(layout.device))
        with torch.cuda.stream(self._stream):
            tensor.copy_(source, non_blocking=True)
            done = self._stream.record_event()
        tensor.record_stream(self._stream)
        return Fetch(tensor, done)

    def finish(self, fetch: Fetch) -> Tensor:
        """Lets the kernels launched from now on wait for the copy; the host does not wait."""
        assert fetch.done is not None, "a copy on CUDA has an event"
        torch.cuda.current_stream(fetch.tensor.device).wait_event(fetch.done)
        return fetch.tensor


def copies_for(device: torch.device) -> Copies:
    """Returns the copies for a device."""
    return CudaCopies(device) if device.type == "cuda" else CpuCopies()
