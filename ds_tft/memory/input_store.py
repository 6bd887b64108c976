"""Where recomputed blocks keep their inputs: as they are, or by an `InputStore` in another place or form.

There are two stores: host memory (`offload.py`) and INT8 (`compression.py`). A store takes what is worth the
trouble, floating-point tensors of some size, counts what it took, and says so in log and metrics.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor

MIN_BYTES = 64 * 2**10
"""Memory below this stays as it is: the work on it would take longer than the memory is worth."""


class Kept(Protocol):
    """Tensors in keeping."""

    def restore(self) -> Sequence[Tensor]:
        """Returns the tensors; shapes, strides, types and devices are those that they had."""


class SavedTensors:
    """Tensors that are saved the way autograd saves its own, so that saved-tensor hooks and meters see them.

    Args:
        tensors: Without history. One that is changed in place afterwards is an error in `restore`.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._node: Any = _Keep.apply(torch.empty(0, requires_grad=True), *tensors).grad_fn

    def restore(self) -> tuple[Tensor, ...]:
        """Returns the tensors."""
        tensors: tuple[Tensor, ...] = self._node.saved_tensors
        return tensors


class InputStore(ABC):
    """Keeps large floating-point tensors in another place or form.

    Args:
        device: Where the model is trained.
        min_bytes: A tensor is taken if the memory that it keeps alive is at least this large.
    """

    def __init__(self, device: torch.device, min_bytes: int = MIN_BYTES) -> None:
        self._device = device
        self.min_bytes = min_bytes
        self.largest_seen = 0
        """Largest memory that an input kept alive, in bytes, taken or not."""
        self.reset()

    def __deepcopy__(self, _memo: dict[int, object]) -> Self:
        """A copy of a model keeps and counts for itself."""
        return type(self)(self._device, self.min_bytes)

    def wants(self, tensor: Tensor) -> bool:
        """Says whether a tensor is to be taken."""
        if not tensor.is_floating_point() or tensor.device.type != self._device.type:
            return False
        # An expanded tensor shows more than it holds, and cannot be written to.
        if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            return False
        size = tensor.untyped_storage().nbytes()  # a small view keeps all of it
        self.largest_seen = max(self.largest_seen, size)
        return tensor.numel() > 0 and size >= self.min_bytes

    @abstractmethod
    def keep(self, tensors: Sequence[Tensor]) -> Kept:
        """Takes the inputs of one block, all of which it wants."""

    @abstractmethod
    def reset(self) -> None:
        """Starts the counts anew."""

    @abstractmethod
    def line(self) -> str:
        """Says how inputs are kept, for the log."""

    @abstractmethod
    def step_line(self) -> str:
        """Says what was taken since the last reset."""

    @abstractmethod
    def scalars(self) -> dict[str, float]:
        """Returns the same by tag, for TensorBoard and the metrics file."""

    @abstractmethod
    def check_effect(self) -> None:
        """Makes sure, after a step of training, that something was taken.

        Raises:
            ConfigError: Nothing was.
        """


class _Keep(torch.autograd.Function):
    """A node whose saved tensors are read from outside; it is part of no backward."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.new_empty(0)

    @staticmethod
    def backward(_ctx: Any, *_grads: Tensor) -> None:
        raise AssertionError("nothing is computed from what this node returns")
