"""What to change where training does not fit: settings to type, each with the memory that it would take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ds_tft.config.batch import BatchSizes
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.optimizer_sections import OptimizerAdamW8bit
from ds_tft.formatting import format_bytes
from ds_tft.memory.plan.fit import predict_if_possible, search_micro_batch
from ds_tft.memory.plan.memory_plan import MemoryPlan
from ds_tft.memory.plan.processes import Planner
from ds_tft.memory.plan.variants import (
    with_bf16,
    with_offloaded_inputs,
    with_offloaded_optimizer,
    with_recompute,
    with_streaming,
)
from ds_tft.model.inputs import ModelSize

MOST = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """One change and what comes of it."""

    text: str
    """What a user types."""
    plan: MemoryPlan

    def __str__(self) -> str:
        return f"{self.text} ({format_bytes(self.plan.peak_bytes)} planned)"


def find_remedies(
    planner: Planner,
    size: ModelSize,
    settings: DeepSpeedSettings,
    batch: BatchSizes,
    now: MemoryPlan,
    budget_bytes: int | None,
) -> list[Remedy]:
    """Returns up to three changes that save memory, those that fit a budget first, then by their peak.

    Args:
        planner: Predicts.
        size: Shapes of the model.
        settings: The DeepSpeed JSON as it is.
        batch: Sizes of an update as they are.
        now: What they take.
        budget_bytes: What there is; `None` where it is not known.
    """
    fewer = _smaller_batch(planner, size, settings, batch, budget_bytes)
    found = [
        (text, predict_if_possible(planner, each_size, each_settings, each_batch))
        for text, each_size, each_settings, each_batch in _changes(
            size, settings, batch, fewer, planner.device
        )
    ]
    saving = [
        Remedy(text=text, plan=plan)
        for text, plan in found
        if plan is not None and plan.peak_bytes < now.peak_bytes
    ]
    if budget_bytes is None:
        return sorted(saving, key=lambda remedy: remedy.plan.peak_bytes)[:MOST]
    fitting = [remedy for remedy in saving if remedy.plan.peak_bytes <= budget_bytes]
    rest = sorted((r for r in saving if r not in fitting), key=lambda remedy: remedy.plan.peak_bytes)
    return (fitting + rest)[:MOST]  # what fits stays in the order of what it costs


def remedies_text(remedies: Sequence[Remedy], budget_bytes: int | None = None) -> str:
    """Says what to change, for the end of an error.

    Args:
        remedies: What `find_remedies` returned.
        budget_bytes: What there is; `None` where it is not known.
    """
    if not remedies:
        return "lower model.hidden_size or window.encoder_length"
    if budget_bytes is None:
        return f"set one of: {_listed(remedies)}"
    fitting = [remedy for remedy in remedies if remedy.plan.peak_bytes <= budget_bytes]
    if not fitting:
        return f"none of these fits alone: {_listed(remedies)}"
    return f"set one of: {_listed(fitting)}"


def _smaller_batch(
    planner: Planner,
    size: ModelSize,
    settings: DeepSpeedSettings,
    batch: BatchSizes,
    budget_bytes: int | None,
) -> BatchSizes | None:
    """Returns the largest micro-batch that fits a budget, or half of what there is where none is known."""
    if budget_bytes is not None:
        plan = search_micro_batch(planner, size, settings, batch.global_batch, budget_bytes)
        if plan is not None and plan.batch.micro_batch < batch.micro_batch:
            return plan.batch
    return None if batch.micro_batch % 2 else batch.halved()


def _listed(remedies: Sequence[Remedy]) -> str:
    """Remedies with commas."""
    return ", ".join(map(str, remedies))


def _changes(
    size: ModelSize,
    settings: DeepSpeedSettings,
    batch: BatchSizes,
    fewer: BatchSizes | None,
    device: str,
) -> Iterator[tuple[str, ModelSize, DeepSpeedSettings, BatchSizes]]:
    """Yields single changes, those first that cost least."""
    zero = settings.zero_optimization
    if not settings.ds_tft.streaming:
        yield "--set deepspeed.ds_tft.streaming=true", size, with_streaming(settings), batch
    if not settings.recomputes and zero.stage < 3:
        yield "--use-gradient-checkpointing", size, with_recompute(settings), batch
    if fewer is not None:
        sizes = (
            f"--set deepspeed.train_micro_batch_size_per_gpu={fewer.micro_batch} "
            "--set deepspeed.gradient_accumulation_steps=auto"
        )
        yield f"{sizes} --batch-size {fewer.global_batch}", size, settings, fewer
    if device == "cuda" and not settings.activation_checkpointing.cpu_checkpointing and zero.stage < 3:
        text = "--set deepspeed.activation_checkpointing.cpu_checkpointing=true"
        yield text, size, with_offloaded_inputs(settings), batch
    if settings.precision == "fp32" and zero.stage:
        yield "--set deepspeed.bf16.enabled=true", size, with_bf16(settings), batch
    movable = not isinstance(settings.optimizer, OptimizerAdamW8bit)
    if device == "cuda" and zero.stage and not zero.offloads and movable:
        text = "--set deepspeed.zero_optimization.offload_optimizer.device=cpu"
        yield text, size, with_offloaded_optimizer(settings), batch
    if size.hidden_size % (2 * size.num_heads) == 0:
        smaller = replace(size, hidden_size=size.hidden_size // 2)
        yield f"--set model.hidden_size={smaller.hidden_size}", smaller, settings, batch
