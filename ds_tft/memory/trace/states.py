"""Bytes of the training state, wherever DeepSpeed keeps it: flat copies, fp32 weights, buckets included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ds_tft.memory.meter import StateBytes, state_bytes

# Attributes of DeepSpeed's optimizers that hold gradients: averaged_gradients, ipg_buckets and others.
GRADIENT_NAMES = ("grad", "ipg")


class Engine(Protocol):
    """What is read of a DeepSpeed engine."""

    module: nn.Module
    optimizer: Any


def engine_states(engine: Engine, device: torch.device) -> StateBytes:
    """Returns what the training state has in use on a device.

    Gradients are there from backward to the update, and in some ZeRO stages no longer.

    Args:
        engine: A DeepSpeed engine, or anything with a `module` and an `optimizer`.
        device: States elsewhere, such as an optimizer offloaded to the host, are not counted.
    """
    gradients: list[Tensor] = []
    others: list[Tensor] = []
    for is_gradient, tensor in _held(engine.optimizer, False, {id(engine.module)}):
        if tensor.device.type == device.type:
            (gradients if is_gradient else others).append(tensor)
    parameters = [each for each in engine.module.parameters() if each.device.type == device.type]
    gradients.extend(each.grad for each in parameters if each.grad is not None)
    return state_bytes(
        parameters, _without(others, [*parameters, *gradients]), _without(gradients, parameters)
    )


def _held(value: Any, is_gradient: bool, seen: set[int]) -> Iterator[tuple[bool, Tensor]]:
    """Yields the tensors that an optimizer holds, each with whether it is a gradient."""
    if isinstance(value, Tensor):
        yield is_gradient, value
        if value.is_leaf and value.grad is not None:
            yield True, value.grad
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    for name, part in _parts(value):
        yield from _held(part, is_gradient or any(word in name for word in GRADIENT_NAMES), seen)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields what a container or an optimizer consists of, with its name where it has one."""
    if isinstance(value, Mapping):
        yield from (("", part) for part in value.values())
    elif isinstance(value, (list, tuple, set)):
        yield from (("", part) for part in value)
    elif isinstance(value, torch.optim.Optimizer) or type(value).__module__.startswith("deepspeed.runtime"):
        yield from vars(value).items()


def _without(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """Returns the tensors that share no storage with others."""
    known = {each.untyped_storage().data_ptr() for each in others}
    return [each for each in tensors if each.untyped_storage().data_ptr() not in known]
