"""Moves what is kept between forward and backward to host memory, and back when backward needs it.

The inputs that a recomputed block keeps (`kept_inputs.py`) are saved under the hooks given out here. Each
save is one group. When backward asks for a group, the copies of the one saved before it are started as well,
so that they are there when their turn comes. A buffer is free again when the graph has dropped what was saved
in it: after backward, or, where no backward followed, with the graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ds_tft.errors import ConfigError
from ds_tft.formatting import format_bytes
from ds_tft.memory.host_buffers import Fetch, HostBuffers, Layout, copies_for
from ds_tft.memory.input_store import MIN_BYTES, InputStore, SavedTensors
from ds_tft.memory.meter import MIB


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


class HostOffload(InputStore):
    """Gives out hooks that move tensors, and counts what they moved."""

    def __init__(self, device: torch.device, min_bytes: int = MIN_BYTES) -> None:
        super().__init__(device, min_bytes)
        self._copies = copies_for(device)
        self._buffers = HostBuffers(pinned=device.type == "cuda")
        self._last: weakref.ref[_Group] | None = None

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

    def keep(self, tensors: Sequence[Tensor]) -> SavedTensors:
        """Moves the inputs of one block."""
        with self.hooks():
            return SavedTensors(tensors)

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Returns hooks that move every tensor saved under them; what is saved under them is one group."""
        group = _Group(self._last)
        self._last = weakref.ref(group)

        def pack(tensor: Tensor) -> _Moved:
            return self._move(tensor, group)

        return torch.autograd.graph.saved_tensors_hooks(pack, self._bring_back)

    def line(self) -> str:
        """Says how inputs are kept."""
        return f"inputs of at least {format_bytes(self.min_bytes)} are kept in host memory"

    def step_line(self) -> str:
        """Says what was moved since the last reset."""
        moved = self.traffic
        return (
            f"{format_bytes(moved.to_host_bytes)} moved to host memory, "
            f"{format_bytes(moved.to_device_bytes)} back, buffers of {format_bytes(moved.host_bytes)}"
        )

    def scalars(self) -> dict[str, float]:
        """Returns the same by tag."""
        moved = self.traffic
        return {
            "recompute/moved_to_host_mib": moved.to_host_bytes / MIB,
            "recompute/moved_to_device_mib": moved.to_device_bytes / MIB,
            "recompute/host_buffers_mib": moved.host_bytes / MIB,
        }

    def check_effect(self) -> None:
        """Makes sure that something was moved.

        Raises:
            ConfigError: Nothing was.
        """
        if not self._to_host:
            raise ConfigError(
                "activation_checkpointing.cpu_checkpointing: nothing was moved to host memory, got inputs of "
                f"up to {format_bytes(self.largest_seen)}, and what is below {format_bytes(self.min_bytes)} "
                "stays on the device; remove it"
            )

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
