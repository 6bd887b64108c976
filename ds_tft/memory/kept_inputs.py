"""The inputs of a block that is recomputed: what is kept of it between forward and backward.

Tensors are saved the way autograd saves its own: saved-tensor hooks see them, so that meters count them and
offload moves them, and one that is changed in place afterwards is an error in backward. They are detached
aliases: the caller's tensors are never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ds_tft.memory.offload import HostOffload


class KeptInputs:
    """Keeps a list of values until it is dropped.

    Args:
        values: Tensors and anything else. Parameters, and views of them, are held as they are.
        offload: Moves large floating-point tensors to host memory; `None` moves nothing.
    """

    def __init__(self, values: Sequence[Any], offload: HostOffload | None) -> None:
        self._others = [None if _is_data(value) else value for value in values]
        self._requires_grad = [_is_data(value) and value.requires_grad for value in values]
        tensors = {place: value.detach() for place, value in enumerate(values) if _is_data(value)}
        moved = {} if offload is None else {at: each for at, each in tensors.items() if offload.wants(each)}
        stay = {place: tensor for place, tensor in tensors.items() if place not in moved}
        self._kept = [(tuple(stay), _save(stay.values()))]
        if offload is not None and moved:
            with offload.hooks():
                self._kept.append((tuple(moved), _save(moved.values())))

    def restore(self) -> list[Any]:
        """Returns the values; tensors are cut off from the graph that they came from."""
        values = list(self._others)
        for places, node in self._kept:
            for place, tensor in zip(places, node.saved_tensors, strict=True):
                values[place] = tensor.detach().requires_grad_(self._requires_grad[place])
        return values


class _Keep(torch.autograd.Function):
    """A node whose saved tensors are read from outside; it is part of no backward."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.new_empty(0)

    @staticmethod
    def backward(_ctx: Any, *_grads: Tensor) -> None:
        raise AssertionError("nothing is computed from what this node returns")


def _save(tensors: Any) -> Any:
    """Has autograd save tensors, and returns the node that holds them."""
    return _Keep.apply(torch.empty(0, requires_grad=True), *tensors).grad_fn


def _is_data(value: Any) -> bool:
    """True for tensors other than parameters and views of them."""
    if not isinstance(value, Tensor):
        return False
    return not (isinstance(value, nn.Parameter) or isinstance(value._base, nn.Parameter))
