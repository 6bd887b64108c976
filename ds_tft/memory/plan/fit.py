"""The largest micro-batch that fits: a search among the divisors of a process's share of an update."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ds_tft.config.batch import BatchSizes
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.errors import ConfigError
from ds_tft.memory.out_of_memory import is_out_of_memory
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
    where between two known sizes to look next. A size too large to plan does not fit.

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
    plans: dict[int, MemoryPlan | None] = {plan.batch.micro_batch: plan for plan in known}
    count = sizes[-1]
    while True:
        if count not in plans:
            batch = batch_of(count, global_batch, planner.world_size)
            plans[count] = predict_if_possible(planner, size, settings, batch)
        peaks = {tried: math.inf if plan is None else plan.peak_bytes for tried, plan in plans.items()}
        fitting = [tried for tried, peak in peaks.items() if peak <= budget_bytes]
        if sizes[-1] in fitting:
            return plans[sizes[-1]]
        low, high = max(fitting, default=0), min(set(peaks) - set(fitting))
        between = [each for each in sizes if low < each < high]
        if not between:
            return plans.get(low)
        count = _next_size(between, peaks, budget_bytes)


def predict_if_possible(
    planner: Planner, size: ModelSize, settings: DeepSpeedSettings, batch: BatchSizes
) -> MemoryPlan | None:
    """Predicts; `None` for what is too large to be planned on this machine.

    Args:
        planner: Predicts.
        size: Shapes of the model.
        settings: The DeepSpeed JSON.
        batch: Sizes of an update.
    """
    try:
        return planner.predict(size, settings, batch)
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return None


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
    lower = [count for count in range(1, math.isqrt(share) + 1) if share % count == 0]
    return sorted({*lower, *(share // count for count in lower)})


def batch_of(micro_batch: int, global_batch: int, world_size: int) -> BatchSizes:
    """Returns the sizes with the accumulation that a micro-batch needs."""
    return BatchSizes(
        global_batch=global_batch,
        micro_batch=micro_batch,
        accumulation=global_batch // (micro_batch * world_size),
        world_size=world_size,
    )


def _next_size(between: Sequence[int], peaks: Mapping[int, float], budget_bytes: int) -> int:
    """Chooses which size to look at: the smallest, then where a line meets the budget."""
    below = max((count for count in peaks if count < between[0]), default=0)
    if not below:
        return between[0]
    above = min(count for count in peaks if count > between[-1])
    first, second = peaks[below], peaks[above]
    if second <= first:
        return between[-1]
    if math.isinf(second):
        meets = below * budget_bytes / first  # within the budget whatever part of it grows with the windows
    else:
        meets = below + (budget_bytes - first) * (above - below) / (second - first)
    return max((count for count in between if count <= meets), default=between[0])
