"""The same training in other settings: what each takes, how large a micro-batch fits, and which one to take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ds_tft.config.batch import BatchSizes
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.optimizer_sections import OptimizerAdamW8bit
from ds_tft.errors import ConfigError
from ds_tft.memory.plan.fit import predict_if_possible, search_micro_batch
from ds_tft.memory.plan.memory_plan import MemoryPlan
from ds_tft.memory.plan.processes import Planner
from ds_tft.memory.plan.variants import (
    with_bf16,
    with_compressed_inputs,
    with_offloaded_inputs,
    with_offloaded_optimizer,
    with_recompute,
    with_stage_0,
    with_stage_1,
    with_streaming,
    without_recompute,
)
from ds_tft.model.inputs import ModelSize

AS_GIVEN = "as given"


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Settings that differ from those given, and what they cost."""

    name: str
    settings: DeepSpeedSettings
    cost: str = ""
    """In words, against the settings given."""
    rank: int = 0
    """Order of step times; changes of the same rank differ less than runs do."""
    exact: bool = True
    """Whether losses and gradients stay what they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """A change with its predictions."""

    change: Change
    plan: MemoryPlan | None
    """At the micro-batch asked for; `None` if that is too large to be planned."""
    largest: MemoryPlan | None
    """At the largest micro-batch that fits the budget; `None` if none does."""


class _Step(NamedTuple):
    """One thing to change."""

    name: str
    apply: Callable[[DeepSpeedSettings], DeepSpeedSettings]
    cost: str
    rank: int
    exact: bool = True


def look_at_alternatives(
    planner: Planner, size: ModelSize, settings: DeepSpeedSettings, batch: BatchSizes, budget_bytes: int
) -> Iterator[Alternative]:
    """Predicts the settings given and each alternative to them; yields each when it is ready.

    Args:
        planner: Predicts.
        size: Shapes of the model.
        settings: The DeepSpeed JSON as given.
        batch: Sizes of an update as given; the global batch stays.
        budget_bytes: What one process may take on its device.

    Raises:
        ConfigError: The settings given are too large to be planned on this machine, or cannot be carried out.
    """
    for change in changes_for(settings, on_cuda=planner.device == "cuda", world_size=planner.world_size):
        plan = predict_if_possible(planner, size, change.settings, batch)
        if plan is None and change.name == AS_GIVEN:
            raise ConfigError(
                "--batch-size (train_micro_batch_size_per_gpu): this machine has too little memory to plan it, "
                f"got micro-batch {batch.micro_batch}; give fewer windows, or lower window.encoder_length or "
                "model.hidden_size"
            )
        known = [] if plan is None else [plan]
        largest = search_micro_batch(planner, size, change.settings, batch.global_batch, budget_bytes, known)
        yield Alternative(change=change, plan=plan, largest=largest)


def recommend(alternatives: Sequence[Alternative], micro_batch: int) -> Alternative | None:
    """Chooses the cheapest in time that fits at the global batch.

    Those come first that keep the micro-batch asked for, or a larger one, then those with the largest; what
    changes the results of training is taken only where nothing exact fits.

    Args:
        alternatives: What there is, in any order.
        micro_batch: Windows per forward and backward that were asked for.

    Returns:
        `None` if nothing fits.
    """
    fitting = [(each, each.largest.batch.micro_batch) for each in alternatives if each.largest is not None]

    def order(choice: tuple[Alternative, int]) -> tuple[bool, int, int]:
        alternative, largest = choice
        return not alternative.change.exact, -min(largest, micro_batch), alternative.change.rank

    return min(fitting, key=order)[0] if fitting else None


def changes_for(settings: DeepSpeedSettings, *, on_cuda: bool, world_size: int = 1) -> list[Change]:
    """Returns the settings given, as the first, and what can be changed about them.

    Args:
        settings: The DeepSpeed JSON.
        on_cuda: Whether training runs on a GPU; elsewhere nothing is gained by moving it to the host.
        world_size: Processes of the run.
    """
    given = Change(name=AS_GIVEN, settings=settings)
    if settings.zero_optimization.stage == 3:
        return [given]  # it allows neither streaming nor recomputation
    streaming = _Step("streaming", with_streaming, "faster", -1)
    first = [] if settings.ds_tft.streaming else [streaming]
    activations = list(_activation_steps(settings, on_cuda))
    states = list(_state_steps(settings, on_cuda))
    strongest = [step for step in activations if step.exact][-1:]
    combined = [[*strongest, step] for step in states] + ([[*strongest, *states]] if len(states) > 1 else [])
    choices = [*([step] for step in (*activations, *states)), *(combined if strongest else [])]
    found = [given, *(_applied(settings, [step]) for step in first)]
    zero = settings.zero_optimization
    if world_size == 1 and zero.stage and settings.precision == "fp32" and not zero.offloads:
        found.append(_applied(settings, [*first, _stage_0_step(settings)]))
    found += [_applied(settings, [*first, *steps]) for steps in choices]
    if settings.recomputes:
        plain = replace(_applied(settings, first), settings=without_recompute(settings), rank=-1)
        found.append(replace(plain, name="no checkpointing", cost="a little faster"))
    return found


def _stage_0_step(settings: DeepSpeedSettings) -> _Step:
    """Returns the way to do without ZeRO, whose one process has nothing to share."""
    if isinstance(settings.optimizer, OptimizerAdamW8bit):
        cost = "none in time; 8-bit states round in other blocks"
        return _Step("ZeRO stage 0", with_stage_0, cost, 0, exact=False)
    return _Step("ZeRO stage 0", with_stage_0, "none: on one process the update is the same", 0)


def _activation_steps(settings: DeepSpeedSettings, on_cuda: bool) -> Iterator[_Step]:
    """Yields ways to keep less between forward and backward."""
    if settings.activation_checkpointing.cpu_checkpointing or settings.ds_tft.compress_kept:
        return
    if not settings.recomputes:
        yield _Step("checkpointing", with_recompute, "time x 0.95 to 1.02 on a CPU", 1)
    text = "copies to the host"
    if on_cuda:
        yield _Step("checkpointing, inputs on the host", with_offloaded_inputs, text, 2)
    yield _Step(
        "checkpointing, inputs as INT8", with_compressed_inputs, "gradients change slightly", 3, False
    )


def _state_steps(settings: DeepSpeedSettings, on_cuda: bool) -> Iterator[_Step]:
    """Yields ways to make weights, gradients and optimizer state smaller on the device."""
    zero = settings.zero_optimization
    if settings.precision == "fp32":
        speed = "faster" if on_cuda else "slower on most CPUs"
        yield _Step(
            "bf16", lambda given: with_bf16(with_stage_1(given)), f"{speed}, results change", 1, False
        )
    if on_cuda and not zero.offloads and not isinstance(settings.optimizer, OptimizerAdamW8bit):
        yield _Step(
            "optimizer on the host",
            lambda given: with_offloaded_optimizer(with_stage_1(given)),
            "slower: update on the host",
            4,
        )


def _applied(settings: DeepSpeedSettings, steps: Sequence[_Step]) -> Change:
    """Returns the settings with several things changed."""
    for step in steps:
        settings = step.apply(settings)
    return Change(
        name=" + ".join(step.name for step in steps),
        settings=settings,
        cost="; ".join(step.cost for step in steps),
        rank=sum(step.rank for step in steps),
        exact=all(step.exact for step in steps),
    )
