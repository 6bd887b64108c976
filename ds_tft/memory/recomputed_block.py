"""One block of a model, run again in backward: what takes the place of its `forward`.

Under `no_grad`, in evaluation mode and while paused the block's own forward runs and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ds_tft.memory.checkpoint_path import CheckpointPath
from ds_tft.memory.input_store import InputStore
from ds_tft.memory.kept_inputs import KeptInputs
from ds_tft.memory.module_state import BufferSnapshot
from ds_tft.memory.recomputed_call import RecomputedCall
from ds_tft.memory.recomputing import recomputing, within_block


@dataclass(kw_only=True, slots=True)
class BlockCounts:
    """What happened in one block since the last reset."""

    forwards: int = 0
    recomputes: int = 0
    forward_seconds: float = 0.0
    recompute_seconds: float = 0.0


@dataclass(kw_only=True, slots=True)
class RecomputeState:
    """What the blocks of a model share."""

    path: CheckpointPath
    device: torch.device
    store: InputStore | None
    """Takes large inputs; `None` keeps them as they are."""
    synchronize: bool
    """Wait for the GPU before and after each block."""
    profile: bool
    """Measure the time of each block."""
    paused: bool = False
    counts: dict[str, BlockCounts] = field(default_factory=dict)


class RecomputedBlock:
    """Takes the place of a module's `forward`.

    Args:
        name: Of the module in the model.
        module: Whose forward is replaced.
        state: Shared by all blocks.
        saves_only: Whether the block's last operation may leave its result open in the second run.
    """

    def __init__(self, name: str, module: nn.Module, state: RecomputeState, *, saves_only: bool) -> None:
        self.name = name
        self.module = module
        self._before: Callable[..., Any] | None = vars(module).get("forward")  # an earlier pass's
        self.forward: Callable[..., Any] = module.forward
        self.state = state
        self.saves_only = saves_only

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the block."""
        if self.state.paused or not torch.is_grad_enabled() or not self.module.training:
            return self.forward(*args, **kwargs)
        values, structure = tree_flatten((args, kwargs))
        buffers = BufferSnapshot(self.module)

        def first(given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
            with self.first_run(), within_block():
                return self.forward(*given[0], **given[1])

        def again(kept: list[Any]) -> None:
            args, kwargs = tree_unflatten(kept, structure)
            with self.second_run(), within_block(), buffers.in_place():
                self.forward(*args, **kwargs)

        kept = KeptInputs(values, self.state.store)
        return RecomputedCall(first, (args, kwargs), again, kept).on(self.state.path, self.state.device)

    def undo(self) -> None:
        """Gives the module back the forward that it had."""
        if self._before is None:
            del self.module.forward
        else:
            self.module.forward = self._before

    @contextmanager
    def first_run(self) -> Iterator[None]:
        """Surrounds the block in forward."""
        counts = self.state.counts[self.name]
        counts.forwards += 1
        started = self._clock()
        yield
        counts.forward_seconds += self._clock() - started

    @contextmanager
    def second_run(self) -> Iterator[None]:
        """Surrounds the block in backward."""
        counts = self.state.counts[self.name]
        counts.recomputes += 1
        started = self._clock()
        try:
            with recomputing(saves_only=self.saves_only):
                yield
        finally:  # torch leaves the second run by an exception once all is saved
            counts.recompute_seconds += self._clock() - started

    def _clock(self) -> float:
        """Returns the time, if asked for, once the GPU has come this far, if asked for."""
        state = self.state
        if state.device.type == "cuda" and (state.synchronize or state.profile):
            torch.cuda.synchronize(state.device)
        return perf_counter() if state.profile else 0.0
