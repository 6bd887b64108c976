"""Memory in use: of the process, of the CUDA device, of the training state, and kept for backward.

All figures are bytes; `MIB` converts. Every figure says what it counts:

- host RSS: resident memory of this process, whatever it is used for.
- CUDA allocated: bytes of live tensors. CUDA reserved: what PyTorch's allocator holds, live or not.
  CUDA used: what the whole device has in use, other processes included.
- states: parameters, gradients and optimizer state, told apart from activations.
- kept for backward: distinct storages that autograd holds at the end of the forward pass.
"""

from __future__ import annotations

import resource
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from torch import Tensor

from ds_tft.memory.cuda_memory import CudaMemory, CudaPeaks, cuda_peaks, read_cuda

MIB = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryReading:
    """Memory in bytes at one moment."""

    host_rss: int
    host_rss_peak: int
    """Since the process started; it cannot be reset."""
    cuda: CudaMemory | None
    """`None` on a CPU: nothing is reported rather than zeros."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StateBytes:
    """Bytes of the training state, each storage counted once."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All three together."""
        return self.parameters + self.gradients + self.optimizer


class MemoryMeter:
    """Reads what the process, and its CUDA device if it has one, have in use.

    Args:
        device: Device that the model is on.
    """

    def __init__(self, device: torch.device) -> None:
        self._process = psutil.Process()
        self._cuda_device = device if device.type == "cuda" else None
        self._earlier = CudaPeaks(allocated=0, reserved=0)

    def read(self) -> MemoryReading:
        """Returns the memory in use now and its peaks. Waits for nothing: pending kernels go on."""
        rss = self._process.memory_info().rss
        return MemoryReading(
            host_rss=rss,
            host_rss_peak=max(rss, host_rss_peak()),
            cuda=None if self._cuda_device is None else read_cuda(self._cuda_device, self._earlier),
        )

    def restart_peaks(self) -> CudaPeaks | None:
        """Returns the CUDA peaks since the last call, `None` on a CPU. Those of `read` go on."""
        if self._cuda_device is None:
            return None
        peaks = cuda_peaks(self._cuda_device)
        self._earlier = self._earlier.joined(peaks)
        torch.cuda.reset_peak_memory_stats(self._cuda_device)
        return peaks


def host_rss_peak() -> int:
    """Returns the highest resident memory of this process so far, as the system keeps it: to about a MiB."""
    status = Path("/proc/self/status")
    if status.exists():
        # Unlike ru_maxrss, which a child inherits from the process that started it.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Returns the bytes of the tensors' storages; views of one storage, such as tied weights, count once."""
    return sum({_storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}.values())


def state_bytes(
    parameters: Iterable[Tensor], optimizer_state: Iterable[Tensor], gradients: Iterable[Tensor] | None = None
) -> StateBytes:
    """Returns what the training state takes.

    Args:
        parameters: The model's parameters.
        optimizer_state: Tensors of the optimizer, such as those of `optimizer_tensors`.
        gradients: Where they live elsewhere than in `.grad`, as under ZeRO; `None` reads `.grad`.
    """
    parameters = list(parameters)
    if gradients is None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return StateBytes(
        parameters=tensor_bytes(parameters),
        gradients=tensor_bytes(gradients),
        optimizer=tensor_bytes(optimizer_state),
    )


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Yields the state tensors of an optimizer, such as Adam's moments."""
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))


class KeptForBackward:
    """Counts what autograd holds for backward, from the operations run while this context is entered.

    What a `torch.autograd.Function` stores on its context in other ways than `save_for_backward` is not seen,
    nor what inner saved-tensor hooks (non-reentrant checkpointing, offloading) hold in place of tensors.

    Args:
        excluded: Tensors whose storages do not count, such as the model's parameters and the batch.
        label: Asked at each save for what it belongs to, such as the block that runs.
    """

    def __init__(self, excluded: Iterable[Tensor] = (), label: Callable[[], str] = str) -> None:
        self._excluded = list(excluded)  # kept alive, so that their addresses stay theirs
        self._label = label
        self._count = 0
        self._saved: weakref.WeakSet[_Saved] = weakref.WeakSet()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)

    def __enter__(self) -> KeptForBackward:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def exclude(self, tensors: Iterable[Tensor]) -> None:
        """Excludes more tensors."""
        self._excluded.extend(tensors)

    @property
    def bytes(self) -> int:
        """Bytes of the distinct storages held now: a graph that is gone holds none."""
        return sum(self.bytes_by_label.values())

    @property
    def bytes_by_label(self) -> dict[str, int]:
        """The same by label; a storage saved more than once belongs to the first."""
        known = {_storage_key(tensor) for tensor in self._excluded}
        found: dict[str, int] = {}
        for saved in sorted(self._saved, key=lambda each: each.number):
            key = _storage_key(saved.tensor)
            if key not in known:
                known.add(key)
                size = saved.tensor.untyped_storage().nbytes()
                found[saved.label] = found.get(saved.label, 0) + size
        return found

    def _pack(self, tensor: Tensor) -> _Saved:
        """Wraps a saved tensor; the graph owns the wrapper, this meter only watches it."""
        # With its history, an output would keep its own graph alive for ever.
        saved = _Saved(tensor.detach(), self._label(), self._count)
        self._count += 1
        self._saved.add(saved)
        return saved


def kept_for_backward(forward: Callable[[], object], excluded: Iterable[Tensor] = ()) -> int:
    """Returns the bytes that autograd holds once `forward` has returned.

    Args:
        forward: Runs the forward pass and returns what backward starts from, such as the loss.
        excluded: Tensors whose storages do not count, such as the model's parameters and the batch.
    """
    with KeptForBackward(excluded) as kept:
        result = forward()
    held = kept.bytes
    del result  # up to here it kept the graph alive
    return held


class _Saved:
    """A tensor in autograd's keeping."""

    __slots__ = ("__weakref__", "label", "number", "tensor")

    def __init__(self, tensor: Tensor, label: str, number: int) -> None:
        self.tensor = tensor
        self.label = label
        self.number = number


def _unpack(saved: _Saved) -> Tensor:
    """Gives the tensor back to autograd."""
    return saved.tensor


def _storage_key(tensor: Tensor) -> tuple[str, int]:
    """Identifies the storage as long as it lives."""
    return str(tensor.device), tensor.untyped_storage().data_ptr()
