"""Moves what is kept between forward and backward to host memory, and back when backward needs it.

The inputs that a recomputed block keeps (`kept_inputs.py`) are saved under the hooks given out here. Each
save is one group. When backward asks for a group, the copies of the one saved before it are started as well,
so that they are there when their turn comes. A buffer is free again when the graph has dropped what was saved
in it: after backward, or, where no backward followed, with the graph.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from ds_tft.memory.host_buffers import Fetch, HostBuffers, Layout, copies_for

MIN_BYTES = 64 * 2**10
"""Memory below this stays on the device: a copy would take longer than the memory is worth."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OffloadTraffic:
    """What was moved since the last reset, and what host memory it took."""

    tensors: int
    to_host_bytes: int
    to_device_bytes: int
    held_bytes: int
    """Bytes of the buffers in use at present."""
    host_bytes: int
    """Bytes of all buffers, which stay for the next step."""


class HostOffload:
    """Gives out hooks that move tensors, and counts what they moved.

    Args:
        device: Where the model is trained.
        min_bytes: A tensor is moved if the memory that it keeps alive is at least this large.
    """

    def __init__(self, device: torch.device, min_bytes: int = MIN_BYTES) -> None:
        self._device = device
        self.min_bytes = min_bytes
        self._copies = copies_for(device)
        self._buffers = HostBuffers(pinned=device.type == "cuda")
        self._last: weakref.ref[_Group] | None = None
        self.largest_seen = 0
        """Largest memory that an input kept alive, in bytes, moved or not."""
        self.reset()

    def __deepcopy__(self, _memo: dict[int, object]) -> HostOffload:
        """A copy of a model gets buffers and counts of its own."""
        return HostOffload(self._device, self.min_bytes)

    def reset(self) -> None:
        """Starts the counts anew."""
        self._tensors = self._to_host = self._to_device = 0

    @property
    def traffic(self) -> OffloadTraffic:
        """What was moved since the last reset."""
        return OffloadTraffic(
            tensors=self._tensors,
            to_host_bytes=self._to_host,
            to_device_bytes=self._to_device,
            held_bytes=self._buffers.lent_bytes,
            host_bytes=self._buffers.bytes,
        )

    def wants(self, tensor: Tensor) -> bool:
        """Says whether a tensor is to be moved."""
        if not tensor.is_floating_point() or tensor.device.type != self._device.type:
            return False
        # An expanded tensor shows more than it holds, and cannot be written to.
        if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            return False
        size = tensor.untyped_storage().nbytes()  # a small view keeps all of it
        self.largest_seen = max(self.largest_seen, size)
        return tensor.numel() > 0 and size >= self.min_bytes

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Returns hooks that move every tensor saved under them; what is saved under them is one group."""
        group = _Group(self._last)
        self._last = weakref.ref(group)

        def pack(tensor: Tensor) -> _Moved:
            return self._move(tensor, group)

        return torch.autograd.graph.saved_tensors_hooks(pack, self._bring_back)

    def _move(self, tensor: Tensor, group: _Group) -> _Moved:
        """Copies a tensor to the host."""
        layout = Layout.of(tensor)
        size = layout.shape.numel() * layout.dtype.itemsize
        moved = _Moved(self._buffers.take(size), layout, group, self._buffers)
        self._copies.to_host(tensor, layout.on_host(moved.buffer))
        self._tensors += 1
        self._to_host += size
        return moved

    def _bring_back(self, moved: _Moved) -> Tensor:
        """Returns the tensor, and starts the copies that will be asked for next."""
        fetch = moved.fetch or self._start(moved)
        moved.fetch = None
        for earlier in moved.group.earlier():
            if earlier.fetch is None:
                earlier.fetch = self._start(earlier)
        return self._copies.finish(fetch)

    def _start(self, moved: _Moved) -> Fetch:
        """Starts the copy of a tensor to the device."""
        source = moved.layout.on_host(moved.buffer)
        self._to_device += source.nbytes
        return self._copies.start(source, moved.layout)


class _Group:
    """Tensors that were saved together.

    Args:
        previous: The group saved before, as long as it lives.
    """

    def __init__(self, previous: weakref.ref[_Group] | None) -> None:
        self._previous = previous
        self.members: weakref.WeakSet[_Moved] = weakref.WeakSet()

    def earlier(self) -> list[_Moved]:
        """Returns what is left of the group saved before."""
        group = self._previous() if self._previous is not None else None
        return [] if group is None else list(group.members)


class _Moved:
    """A tensor on the host, in autograd's keeping."""

    def __init__(self, buffer: Tensor, layout: Layout, group: _Group, owner: HostBuffers) -> None:
        self.buffer = buffer
        self.layout = layout
        self.group = group
        self.fetch: Fetch | None = None
        group.members.add(self)
        weakref.finalize(self, owner.give_back, buffer).atexit = False
