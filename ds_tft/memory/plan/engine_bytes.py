"""Bytes of parts of training that are known by their place: buckets, offloaded state, streaming's buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.memory.meter import optimizer_tensors
from ds_tft.memory.streaming import StreamingReport


def bucket_bytes(engine: Any, settings: DeepSpeedSettings) -> int:
    """Returns the bytes of the buffers in which ZeRO reduces gradients.

    Args:
        engine: The DeepSpeed engine.
        settings: What it was built from.
    """
    zero = settings.zero_optimization
    if not zero.stage or not zero.contiguous_gradients:
        return 0
    # In stage 1, gradients in half precision are summed and reduced in fp32.
    width = 4 if zero.stage == 1 or settings.precision == "fp32" else 2
    return int(engine.optimizer.reduce_bucket_size) * width * (2 if zero.overlap_comm else 1)


def offloaded_tensors(optimizer: Any) -> Iterator[Tensor]:
    """Yields what DeepSpeed's optimizer keeps on the host with `offload_optimizer`.

    Args:
        optimizer: That of the engine, of stage 1, 2 or 3.
    """
    yield from optimizer_tensors(optimizer.optimizer)
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):  # stage 3
        yield from optimizer.fp32_partitioned_groups_flat
        yield optimizer.grad_partitions_flat_buffer
        return
    for master in optimizer.single_partition_of_fp32_groups:
        yield master
        if master.grad is not None:
            yield master.grad
    yield from optimizer.param_buffer_of_bit16_for_cpu_offload_groups
    yield optimizer.temp_grad_buffer_for_cpu_offload
    yield from optimizer.accumulated_grads_in_cpu.values()


def workspace_bytes(streaming: StreamingReport | None, rows: int) -> int:
    """Returns the bytes of the buffers of the selection that takes most.

    Args:
        streaming: What streams; `None` if nothing does.
        rows: Windows times steps.
    """
    selections = () if streaming is None else streaming.selections
    return max((each.workspace_bytes(rows) for each in selections), default=0)
