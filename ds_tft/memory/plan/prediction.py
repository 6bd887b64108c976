"""How much memory training takes, and how large a micro-batch fits: without training."""

from __future__ import annotations

import torch

from ds_tft.config.batch import BatchSizes
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.memory.plan.fit import search_micro_batch
from ds_tft.memory.plan.memory_plan import MemoryPlan
from ds_tft.memory.plan.processes import Planner
from ds_tft.model.inputs import ModelSize


def predict_memory(
    size: ModelSize, settings: DeepSpeedSettings, batch: BatchSizes, device: torch.device | str
) -> MemoryPlan:
    """Predicts the memory of one training process, in seconds and in a process of its own.

    On a CPU it is exact but for what math libraries take for themselves; on CUDA, the larger part of it is,
    and the rest is estimated and said to be. Histories are taken to be full.

    Args:
        size: Shapes of the model.
        settings: The DeepSpeed JSON.
        batch: Sizes of an update.
        device: Where training runs; a `cuda` device need not exist.

    Returns:
        The plan, in bytes.

    Raises:
        ConfigError: The settings cannot be carried out.
    """
    with _planner(device, batch.world_size) as planner:
        return planner.predict(size, settings, batch)


def largest_micro_batch(
    size: ModelSize,
    settings: DeepSpeedSettings,
    *,
    global_batch: int,
    world_size: int,
    device: torch.device | str,
    budget_bytes: int,
) -> int | None:
    """Finds the largest micro-batch whose predicted peak is within a budget.

    Args:
        size: Shapes of the model.
        settings: The DeepSpeed JSON; its own batch sizes do not count.
        global_batch: Windows per update over all processes, which stays: accumulation makes up for the rest.
        world_size: Processes of the run.
        device: Where training runs; a `cuda` device need not exist.
        budget_bytes: What one process may take on its device.

    Returns:
        Windows per forward and backward; `None` if not even the smallest that divides fits.

    Raises:
        ConfigError: The global batch is not a multiple of the processes, or the settings cannot be carried
            out.
    """
    with _planner(device, world_size) as planner:
        found = search_micro_batch(planner, size, settings, global_batch, budget_bytes)
    return None if found is None else found.batch.micro_batch


def _planner(device: torch.device | str, world_size: int) -> Planner:
    """A planner for processes like this one."""
    return Planner(torch.device(device).type, world_size, torch.get_num_threads())
