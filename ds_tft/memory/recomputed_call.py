"""One call that is run again in backward: what it computes in between is not kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ds_tft.memory.checkpoint_path import CheckpointPath, run_checkpointed
from ds_tft.memory.kept_inputs import KeptInputs

Given = TypeVar("Given")
Result = TypeVar("Result")


def recomputed(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Returns `function(*inputs)`, keeping nothing for backward but the inputs.

    Args:
        function: Runs now and again in backward, with the same random numbers. What else it uses, such as
            parameters, it must hold itself.
        inputs: Not to be changed in place before backward.
    """

    def run(values: Sequence[Tensor]) -> Tensor:
        return function(*values)

    return RecomputedCall(run, inputs, run, KeptInputs(inputs, None)).on(CheckpointPath.OWN, inputs[0].device)


class RecomputedCall(Generic[Given, Result]):
    """A call and its repetition.

    Args:
        first: Runs with what the caller gave.
        given: That; it is let go of as soon as `first` has it.
        again: Runs with what was kept of it; what it returns is not looked at.
        kept: What was kept.
    """

    def __init__(
        self,
        first: Callable[[Given], Result],
        given: Given,
        again: Callable[[list[Any]], object],
        kept: KeptInputs,
    ) -> None:
        self._first, self._again, self._kept = first, again, kept
        self._given: list[Given] = [given]
        self._result: list[Result] = []

    def on(self, path: CheckpointPath, device: torch.device) -> Result:
        """Runs now, and again in backward; returns what the first run returned, and holds on to none of it.

        Args:
            path: Which machinery runs it.
            device: Where it computes.
        """
        run_checkpointed(path, self._run, device)
        return self._result.pop()

    def _run(self) -> None:
        """Runs: first with what the caller gave, then with what was kept of it."""
        if self._given:
            self._result.append(self._first(self._given.pop()))
        else:
            self._again(self._kept.restore())
