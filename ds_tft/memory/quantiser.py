"""What streaming asks of a module whose weights are quantised; `ds_tft/quantization` answers.

A quantised module has a child named `int8`. Modules that own a matrix or a table, and the code that runs them in
chunks, find it by `quantiser_of`.

Letters: V variables of a layer, C variables and R rows (batch x time) of a chunk, H hidden size, O output size.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

CHILD = "int8"


class ScaledWeight(NamedTuple):
    """Matrices as whole numbers and what to multiply them with; or plain ones, scaled by 1."""

    values: Tensor  # (C, H, O) float32, or int8 as they are stored
    scale: Tensor  # (C, 1, O) float32


class Quantiser(Protocol):
    """The quantised side of one module."""

    def table(self, name: str, values: Tensor) -> Tensor:
        """Returns a parameter of the module, such as its table, as the quantised model sees it."""

    def stacked_weight(self, weight: Tensor, variables: slice) -> ScaledWeight:
        """Returns the matrices (V, H, O) of some variables."""

    def stacked_input_scale(self, variables: slice) -> Tensor | None:
        """Returns the step of the inputs' codes, (C, 1, 1); `None` while inputs stay as they are."""

    def observe_stacked(self, values: Tensor, first_variable: int) -> None:
        """Takes note of inputs (C, R, H) while ranges are being measured."""


def quantiser_of(module: nn.Module) -> Any | None:
    """Returns the `Quantiser` of a module, or `None` where it has none."""
    return module._modules.get(CHILD)


def effective(module: nn.Module, name: str) -> Tensor:
    """Returns a parameter of a module, quantised where the module is."""
    values: Tensor = getattr(module, name)
    quantiser = quantiser_of(module)
    return values if quantiser is None else quantiser.table(name, values)
