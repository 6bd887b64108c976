"""One call that is run again in backward: what it computes in between is not kept."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ds_tft.memory.checkpoint_path import CheckpointPath, run_checkpointed
from ds_tft.memory.kept_inputs import KeptInputs


def recomputed(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Returns `function(*inputs)`, keeping nothing for backward but the inputs.

    Args:
        function: Runs now and again in backward, with the same random numbers. What else it uses, such as
            parameters, it must hold itself.
        inputs: Not to be changed in place before backward.
    """
    call = _Call(function, inputs)
    run_checkpointed(CheckpointPath.OWN, call.run, inputs[0].device)
    return call.take_result()


class _Call:
    """Runs first with what the caller gave, then with what was kept of it."""

    def __init__(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
        self._function = function
        self._kept = KeptInputs(inputs, None)
        self._given: tuple[Tensor, ...] | None = inputs
        self._result: Tensor | None = None

    def run(self) -> None:
        """Runs the function."""
        if self._given is None:
            self._function(*self._kept.restore())
            return
        given, self._given = self._given, None
        self._result = self._function(*given)

    def take_result(self) -> Tensor:
        """Returns the result of the first run, and holds on to none of it."""
        result, self._result = self._result, None
        assert result is not None, "the function runs at once"
        return result
