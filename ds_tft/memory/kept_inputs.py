"""The inputs of a block that is recomputed: what is kept of it between forward and backward.

Tensors are kept as detached aliases: the caller's are never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ds_tft.memory.input_store import InputStore, Kept, SavedTensors


class KeptInputs:
    """Keeps a list of values until it is dropped.

    Args:
        values: Tensors and anything else. Parameters, and views of them, are held as they are.
        store: Takes large floating-point tensors; `None` keeps them as they are.
    """

    def __init__(self, values: Sequence[Any], store: InputStore | None) -> None:
        self._others = [None if _is_data(value) else value for value in values]
        self._requires_grad = [_is_data(value) and value.requires_grad for value in values]
        tensors = {place: value.detach() for place, value in enumerate(values) if _is_data(value)}
        taken = {} if store is None else {at: each for at, each in tensors.items() if store.wants(each)}
        stay = {place: tensor for place, tensor in tensors.items() if place not in taken}
        self._kept: list[tuple[tuple[int, ...], Kept]] = [(tuple(stay), SavedTensors(stay.values()))]
        if store is not None and taken:
            self._kept.append((tuple(taken), store.keep(tuple(taken.values()))))

    def restore(self) -> list[Any]:
        """Returns the values; tensors are cut off from the graph that they came from."""
        values = list(self._others)
        for places, kept in self._kept:
            for place, tensor in zip(places, kept.restore(), strict=True):
                values[place] = tensor.detach().requires_grad_(self._requires_grad[place])
        return values


def _is_data(value: Any) -> bool:
    """True for tensors other than parameters and views of them."""
    if not isinstance(value, Tensor):
        return False
    return not (isinstance(value, nn.Parameter) or isinstance(value._base, nn.Parameter))
