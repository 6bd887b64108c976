"""Runs dry runs in a process of their own, so that they leave no trace in this one.

A dry run needs DeepSpeed with the CPU as its device and a process group of any size; a process that trains
has its own of both.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from types import TracebackType
from typing import TYPE_CHECKING

from ds_tft.training.environment import prepare_environment

if TYPE_CHECKING:
    from ds_tft.config.batch import BatchSizes
    from ds_tft.config.deepspeed_sections import DeepSpeedSettings
    from ds_tft.memory.plan.memory_plan import MemoryPlan
    from ds_tft.model.inputs import ModelSize


OVERFLOWS = ("Storage size calculation overflowed", "Overflow when unpacking")
"""What torch says about sizes that no machine has memory for."""


class Planner:
    """A process that predicts memory; it starts with the first question and ends with the context.

    Args:
        device: `cpu` or `cuda`, of the training process asked about.
        world_size: Processes of the training run.
        threads: torch's threads in a training process on a CPU.
    """

    def __init__(self, device: str, world_size: int, threads: int) -> None:
        self.device, self.world_size, self.threads = device, world_size, threads
        self._pool = self._start()

    def __enter__(self) -> Planner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def predict(self, size: ModelSize, settings: DeepSpeedSettings, batch: BatchSizes) -> MemoryPlan:
        """Predicts the memory of one training process.

        Args:
            size: Shapes of the model.
            settings: The DeepSpeed JSON.
            batch: Sizes of an update, over `world_size` processes.

        Raises:
            ConfigError: The settings cannot be carried out.
            MemoryError: No machine could plan this, or the process was ended from outside, as a system does
                that runs out of memory.
            RuntimeError: There is not enough memory to plan this (`is_out_of_memory`).
        """
        assert batch.world_size == self.world_size, "a planner is for one number of processes"
        try:
            return self._pool.submit(_predict, size, settings, batch, self.device, self.threads).result()
        except BrokenProcessPool as error:
            self._pool.shutdown()
            self._pool = self._start()
            raise MemoryError("the process that plans was ended") from error

    def _start(self) -> ProcessPoolExecutor:
        """A pool of one process."""
        context = get_context("spawn")
        return ProcessPoolExecutor(
            1, mp_context=context, initializer=prepare_process, initargs=(self.world_size,)
        )


def prepare_process(world_size: int) -> None:
    """Sets what must be set before torch is imported, for the first process of a pretended group.

    Args:
        world_size: Processes of the group.
    """
    os.environ.update(
        CUDA_VISIBLE_DEVICES="", DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
        WORLD_SIZE=str(world_size),
    )  # fmt: skip
    prepare_environment()


def _predict(
    size: ModelSize, settings: DeepSpeedSettings, batch: BatchSizes, device: str, threads: int
) -> MemoryPlan:
    """Answers one question in the planner's process."""
    import torch.distributed

    from ds_tft.memory.plan.engine_run import join_pretended_group, plan_by_dry_run

    if not torch.distributed.is_initialized():
        join_pretended_group(batch.world_size)
    try:
        return plan_by_dry_run(size, settings, batch, device, threads)
    except (RuntimeError, TypeError) as error:
        if any(message in str(error) for message in OVERFLOWS):
            raise MemoryError(str(error)) from error
        raise
