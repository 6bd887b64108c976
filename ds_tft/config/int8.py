"""INT8 as the settings ask for it: the section `ds_tft.int8`, and what `compression_training` comes to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from ds_tft.config.compression import ALL_MODULES, ActivationGroup, WeightGroup
from ds_tft.config.json_reader import dotted, shortened
from ds_tft.config.run import Count, Section
from ds_tft.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from ds_tft.config.deepspeed_sections import DeepSpeedSettings

FINE_TUNE_LEARNING_RATE_SHARE = 0.003
"""Learning rate of the fine-tuning, as a share of that of training, where it is `auto`."""
SECTION = "compression_training"
WEIGHTS = (SECTION, "weight_quantization")
ACTIVATIONS = (SECTION, "activation_quantization")


class Int8Settings(Section):
    """The section `ds_tft.int8`: what DeepSpeed has no key for."""

    calibration: Literal["percentile", "min_max", "mse"] = "percentile"
    """How the range of an input follows from what is seen: a percentile of its magnitudes, the largest one, or what
    rounds and clips with the smallest squared error."""
    percentile: Annotated[float, Field(gt=50, le=100)] = 99.99
    """Share of the values within the range, in per cent; with `calibration` `percentile` only."""
    calibration_windows: Count = 1024
    """Training windows that are looked at."""
    fine_tune_steps: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Updates with quantised weights and inputs after training; 0 quantises only."""
    learning_rate: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    """Highest rate of the fine-tuning; `auto` takes a share of the one of training."""

    @model_validator(mode="after")
    def _check(self) -> Int8Settings:
        if self.calibration != "percentile" and "percentile" in self.model_fields_set:
            raise ValueError(
                f"percentile has no effect with calibration {self.calibration!r}, got {self.percentile:g}; leave it out"
            )
        if self.fine_tune_steps == 0 and self.learning_rate != "auto":
            raise ValueError(
                f"learning_rate has no effect with fine_tune_steps 0, got {self.learning_rate:g}; leave it out"
            )
        return self

    @model_serializer(mode="wrap")
    def _dump(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out a percentile that has no effect: read again, it would be refused."""
        values: dict[str, Any] = handler(self)
        if self.calibration != "percentile":
            values.pop("percentile", None)
        return values


@dataclass(frozen=True, slots=True)
class ModuleRule:
    """Modules that one group of the JSON names."""

    where: str
    """Path of the list in the JSON."""
    patterns: tuple[str, ...]

    def matches(self, name: str) -> bool:
        """Whether any pattern finds itself in the name of a module."""
        return any(_found(pattern, name) for pattern in self.patterns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Int8Plan:
    """What is quantised, and when in the fine-tuning."""

    weights: tuple[ModuleRule, ...]
    activations: tuple[ModuleRule, ...]
    """Whose inputs; empty where they stay in floating point."""
    weight_offset: int
    """Updates of the fine-tuning before weights are quantised in it."""
    activation_offset: int
    """The same of inputs."""
    verbose: bool
    """Whether the table of what is quantised names every module."""


def int8_plan(settings: DeepSpeedSettings) -> Int8Plan | None:
    """Reads what the settings quantise; `None` where nothing.

    Args:
        settings: The DeepSpeed JSON.
    """
    section = settings.compression_training
    if section is None:
        return None
    weights, activations = section.weight_quantization, section.activation_quantization
    enabled = activations.shared_parameters.enabled
    return Int8Plan(
        weights=_rules(WEIGHTS, weights.different_groups),
        activations=_rules(ACTIVATIONS, activations.different_groups) if enabled else (),
        weight_offset=weights.shared_parameters.schedule_offset,
        activation_offset=activations.shared_parameters.schedule_offset if enabled else 0,
        verbose=weights.shared_parameters.quantize_verbose,
    )


def check_schedule(plan: Int8Plan, steps: int) -> None:
    """Refuses a schedule that never switches quantisation on.

    Args:
        plan: The settings.
        steps: Updates of the fine-tuning.

    Raises:
        ConfigError: Names the offset.
    """
    for path, offset in ((WEIGHTS, plan.weight_offset), (ACTIVATIONS, plan.activation_offset)):
        where = dotted((*path, "shared_parameters", "schedule_offset"))
        if offset and not steps:
            raise ConfigError(
                f"{where}: it counts updates of the fine-tuning, and ds_tft.int8.fine_tune_steps is 0, got {offset}; "
                "leave it out"
            )
        if offset >= steps > 0:
            raise ConfigError(
                f"{where}: the fine-tuning has {steps} updates and would end before it quantises, got {offset}; "
                "lower it, or raise ds_tft.int8.fine_tune_steps"
            )


def unmatched(plan: Int8Plan, names: Sequence[str], multiplied: Sequence[str]) -> None:
    """Refuses patterns that quantise nothing.

    Args:
        plan: The settings.
        names: Modules of the folded model that have weights to quantise.
        multiplied: Those of them that multiply inputs, and do not only look rows up.

    Raises:
        ConfigError: Names the pattern, and what it may have been meant to be.
    """
    blocks = dict.fromkeys(name.split(".")[0] for name in names)
    for where, pattern in _patterns((*plan.weights, *plan.activations)):
        if not any(_found(pattern, name) for name in names):
            raise ConfigError(
                f"{where}: matches no module, got {shortened(pattern)}; {suggestion(pattern, blocks)}"
            )
    for where, pattern in _patterns(plan.activations):
        matched = [name for name in multiplied if _found(pattern, name)]
        if not matched:
            raise ConfigError(
                f"{where}: matches only tables, which look rows up and have no range of inputs, "
                f"got {shortened(pattern)}; remove it"
            )
        if not any(rule.matches(name) for rule in plan.weights for name in matched):
            raise ConfigError(
                f"{where}: matches only modules whose weights stay in floating point, got {shortened(pattern)}; "
                f"name them in {dotted(WEIGHTS)} too"
            )


def _rules(
    path: Sequence[str], groups: Mapping[str, WeightGroup | ActivationGroup]
) -> tuple[ModuleRule, ...]:
    """What the groups name."""
    return tuple(
        ModuleRule(dotted((*path, "different_groups", name, "modules")), group.modules)
        for name, group in groups.items()
    )


def _patterns(rules: Sequence[ModuleRule]) -> Iterator[tuple[str, str]]:
    """Every pattern and where it stands."""
    for rule in rules:
        for index, pattern in enumerate(rule.patterns):
            yield f"{rule.where}[{index}]", pattern


def _found(pattern: str, name: str) -> bool:
    """Whether a pattern is in a name."""
    return pattern == ALL_MODULES or re.search(pattern, name) is not None
