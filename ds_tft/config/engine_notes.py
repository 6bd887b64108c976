"""Settings that are carried out and probably not meant: one line each, for the log of the run."""

from __future__ import annotations

from collections.abc import Iterator

from ds_tft.config.batch import BatchSizes
from ds_tft.config.deepspeed_sections import DeepSpeedSettings, ZeroOptimization
from ds_tft.config.engine_config import schedule_steps, warmup_steps
from ds_tft.config.optimizer_sections import OptimizerAdam

ELEMENT_BYTES = 4
HALF_BYTES = 2


def engine_notes(
    settings: DeepSpeedSettings, batch: BatchSizes, total_steps: int, num_parameters: int, has_cuda: bool
) -> list[str]:
    """Says what in the settings costs memory for nothing, or has no effect.

    Args:
        settings: The DeepSpeed JSON.
        batch: The resolved batch sizes.
        total_steps: Optimizer updates in the run.
        num_parameters: Parameters of the model.
        has_cuda: Whether the run is on a GPU.

    Returns:
        Lines for the log; empty for most settings.
    """
    return [
        *_bucket(settings, num_parameters),
        *_partition(settings.zero_optimization, batch.world_size, has_cuda),
        *_optimizer(settings),
        *_schedule(settings, total_steps),
    ]


def reduce_buffer_bytes(settings: DeepSpeedSettings, elements: int) -> int:
    """Bytes that DeepSpeed allocates for a reduce bucket of so many elements."""
    zero = settings.zero_optimization
    # In stage 1, gradients in half precision are summed and reduced in fp32.
    size = ELEMENT_BYTES if settings.precision == "fp32" or zero.stage == 1 else HALF_BYTES
    buffers = 2 if zero.overlap_comm and zero.stage < 3 else 1
    return elements * size * buffers


def _bucket(settings: DeepSpeedSettings, num_parameters: int) -> Iterator[str]:
    zero = settings.zero_optimization
    elements = zero.reduce_bucket_size
    if zero.stage and zero.contiguous_gradients and isinstance(elements, int) and elements > num_parameters:
        gib = reduce_buffer_bytes(settings, elements) / 2**30
        yield (
            f"zero_optimization.reduce_bucket_size: {elements} elements allocate {gib:.2f} GiB, and the "
            f'model has {num_parameters} parameters; write "auto"'
        )


def _partition(zero: ZeroOptimization, world_size: int, has_cuda: bool) -> Iterator[str]:
    if zero.stage and world_size == 1 and not zero.offloads:
        yield f"zero_optimization.stage: {zero.stage} partitions nothing on one process and saves no memory"
    if zero.offloads and not has_cuda:
        yield "zero_optimization.offload_optimizer: everything is on the CPU already; it saves nothing here"
    unset = ZeroOptimization()
    unused = [name for name in ZeroOptimization.model_fields if getattr(zero, name) != getattr(unset, name)]
    if unused and not zero.stage:
        yield f"zero_optimization.stage: 0, so that these have no effect: {', '.join(unused)}"


def _optimizer(settings: DeepSpeedSettings) -> Iterator[str]:
    optimizer = settings.optimizer
    if (
        isinstance(optimizer, OptimizerAdam)
        and optimizer.params.weight_decay
        and optimizer.params.adam_w_mode
    ):
        yield (
            "optimizer.type: Adam decays weights as AdamW does, as in DeepSpeed; "
            "write adam_w_mode false for decay through the gradient"
        )


def _schedule(settings: DeepSpeedSettings, total_steps: int) -> Iterator[str]:
    if settings.scheduler is None:
        return
    total = getattr(settings.scheduler.params, "total_num_steps", "auto")
    if isinstance(total, int) and total not in (total_steps, schedule_steps(total_steps)):
        yield f'scheduler.params.total_num_steps: {total}, the run has {total_steps} updates; write "auto"'
    warmup = warmup_steps(settings, total_steps)
    if warmup > total_steps:
        is_auto = settings.scheduler.params.warmup_num_steps == "auto"
        advice = "train for more updates" if is_auto else 'write "auto"'
        yield (
            f"scheduler.params.warmup_num_steps: {warmup}, the run has {total_steps} updates and never "
            f"reaches the rate {settings.optimizer.params.lr}; {advice}"
        )
