"""Where an update is, block by block: the top-level submodules of the model.

In forward, hooks on the blocks say so. In backward, hooks on the nodes of the graph do: a node belongs to the
block that ran when it was made, by autograd's running number. What a block recomputes in backward runs inside
one of its nodes. All hooks are taken off again; they look at nothing and change nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ds_tft.memory.trace.timeline import FORWARD, OUTSIDE, Place


class _Made(NamedTuple):
    """Nodes of the graph from number `start` on were made in a block, until the next of these."""

    start: int
    block: str


class BlockWatch:
    """Follows an update through the blocks of a model.

    A block within another, such as an embedding that a selection calls, counts as the outer one.

    Args:
        model: Its top-level submodules are the blocks.
        arrive: Called whenever the place changes.
        given: Called with the tensors that the model is called with.
    """

    def __init__(
        self, model: nn.Module, arrive: Callable[[Place], None], given: Callable[[list[Tensor]], None]
    ) -> None:
        self._model = model
        self._arrive = arrive
        self._given = given
        self._depth = 0
        self._made: list[_Made] = []
        self.place = Place()
        """Where the update is."""
        self.last_block = OUTSIDE
        """The block that was entered last."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keeps the hooks on the modules while inside."""
        hooks: list[Any] = [
            self._model.register_forward_pre_hook(self._see_inputs, with_kwargs=True),
            self._model.register_forward_hook(self._see_outputs),
        ]
        for name, block in self._model.named_children():
            hooks.append(block.register_forward_pre_hook(self._entering(name)))
            hooks.append(block.register_forward_hook(self._leaving))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def enter_phase(self, phase: str) -> None:
        """Says that a phase begins, or that none runs."""
        self._depth = 0
        self._move(Place(phase))

    def _move(self, place: Place) -> None:
        """Changes the place, if it is another."""
        if place == self.place:
            return
        self.place = place
        self.last_block = place.block or self.last_block
        self._arrive(place)

    def _see_inputs(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        """A forward of the model begins."""
        self._made = [_Made(0, OUTSIDE)]
        self._given([each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)])

    def _entering(self, name: str) -> Callable[[nn.Module, Any], None]:
        """Returns the hook that runs before a block."""

        def enter(_module: nn.Module, _args: Any) -> None:
            if not self._is_first_run:
                return
            self._depth += 1
            if self._depth == 1:
                self._begin(name)

        return enter

    def _leaving(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        """Runs after a block."""
        if not self._is_first_run:
            return
        self._depth -= 1
        if self._depth == 0:
            self._begin(OUTSIDE)

    @property
    def _is_first_run(self) -> bool:
        """False where a module runs again, inside of a block that is recomputed in backward."""
        return self.place.phase == FORWARD

    def _begin(self, block: str) -> None:
        """From here on, nodes are of this block."""
        self._made.append(_Made(torch._C._autograd._get_sequence_nr(), block))
        self._move(Place(self.place.phase, block))

    def _see_outputs(self, _module: nn.Module, _args: Any, output: Any) -> None:
        """A forward of the model is over: hooks its graph."""
        starts = [made.start for made in self._made]
        for node in _graph(output):
            made = self._made[bisect_right(starts, node._sequence_nr()) - 1]
            node.register_prehook(self._reaching(made.block))

    def _reaching(self, block: str) -> Callable[[Any], None]:
        """Returns the hook that runs before a node of a block."""

        def reach(_gradients: Any) -> None:
            self._move(Place(self.place.phase, block))

        return reach


def _graph(output: Any) -> Iterator[Any]:
    """Yields the nodes behind the model's output, without those that only add up gradients of parameters."""
    waiting = [each.grad_fn for each in tree_leaves(output) if isinstance(each, Tensor)]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or hasattr(node, "variable"):
            continue
        seen.add(node)
        yield node
        waiting.extend(following for following, _ in node.next_functions)
