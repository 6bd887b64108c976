"""The DeepSpeed JSON with one thing changed."""

from __future__ import annotations

from ds_tft.config.deepspeed_sections import (
    ActivationCheckpointing,
    Bf16,
    DeepSpeedSettings,
    OffloadOptimizer,
    ZeroOptimization,
)


def with_streaming(settings: DeepSpeedSettings) -> DeepSpeedSettings:
    """Returns the settings with streaming variable selection."""
    return _with_product(settings, streaming=True)


def with_recompute(settings: DeepSpeedSettings) -> DeepSpeedSettings:
    """Returns the settings with the default blocks recomputed, or those that are named already."""
    return _with_product(settings, recompute=settings.ds_tft.recompute or "default")


def with_offloaded_inputs(settings: DeepSpeedSettings) -> DeepSpeedSettings:
    """Returns the settings with blocks recomputed whose inputs are kept in host memory."""
    section = settings.activation_checkpointing.model_copy(update={"cpu_checkpointing": True})
    moved = settings.model_copy(update={"activation_checkpointing": section})
    return with_recompute(_with_product(moved, compress_kept=None))


def with_compressed_inputs(settings: DeepSpeedSettings) -> DeepSpeedSettings:
    """Returns the settings with blocks recomputed whose inputs are kept as INT8."""
    return with_recompute(_with_product(settings, compress_kept="int8"))


def without_recompute(settings: DeepSpeedSettings) -> DeepSpeedSettings:
    """Returns the settings with nothing recomputed."""
    kept = settings.model_copy(update={"activation_checkpointing": ActivationCheckpointing()})
    return _with_product(kept, recompute=None, compress_kept=None)


def with_stage_0(settings: DeepSpeedSettings) -> DeepSpeedSettings:
    """Returns the settings without ZeRO, whose stages keep copies of weights and gradients of their own."""
    return settings.model_copy(update={"zero_optimization": ZeroOptimization()})


def with_stage_1(settings: DeepSpeedSettings) -> DeepSpeedSettings:
    """Returns the settings with ZeRO stage 1 in place of 0."""
    zero = settings.zero_optimization
    stage = zero.model_copy(update={"stage": max(1, zero.stage)})
    return settings.model_copy(update={"zero_optimization": stage})


def with_bf16(settings: DeepSpeedSettings) -> DeepSpeedSettings:
    """Returns the settings in bfloat16."""
    return settings.model_copy(update={"bf16": Bf16(enabled=True)})


def with_offloaded_optimizer(settings: DeepSpeedSettings) -> DeepSpeedSettings:
    """Returns the settings with the optimizer's state and update on the host."""
    zero = settings.zero_optimization.model_copy(update={"offload_optimizer": OffloadOptimizer(device="cpu")})
    return settings.model_copy(update={"zero_optimization": zero})


def _with_product(settings: DeepSpeedSettings, **changes: object) -> DeepSpeedSettings:
    """Returns the settings with another section `ds_tft`."""
    return settings.model_copy(update={"ds_tft": settings.ds_tft.model_copy(update=changes)})
