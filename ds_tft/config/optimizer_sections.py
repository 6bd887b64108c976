"""Sections `optimizer` and `scheduler` of the DeepSpeed JSON."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ds_tft.config.run import Count, Section

Auto = Literal["auto"]
Rate = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class AdamParams(Section):
    """Parameters of Adam in both forms."""

    lr: Rate = 1e-3
    """Learning rate; with a scheduler, the highest one."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: Rate = 1e-8
    weight_decay: Rate = 0.0
    adam_w_mode: bool = True
    """Decoupled weight decay, as in AdamW."""
    torch_adam: bool = True
    """torch's optimizer. `false` takes DeepSpeed's, which is compiled at the first start."""
    fused: bool | None = None
    """torch's single-kernel update."""

    @model_validator(mode="after")
    def _check(self) -> AdamParams:
        if self.fused is not None and not self.torch_adam:
            raise ValueError("fused is torch's and needs torch_adam true; leave one of them out")
        return self


class AdamWParams(AdamParams):
    """Parameters of AdamW."""

    weight_decay: Rate = 1e-2

    @model_validator(mode="after")
    def _check_mode(self) -> AdamWParams:
        if not self.adam_w_mode:
            raise ValueError("adam_w_mode false has no effect on AdamW; use optimizer type Adam")
        return self


class SGDParams(Section):
    """Parameters of SGD."""

    lr: Rate = 1e-3
    """Learning rate; with a scheduler, the highest one."""
    momentum: Decay = 0.0
    dampening: Decay = 0.0
    weight_decay: Rate = 0.0
    nesterov: bool = False

    @model_validator(mode="after")
    def _check(self) -> SGDParams:
        if self.nesterov and (self.momentum == 0 or self.dampening > 0):
            raise ValueError("nesterov needs a momentum above 0 and no dampening; set momentum, such as 0.9")
        return self


class AdamW8bitParams(Section):
    """Parameters of AdamW with 8-bit states, in bitsandbytes."""

    lr: Rate = 1e-3
    """Learning rate; with a scheduler, the highest one."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: Rate = 1e-8
    weight_decay: Rate = 1e-2
    min_8bit_size: Count = 4096
    """Elements from which on a tensor has 8-bit states; smaller ones have fp32. With ZeRO all weights of a
    process are one tensor."""


class OptimizerAdamW(Section):
    """Adam with decoupled weight decay."""

    type: Literal["AdamW"] = "AdamW"
    params: AdamWParams = AdamWParams()


class OptimizerAdam(Section):
    """Adam. In DeepSpeed this means AdamW unless `adam_w_mode` is false."""

    type: Literal["Adam"] = "Adam"
    params: AdamParams = AdamParams()


class OptimizerSGD(Section):
    """Stochastic gradient descent."""

    type: Literal["SGD"] = "SGD"
    params: SGDParams = SGDParams()


class OptimizerAdamW8bit(Section):
    """AdamW whose states take 2 bytes per parameter instead of 8. Needs bitsandbytes."""

    type: Literal["AdamW8bit"] = "AdamW8bit"
    params: AdamW8bitParams = AdamW8bitParams()

    def check_zero(self, stage: int, offloads: bool, allows_untested: bool | None) -> None:
        """Refuses what this optimizer does not do with ZeRO.

        Args:
            stage: `zero_optimization.stage`.
            offloads: Whether the optimizer is to work on the CPU.
            allows_untested: `zero_allow_untested_optimizer`.

        Raises:
            ValueError: Names the setting and what to write.
        """
        if stage == 3:
            raise ValueError(
                "optimizer.type AdamW8bit works in zero_optimization.stage 0 to 2, got 3; use stage 2, or AdamW"
            )
        if offloads:
            raise ValueError(
                "optimizer.type AdamW8bit keeps its states on the device, got offload_optimizer.device 'cpu'; "
                "leave offload_optimizer out, or use AdamW"
            )
        if stage and allows_untested is False:
            raise ValueError(
                f"zero_allow_untested_optimizer is false, and AdamW8bit in stage {stage} needs it; leave it out"
            )


Optimizer = Annotated[
    OptimizerAdamW | OptimizerAdam | OptimizerSGD | OptimizerAdamW8bit, Field(discriminator="type")
]


class WarmupParams(Section):
    """Rise from `warmup_min_lr` to the optimizer's `lr`."""

    warmup_min_lr: Rate = 0.0
    warmup_max_lr: Rate | Auto = "auto"
    """The optimizer's `lr`; another number is refused."""
    warmup_num_steps: Count | Auto = "auto"
    """Updates until the highest rate; `auto` is 5 % of the run."""
    warmup_type: Literal["log", "linear"] = "log"


class WarmupDecayParams(WarmupParams):
    """The same, then a straight line to 0."""

    total_num_steps: Count | Auto = "auto"
    """Updates until the end of the schedule; `auto` is the run's own number."""


class WarmupCosineParams(Section):
    """Rise from a share of `lr` to `lr`, then half a cosine down to a share of it."""

    warmup_min_ratio: Share = 0.0
    warmup_num_steps: Count | Auto = "auto"
    warmup_type: Literal["log", "linear"] = "log"
    cos_min_ratio: Share = 1e-4
    total_num_steps: Count | Auto = "auto"


class SchedulerWarmup(Section):
    """Warm-up, then constant."""

    type: Literal["WarmupLR"] = "WarmupLR"
    params: WarmupParams = WarmupParams()


class SchedulerWarmupDecay(Section):
    """Warm-up, then linear decay."""

    type: Literal["WarmupDecayLR"] = "WarmupDecayLR"
    params: WarmupDecayParams = WarmupDecayParams()


class SchedulerWarmupCosine(Section):
    """Warm-up, then cosine decay."""

    type: Literal["WarmupCosineLR"] = "WarmupCosineLR"
    params: WarmupCosineParams = WarmupCosineParams()


Scheduler = Annotated[
    SchedulerWarmup | SchedulerWarmupDecay | SchedulerWarmupCosine, Field(discriminator="type")
]
