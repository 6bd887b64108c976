"""Before training: the memory budget is set, and the micro-batch chosen for it or checked against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.distributed

from ds_tft.config.batch import BatchSizes
from ds_tft.errors import ConfigError
from ds_tft.formatting import format_bytes
from ds_tft.memory.plan.as_on_cuda import CONTEXT_BYTES
from ds_tft.memory.plan.fit import search_micro_batch
from ds_tft.memory.plan.memory_plan import MemoryPlan
from ds_tft.memory.plan.processes import Planner
from ds_tft.memory.plan.remedies import find_remedies, remedies_text
from ds_tft.training.setup import RunSetup

GIB = 2**30
FREE_SHARE = 0.9  # of what is free on a GPU: the plan's part beside tensors is an estimate
BUDGET_KEY = "ds_tft.memory_budget_gib"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """What was settled about memory."""

    batch: BatchSizes
    plan: MemoryPlan | None = None
    """`None` where nothing limits memory, so that nothing was planned."""
    lines: tuple[str, ...] = ()


def fit_memory(setup: RunSetup, say: Callable[[str], None]) -> RunSetup:
    """Holds a GPU to the budget, and chooses or checks the micro-batch. Every process must call this.

    Args:
        setup: The run.
        say: Writes a line to the log.

    Returns:
        The run with the batch sizes to train with.

    Raises:
        ConfigError: What is asked for does not fit the budget; names settings to change.
    """
    budget = _budget_bytes(setup)
    if budget is None:
        return setup
    if setup.engine_settings.ds_tft.memory_budget_gib is not None and setup.device.type == "cuda":
        _hold_to(budget, setup.device)
    fit = _agreed(setup, budget)
    for line in fit.lines:
        say(line)
    return replace(setup, batch=fit.batch)


def plan_fit(setup: RunSetup, budget: int) -> Fit:
    """Chooses the micro-batch where it is left open, and otherwise checks the one that is given.

    Args:
        setup: The run.
        budget: Bytes that a process may take on its device.

    Raises:
        ConfigError: It does not fit.
    """
    with Planner(setup.device.type, setup.place.world_size, torch.get_num_threads()) as planner:
        if setup.engine_settings.leaves_micro_batch_open:
            plan = search_micro_batch(
                planner, setup.size, setup.engine_settings, setup.batch.global_batch, budget
            )
            if plan is None:
                smallest = _smallest(setup.batch)
                raise _does_not_fit(setup, planner, smallest, budget)
            chosen = f"micro-batch: auto -> {plan.batch.micro_batch}, accumulation {plan.batch.accumulation}"
            words = (
                f"{chosen}: the largest planned to fit {format_bytes(budget)}",
                *_words(setup, plan, budget),
            )
            return Fit(
                batch=replace(plan.batch, notes=setup.batch.notes, chosen=True), plan=plan, lines=words
            )
        plan = planner.predict(setup.size, setup.engine_settings, setup.batch)
        if plan.peak_bytes > budget:
            raise _does_not_fit(setup, planner, setup.batch, budget)
    return Fit(batch=setup.batch, plan=plan, lines=_words(setup, plan, budget))


def _agreed(setup: RunSetup, budget: int) -> Fit:
    """Lets the first process plan, and gives its answer, or its error, to all."""
    answer: list[Fit | ConfigError | None] = [None]
    if setup.place.is_first:
        try:
            answer[0] = plan_fit(setup, budget)
        except ConfigError as error:
            answer[0] = error
    if setup.place.world_size > 1:
        torch.distributed.broadcast_object_list(answer)
    found = answer[0]
    assert found is not None
    if isinstance(found, ConfigError):
        raise found
    return found


def _budget_bytes(setup: RunSetup) -> int | None:
    """What a process may take; `None` where nothing has to be planned."""
    given = setup.engine_settings.ds_tft.memory_budget_gib
    if setup.device.type != "cuda":
        return None if given is None else int(given * GIB)
    free, total = torch.cuda.mem_get_info(setup.device)
    if given is not None:
        return min(int(given * GIB), total)
    return int(FREE_SHARE * free) if setup.engine_settings.leaves_micro_batch_open else None


def _hold_to(budget: int, device: torch.device) -> None:
    """Lets torch's allocator have no more than the budget, less what CUDA takes beside it."""
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(max(0.0, (budget - CONTEXT_BYTES) / total), device)


def _words(setup: RunSetup, plan: MemoryPlan, budget: int) -> tuple[str, ...]:
    """The plan beside the budget, for the log."""
    held = (
        "the GPU is held to it" if setup.device.type == "cuda" else "a CPU is planned with it, not held to it"
    )
    if setup.engine_settings.ds_tft.memory_budget_gib is None:
        held = f"{FREE_SHARE:.0%} of what is free"
    return (*plan.lines(), f"memory budget: {format_bytes(budget)}; {held}")


def _does_not_fit(setup: RunSetup, planner: Planner, batch: BatchSizes, budget: int) -> ConfigError:
    """Says what it would take, and what to change."""
    now = planner.predict(setup.size, setup.engine_settings, batch)
    remedies = find_remedies(planner, setup.size, setup.engine_settings, batch, now, budget)
    return ConfigError(
        f"{BUDGET_KEY}: {format_bytes(budget)} is not enough, got {format_bytes(now.peak_bytes)} planned at "
        f"micro-batch {batch.micro_batch}; {remedies_text(remedies, budget)}"
    )


def _smallest(batch: BatchSizes) -> BatchSizes:
    """One window at a time."""
    return replace(batch, micro_batch=1, accumulation=batch.global_batch // batch.world_size)
