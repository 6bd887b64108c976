"""Runs a program of tensors without computing: every tensor is allocated, and hardly one is written.

A dispatch mode stands below autograd, so that graphs, hooks, checkpointing and DeepSpeed's engine do what they
always do. An operation on values of any size returns memory of the right shape that nobody has touched, which
costs the machine no pages; one on whole numbers or on a few values only is carried out, because shapes and
decisions follow from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ds_tft.memory.plan.live_bytes import LiveBytes
from ds_tft.memory.trace.allocations import AllocationRecorder

FEW = 16
"""Values up to which a tensor counts as small."""
KNOWN = ("aten", "bitsandbytes")
"""Libraries whose operations are stood in for; those of others are carried out."""
aten = torch.ops.aten
OPAQUE = (aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default)
"""Operations of which only the library knows what they allocate: carried out once for each size."""


class _Kind(Enum):
    """What an operation does with memory."""

    VIEW = "shares the memory of an input"
    WRITE = "writes to its inputs"
    MAKE = "returns memory of its own"
    OTHER = "to be carried out"


class _Layout(NamedTuple):
    """What a result is like."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class _Result(NamedTuple):
    """What an operation allocates."""

    layout: Any
    """Of its results, in the structure in which they are returned."""
    scratch: int
    """Bytes that it needs in between, at the end."""


class DryRun(TorchDispatchMode):
    """While entered, tensor operations of this thread allocate and do not compute.

    Args:
        live: Is told of every tensor.
        trial_bytes: Operations on no more than this are carried out once, on zeros, so that what they need in
            between counts, too.
    """

    def __init__(self, live: LiveBytes, trial_bytes: int = 0) -> None:
        super().__init__()
        self.live = live
        self._trial_bytes = trial_bytes
        self._kinds: dict[Any, _Kind] = {}
        self._results: dict[Any, _Result] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Stands in for one operation."""
        kwargs = kwargs or {}
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind_of(func)
        if kind is _Kind.VIEW or kind is _Kind.OTHER:
            return func(*args, **kwargs)
        tensors = list(_tensors(args, kwargs))
        if _is_cheap(tensors) or _without_memory(kwargs):
            return self._carry_out(func, args, kwargs)
        found = self._result(func, tensors, args, kwargs)
        result = _written(func, args, kwargs) if kind is _Kind.WRITE else self._allocate(found.layout)
        if found.scratch:
            self.live.add(torch.empty(found.scratch, dtype=torch.uint8))  # gone again at once
        return result

    def _carry_out(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Computes."""
        result = func(*args, **kwargs)
        for tensor in _tensors((result,), {}):
            self.live.add(tensor)
        return result

    def _result(
        self, func: Any, tensors: list[Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> _Result:
        """Looks up what an operation allocates, and finds it out the first time."""
        key = (func, _key(args), _key(kwargs))
        found = self._results.get(key)
        if found is None:
            looks = func in OPAQUE or sum(tensor.nbytes for tensor in tensors) <= self._trial_bytes
            found = self._results[key] = (_measured if looks else _described)(func, args, kwargs)
        return found

    def _allocate(self, layout: Any) -> Any:
        """Returns untouched memory; zeros where there are few values, which may be looked at."""
        if isinstance(layout, list | tuple) and not isinstance(layout, _Layout):
            return type(layout)(self._allocate(each) for each in layout)
        if not isinstance(layout, _Layout):
            return layout
        tensor = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype)
        if tensor.numel() <= FEW:
            tensor.zero_()
        self.live.add(tensor)
        return tensor


def _kind_of(func: Any) -> _Kind:
    """Reads an operation's schema."""
    schema = func._schema
    if func.namespace not in KNOWN or func in (aten.resize_.default, aten.set_.source_Storage):
        return _Kind.OTHER
    if func in (aten._unsafe_view.default, aten.lift_fresh.default):
        return _Kind.VIEW
    if schema.is_mutable:
        return _Kind.WRITE
    returns = [each.alias_info for each in schema.returns]
    return _Kind.VIEW if any(alias is not None for alias in returns) else _Kind.MAKE


def _tensors(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Iterable[Tensor]:
    """Yields the tensors among arguments."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value, {})


def _without_memory(kwargs: Mapping[str, Any]) -> bool:
    """Whether the result is to have a shape only."""
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "meta"


def _is_cheap(tensors: list[Tensor]) -> bool:
    """Whether to compute: few values or none, whole numbers, or tensors without memory."""
    return all(tensor.numel() <= FEW or tensor.is_meta for tensor in tensors) or not any(
        tensor.is_floating_point() for tensor in tensors
    )


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Returns what an operation that writes to its arguments returns, unwritten."""
    found = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        found.append(kwargs[argument.name] if argument.name in kwargs else args[place])
    count = len(func._schema.returns)
    if count == 0:
        return None
    return found[0] if count == 1 else tuple(found[:count])


def _key(value: Any) -> Any:
    """A hashable stand-in for arguments: tensors by what they are like."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return tuple(_key(each) for each in value)
    if isinstance(value, dict):
        return tuple((name, _key(each)) for name, each in value.items())
    return value


def _described(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Result:
    """Asks torch's shape functions what an operation returns."""
    if func._schema.is_mutable:
        return _Result(None, 0)
    return _Result(_layout_of(func(*_on_meta(args), **_on_meta(dict(kwargs)))), 0)


def _measured(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Result:
    """Carries an operation out on zeros to see what it allocates."""
    zeros, named = _zeros_like(args), _zeros_like(dict(kwargs))
    recorder = AllocationRecorder[str](torch.device("cpu"))
    recorder.start()
    try:
        result = func(*zeros, **named)
    finally:
        live = list(accumulate((change.bytes for change in recorder.stop().changes), initial=0))
    return _Result(_layout_of(result), max(live) - live[-1])


def _zeros_like(value: Any) -> Any:
    """Replaces tensors by ones with values."""
    if isinstance(value, Tensor):
        reach = [(size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)]
        values = 1 + sum(reach) if value.numel() else 0
        return torch.zeros(values, dtype=value.dtype).as_strided(value.shape, value.stride())
    if isinstance(value, list | tuple):
        return type(value)(_zeros_like(each) for each in value)
    if isinstance(value, dict):
        return {name: _zeros_like(each) for name, each in value.items()}
    return value


def _on_meta(value: Any) -> Any:
    """Replaces tensors by ones without memory."""
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, list | tuple):
        return type(value)(_on_meta(each) for each in value)
    if isinstance(value, dict):
        return {name: _on_meta(each) for name, each in value.items()}
    return torch.device("meta") if isinstance(value, torch.device) else value


def _layout_of(result: Any) -> Any:
    """Describes results."""
    if isinstance(result, Tensor):
        return _Layout(tuple(result.shape), result.stride(), result.dtype)
    if isinstance(result, list | tuple):
        return type(result)(_layout_of(each) for each in result)
    return result
