"""The quantised side of one module: what its weights are as whole numbers, and the steps of its inputs.

It is a child named `int8` of the module that it belongs to. The module's own parameters keep their names; in a model
that is stored as INT8 they are buffers of codes, and their scales are here.

Letters: V variables, G groups of inputs that have one step each, I input size, H hidden size, O output size,
C variables and R rows (batch x time) of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ds_tft.memory.quantiser import ScaledWeight
from ds_tft.quantization.codes import fake_quantised_weight, weight_codes, weight_scale, wide
from ds_tft.quantization.histogram import MagnitudeHistogram
from ds_tft.quantization.integer_linear import Steps
from ds_tft.quantization.range_groups import range_groups


@dataclass(slots=True)
class Switch:
    """What is quantised at the moment, in all modules of one model."""

    weights: bool = False
    inputs: bool = False


class _Sorted(NamedTuple):
    """Groups of inputs, and the steps that they follow from."""

    step: Tensor
    version: int
    groups: tuple[Tensor, ...]


class LayerQuantiser(nn.Module):
    """Quantises the parameters of a module, and knows the steps of its inputs."""

    input_step: Tensor  # (G,) float32; empty where inputs stay in floating point

    def __init__(
        self,
        switch: Switch,
        summed: Mapping[str, int],
        num_steps: int,
        *,
        device: torch.device,
        step_per_input: bool = False,
    ) -> None:
        """Builds it with steps of 1.

        Args:
            switch: Shared by all modules of a model.
            summed: Parameters that are quantised, and the dimension that each is summed over in its product.
            num_steps: Groups of inputs with a step of their own, G; 0 leaves inputs in floating point.
            device: Where the module is.
            step_per_input: The groups are the inputs of one sum, not those of separate ones.
        """
        super().__init__()
        self.switch = switch
        self.summed = dict(summed)
        self.step_per_input = step_per_input
        self.active = True
        """Off leaves this module in floating point, to see what each one costs."""
        self.observed: MagnitudeHistogram | None = None
        """Takes note of the inputs while ranges are being measured."""
        self._sorted: _Sorted | None = None
        self.register_buffer("input_step", torch.ones(num_steps, device=device))

    @property
    def num_steps(self) -> int:
        """Groups of inputs with a step of their own, G."""
        return len(self.input_step)

    @property
    def quantises_inputs(self) -> bool:
        """Whether inputs are quantised at the moment."""
        return self.switch.inputs and self.active and self.num_steps > 0

    @property
    def quantises_weights(self) -> bool:
        """Whether weights are quantised at the moment."""
        return self.switch.weights and self.active

    @property
    def steps(self) -> Steps:
        """Steps of the inputs of a product with a weight (O, I)."""
        return Steps(self.input_step, self._groups() if self.step_per_input else None)

    def _groups(self) -> tuple[Tensor, ...]:
        """Returns the groups of the inputs; sorted again once the steps have changed, since a device has to wait."""
        step, version = self.input_step, self.input_step._version
        if self._sorted is None or self._sorted.step is not step or self._sorted.version != version:
            self._sorted = _Sorted(step, version, range_groups(step))
        return self._sorted.groups

    def is_stored(self, values: Tensor) -> bool:
        """Says whether a parameter is codes already."""
        return values.dtype == torch.int8

    def scale(self, name: str) -> Tensor:
        """Returns the scale of a parameter that is stored as codes."""
        scale: Tensor = getattr(self, f"{name}_scale")
        return scale

    def store(self, name: str, scale: Tensor) -> None:
        """Takes the scale of a parameter that is stored as codes from now on."""
        self.register_buffer(f"{name}_scale", scale)

    def table(self, name: str, values: Tensor) -> Tensor:
        """Returns a parameter as the quantised model sees it, in floating point."""
        if self.is_stored(values):
            return values.float().mul_(self.scale(name))
        return fake_quantised_weight(values, self.summed[name]) if self.quantises_weights else values

    def stacked_weight(self, weight: Tensor, variables: slice) -> ScaledWeight:
        """Returns the matrices of some variables, (C, H, O): codes as they are stored, or float32."""
        part = weight[variables]
        if self.is_stored(weight):
            return ScaledWeight(part, self.scale("weight")[variables])
        if self.quantises_weights:
            scale = weight_scale(part, 1)
            return ScaledWeight(weight_codes(part, scale), scale)
        part = wide(part)
        return ScaledWeight(part, part.new_ones(len(part), 1, 1))

    def stacked_input_scale(self, variables: slice) -> Tensor | None:
        """Returns the step of some variables' inputs, (C, 1, 1); `None` while inputs stay as they are."""
        return self.input_step[variables].view(-1, 1, 1) if self.quantises_inputs else None

    def observe_stacked(self, values: Tensor, first_variable: int) -> None:
        """Takes note of the inputs of some variables, (C, R, H)."""
        if self.observed is not None:
            self.observed.add(values.flatten(1), first_variable)

    def observe(self, values: Tensor) -> None:
        """Takes note of inputs (..., I)."""
        if self.observed is not None:
            per_step = self.num_steps > 1
            self.observed.add(values.flatten(0, -2).t() if per_step else values.reshape(1, -1))

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> LayerQuantiser:
        """Moves steps and scales with the model, and leaves them in float32 where it goes to half precision."""

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            # Not the way there and back, on which digits are lost.
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(move, *args, **kwargs)
        return self
