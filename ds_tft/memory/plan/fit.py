"""The largest micro-batch that fits: a search among the divisors of a process's share of an update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ds_tft.config.batch import BatchSizes
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.errors import ConfigError
from ds_tft.memory.plan.memory_plan import MemoryPlan
from ds_tft.memory.plan.processes import Planner
from ds_tft.model.inputs import ModelSize


def search_micro_batch(
    planner: Planner,
    size: ModelSize,
    settings: DeepSpeedSettings,
    global_batch: int,
    budget_bytes: int,
    known: Sequence[MemoryPlan] = (),
) -> MemoryPlan | None:
    """Finds the largest micro-batch whose predicted peak is within a budget.

    The largest is looked at first: alone it needs no accumulation, which keeps gradients from one micro-batch
    to the next. Among the others the peak grows with the micro-batch, and nearly along a line, which says
    where between two known sizes to look next.

    Args:
        planner: Predicts.
        size: Shapes of the model.
        settings: The DeepSpeed JSON; its own batch sizes do not count.
        global_batch: Windows per update over all processes.
        budget_bytes: What one process may take on its device.
        known: Plans of these settings and this global batch that there are already.

    Returns:
        The plan of the largest micro-batch that fits; `None` if none does.

    Raises:
        ConfigError: The global batch is not a multiple of the processes.
    """
    sizes = divisors(global_batch, planner.world_size)
    plans = {plan.batch.micro_batch: plan for plan in known}
    if sizes[-1] not in plans:
        plans[sizes[-1]] = planner.predict(
            size, settings, batch_of(sizes[-1], global_batch, planner.world_size)
        )
    if plans[sizes[-1]].peak_bytes <= budget_bytes:
        return plans[sizes[-1]]
    while True:
        fitting = [count for count, plan in plans.items() if plan.peak_bytes <= budget_bytes]
        low = max(fitting, default=0)
        high = min(set(plans) - set(fitting))
        between = [count for count in sizes if low < count < high]
        if not between:
            return plans[low] if low else None
        count = _next_size(between, plans, budget_bytes)
        plans[count] = planner.predict(size, settings, batch_of(count, global_batch, planner.world_size))


def divisors(global_batch: int, world_size: int) -> list[int]:
    """Returns the micro-batches that make up a global batch, ascending.

    Raises:
        ConfigError: The global batch is not a multiple of the processes.
    """
    share, rest = divmod(global_batch, world_size)
    if rest or share < 1:
        raise ConfigError(
            f"train_batch_size: must be a multiple of {world_size} processes, got {global_batch}; "
            f"use {max(1, share) * world_size}"
        )
    return [count for count in range(1, share + 1) if share % count == 0]


def batch_of(micro_batch: int, global_batch: int, world_size: int) -> BatchSizes:
    """Returns the sizes with the accumulation that a micro-batch needs."""
    return BatchSizes(
        global_batch=global_batch,
        micro_batch=micro_batch,
        accumulation=global_batch // (micro_batch * world_size),
        world_size=world_size,
    )


def _next_size(between: Sequence[int], plans: Mapping[int, MemoryPlan], budget_bytes: int) -> int:
    """Chooses which size to look at: the smallest, then where a line meets the budget."""
    if len(plans) < 2:
        return between[0]
    below = max((count for count in plans if count < between[0]), default=min(plans))
    above = min(count for count in plans if count > between[-1])
    first, second = plans[below].peak_bytes, plans[above].peak_bytes
    if second <= first:
        return between[-1]
    meets = below + (budget_bytes - first) * (above - below) / (second - first)
    return max((count for count in between if count <= meets), default=between[0])
