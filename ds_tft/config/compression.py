"""The section `compression_training` of the DeepSpeed JSON, with the keys that DeepSpeed had up to 0.19.6.

DeepSpeed has removed its compression library and refuses the section; this package carries it out. Methods that it does
not have are in `deepspeed_refused.py`, values here, each with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ds_tft.config.json_reader import shortened
from ds_tft.config.run import Section, one_or_many

ALL_MODULES = "*"
ALL_GROUPS = '{"all": {"modules": ["*"]}}'
BITS = "codes are stored and multiplied as INT8; write 8"
GROUPS = "every output channel has a scale of its own; write 1"
KERNEL = "it was a kernel of DeepSpeed's fp16 optimizer and is no longer in it; write false"
IN_FORWARD = "false quantised in DeepSpeed's fp16 optimizer, which no longer does; write true"
MIXED = "it blended codes with fp16 weights, and the INT8 model has codes only; write false"
PERIOD = "it counts updates between two numbers of bits, and there is one; leave it out"
RELATED = "it serves pruning; remove it"


def _only(*supported: object, advice: str) -> Callable[[Any], Any]:
    """Makes a check that refuses every other value with a reason."""

    def check(value: Any) -> Any:
        if value not in supported:
            raise ValueError(f"not supported, got {shortened(value)}; {advice}")
        return value

    return check


def _searchable(pattern: str) -> str:
    """Refuses what is no regular expression, or would match everything by mistake."""
    if pattern == ALL_MODULES:
        return pattern
    if not pattern:
        raise ValueError('an empty pattern matches every module; write "*" if that is meant')
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(
            f"not a regular expression ({error}), got {shortened(pattern)}; "
            'write "*" for all modules, or a part of a name'
        ) from None
    return pattern


def _any_at_all(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Refuses an empty list."""
    if not patterns:
        raise ValueError('names no module, got []; write ["*"] for all')
    return patterns


def _check_groups(enabled: bool, groups: dict[str, Any]) -> None:
    """Refuses to quantise nothing."""
    if enabled and not groups:
        raise ValueError(f"enabled, and different_groups names no modules; write {ALL_GROUPS} for all")


EightBits = Annotated[int, AfterValidator(_only(8, advice=BITS))]
Offset = Annotated[int, Field(ge=0)]
Patterns = Annotated[
    tuple[Annotated[str, AfterValidator(_searchable)], ...],
    BeforeValidator(one_or_many),
    AfterValidator(_any_at_all),
]
Unrelated = Annotated[Any, AfterValidator(_only(None, advice=RELATED))]


class MixedQuantize(Section):
    """A blend of quantised and fp16 weights; stays off."""

    enabled: Annotated[bool, AfterValidator(_only(False, advice=MIXED))] = False
    quantize_change_ratio: Annotated[float, Field(ge=0, le=1)] = 0.001


class WeightShared(Section):
    """What all groups of weights have in common."""

    enabled: bool = False
    quantizer_kernel: Annotated[bool, AfterValidator(_only(False, advice=KERNEL))] = False
    schedule_offset: Offset = 0
    """Updates of the fine-tuning before weights are quantised in it."""
    quantize_groups: Annotated[int, AfterValidator(_only(1, advice=GROUPS))] = 1
    quantize_verbose: bool = False
    """Name every module in the table of what is quantised, instead of kinds of modules."""
    quantization_type: Literal["symmetric"] = "symmetric"
    rounding: Literal["nearest"] = "nearest"
    quantize_weight_in_forward: Annotated[bool, AfterValidator(_only(True, advice=IN_FORWARD))] = True
    fp16_mixed_quantize: MixedQuantize = MixedQuantize()


class WeightParams(Section):
    """Bits of a group of weights."""

    start_bits: EightBits = 8
    target_bits: EightBits = 8
    quantization_period: Annotated[int, AfterValidator(_only(0, 1, advice=PERIOD))] = 1


class WeightGroup(Section):
    """Modules whose weights are quantised."""

    params: WeightParams = WeightParams()
    modules: Patterns = (ALL_MODULES,)
    """Regular expressions, searched for in the names of the folded model's modules; `*` takes all."""
    related_modules: Unrelated = None


class WeightQuantization(Section):
    """Weights as INT8, one scale per output channel."""

    shared_parameters: WeightShared = WeightShared()
    different_groups: dict[str, WeightGroup] = {}

    @model_validator(mode="after")
    def _check(self) -> WeightQuantization:
        _check_groups(self.shared_parameters.enabled, self.different_groups)
        return self


class ActivationShared(Section):
    """What all groups of inputs have in common."""

    enabled: bool = False
    quantization_type: Literal["symmetric"] = "symmetric"
    range_calibration: Literal["static"] = "static"
    schedule_offset: Offset = 0
    """Updates of the fine-tuning before inputs are quantised in it."""


class ActivationParams(Section):
    """Bits of a group of inputs."""

    bits: EightBits = 8


class ActivationGroup(Section):
    """Modules whose inputs are quantised."""

    params: ActivationParams = ActivationParams()
    modules: Patterns = (ALL_MODULES,)
    """As those of weights. A module whose weights stay in floating point keeps its inputs, too."""
    related_modules: Unrelated = None


class ActivationQuantization(Section):
    """Inputs of quantised modules as INT8, in ranges that are measured once."""

    shared_parameters: ActivationShared = ActivationShared()
    different_groups: dict[str, ActivationGroup] = {}

    @model_validator(mode="after")
    def _check(self) -> ActivationQuantization:
        _check_groups(self.shared_parameters.enabled, self.different_groups)
        return self


class CompressionTraining(Section):
    """What becomes INT8."""

    weight_quantization: WeightQuantization = WeightQuantization()
    activation_quantization: ActivationQuantization = ActivationQuantization()

    @model_validator(mode="after")
    def _check(self) -> CompressionTraining:
        if self.weight_quantization.shared_parameters.enabled:
            return self
        if self.activation_quantization.shared_parameters.enabled:
            raise ValueError(
                "activation_quantization is enabled and weight_quantization is not, and INT8 inputs are multiplied "
                "by INT8 weights; enable both, or weight_quantization alone"
            )
        raise ValueError(
            'nothing is enabled; write "weight_quantization": {"shared_parameters": {"enabled": true}, '
            f'"different_groups": {ALL_GROUPS}}}, or leave the section out'
        )


def everything() -> dict[str, Any]:
    """What `--use-int8` stands for, as JSON: weights and inputs of all modules."""
    return {
        part: {
            "shared_parameters": {"enabled": True},
            "different_groups": {"all": {"modules": [ALL_MODULES]}},
        }
        for part in ("weight_quantization", "activation_quantization")
    }
