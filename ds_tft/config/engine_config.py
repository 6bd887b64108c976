"""The settings as the dict that `deepspeed.initialize` takes: no `auto` left, every default written out."""

from __future__ import annotations

from typing import Any

from ds_tft.config.batch import BatchSizes
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.optimizer_sections import OptimizerAdamW8bit, OptimizerSGD
from ds_tft.errors import ConfigError

# 20 MB of fp32, near the 25 MiB at which torch's own data parallelism reduces. DeepSpeed's default of 5e8
# elements allocates 2 GB for a model of any size.
LARGEST_AUTO_BUCKET = 5_000_000
WARMUP_SHARE = 0.05
SHORTEST_WARMUP = 2  # DeepSpeed's own lower limit
NEVER = 2**31 - 1


def engine_config(
    settings: DeepSpeedSettings, batch: BatchSizes, total_steps: int, num_parameters: int
) -> dict[str, Any]:
    """Builds DeepSpeed's configuration.

    Args:
        settings: The DeepSpeed JSON.
        batch: The resolved batch sizes.
        total_steps: Optimizer updates in the run.
        num_parameters: Parameters of the model.

    Returns:
        A complete configuration; sections that this package carries out itself are left out. An optimizer that
        DeepSpeed does not have is named in it all the same: `build_engine` makes it.

    Raises:
        ConfigError: The optimizer does not work with these settings of ZeRO.
    """
    _check_optimizer(settings)
    config: dict[str, Any] = {
        "train_batch_size": batch.global_batch,
        "train_micro_batch_size_per_gpu": batch.micro_batch,
        "gradient_accumulation_steps": batch.accumulation,
        "gradient_clipping": settings.gradient_clipping,
        "steps_per_print": settings.steps_per_print or NEVER,
        "wall_clock_breakdown": settings.wall_clock_breakdown,
        "optimizer": settings.optimizer.model_dump(mode="json", exclude_none=True),
        "zero_optimization": _zero(settings, num_parameters),
        "activation_checkpointing": settings.activation_checkpointing.model_dump(),
    }
    if settings.fp16.enabled:
        config["fp16"] = settings.fp16.model_dump()
    if settings.bf16.enabled:
        config["bf16"] = settings.bf16.model_dump()
    if settings.scheduler is not None:
        config["scheduler"] = _scheduler(settings, total_steps)
    untested = isinstance(settings.optimizer, OptimizerSGD | OptimizerAdamW8bit)
    if untested or settings.zero_allow_untested_optimizer:
        config["zero_allow_untested_optimizer"] = True
    level = log_level(settings)
    if level is not None:
        config["log_level"] = level
    return config


def log_level(settings: DeepSpeedSettings) -> str | None:
    """DeepSpeed's log level: that of the JSON, or `info` where something was asked for that needs it."""
    asked = settings.wall_clock_breakdown or settings.steps_per_print is not None
    return settings.log_level or ("info" if asked else None)


def warmup_steps(settings: DeepSpeedSettings, total_steps: int) -> int:
    """Updates of the warm-up; 0 without a scheduler."""
    if settings.scheduler is None:
        return 0
    steps = settings.scheduler.params.warmup_num_steps
    return steps if isinstance(steps, int) else max(SHORTEST_WARMUP, round(WARMUP_SHARE * total_steps))


def schedule_steps(total_steps: int) -> int:
    """Length of the schedule that fits a run.

    DeepSpeed's linear decay is 0 at the end of its schedule, where an update would change nothing.
    """
    return total_steps + 1


def auto_bucket(num_parameters: int) -> int:
    """Elements of a bucket that holds the model, or a part of it where the model is large.

    DeepSpeed wants an even number; a gradient larger than the bucket is reduced in its own place.
    """
    return max(2, min(LARGEST_AUTO_BUCKET, num_parameters // 2 * 2))


def _check_optimizer(settings: DeepSpeedSettings) -> None:
    """Refuses 8-bit Adam where ZeRO would not carry it out."""
    if not isinstance(settings.optimizer, OptimizerAdamW8bit):
        return
    zero = settings.zero_optimization
    try:
        settings.optimizer.check_zero(zero.stage, zero.offloads, settings.zero_allow_untested_optimizer)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _zero(settings: DeepSpeedSettings, num_parameters: int) -> dict[str, Any]:
    """Section `zero_optimization`, buckets sized."""
    zero = settings.zero_optimization.model_dump(exclude_none=True)
    for name in ("reduce_bucket_size", "allgather_bucket_size"):
        if zero[name] == "auto":
            zero[name] = auto_bucket(num_parameters)
    if not settings.zero_optimization.offloads:
        zero.pop("offload_optimizer", None)
    return zero


def _scheduler(settings: DeepSpeedSettings, total_steps: int) -> dict[str, Any]:
    """Section `scheduler`, steps and rates filled in."""
    assert settings.scheduler is not None
    section: dict[str, Any] = settings.scheduler.model_dump()
    params = section["params"]
    params["warmup_num_steps"] = warmup_steps(settings, total_steps)
    if params.get("total_num_steps") == "auto":
        params["total_num_steps"] = schedule_steps(total_steps)
    if params.get("warmup_max_lr") == "auto":
        params["warmup_max_lr"] = settings.optimizer.params.lr
    return section
