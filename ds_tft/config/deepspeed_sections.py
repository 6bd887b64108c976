"""The DeepSpeed JSON (`--deepspeed_config`): the keys that are supported, with DeepSpeed's own names.

What DeepSpeed accepts and this package does not is in `deepspeed_refused.py`, each with its reason.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from ds_tft.config.compression import CompressionTraining
from ds_tft.config.int8 import Int8Settings
from ds_tft.config.optimizer_sections import (
    Optimizer,
    OptimizerAdamW,
    OptimizerAdamW8bit,
    OptimizerSGD,
    Scheduler,
)
from ds_tft.config.run import Count, Section

Auto = Literal["auto"]


def _whole(value: object) -> object:
    """Lets a JSON say 5e8, as DeepSpeed's own examples do."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Elements = Annotated[Count, BeforeValidator(_whole)]


class Fp16(Section):
    """Half precision with loss scaling. Needs a GPU."""

    enabled: bool = False
    loss_scale: Annotated[float, Field(ge=0)] = 0.0
    """A fixed loss scale; 0 adapts it."""
    initial_scale_power: Annotated[int, Field(ge=0, le=64)] = 16
    loss_scale_window: Count = 1000
    hysteresis: Count = 2
    consecutive_hysteresis: bool = False
    min_loss_scale: Count = 1


class Bf16(Section):
    """bfloat16 weights and activations; the optimizer keeps fp32 copies."""

    enabled: bool = False


class OffloadOptimizer(Section):
    """Where the optimizer's state lives and its update runs."""

    device: Literal["cpu", "none"] = "none"
    pin_memory: bool = True
    """Page-locked host memory, which copies faster."""


class ZeroOptimization(Section):
    """What is partitioned over processes, and the buffers used for it."""

    stage: Annotated[int, Field(ge=0, le=3)] = 0
    """0 nothing, 1 optimizer state, 2 gradients too, 3 weights too."""
    reduce_bucket_size: Elements | Auto = "auto"
    """Elements of the buffer in which gradients are reduced; `auto` suits the model."""
    allgather_bucket_size: Elements | Auto = "auto"
    """Elements gathered at a time after an update; `auto` suits the model."""
    overlap_comm: bool | None = None
    """Reduce during backward, with a second buffer. `null` does so in stage 3 only."""
    contiguous_gradients: bool = True
    """Copy gradients into the buffer as they appear."""
    reduce_scatter: bool = True
    allgather_partitions: bool = True
    offload_optimizer: OffloadOptimizer | None = None

    @property
    def offloads(self) -> bool:
        """True if the optimizer works on the CPU."""
        return self.offload_optimizer is not None and self.offload_optimizer.device == "cpu"

    @model_validator(mode="after")
    def _check(self) -> ZeroOptimization:
        if self.offloads and self.stage == 0:
            raise ValueError("offload_optimizer has no effect with stage 0; use stage 1")
        gathered = self.allgather_bucket_size
        if isinstance(gathered, int) and gathered % 2:
            raise ValueError(f"allgather_bucket_size must be even, got {gathered}; write {gathered + 1}")
        return self


class ActivationCheckpointing(Section):
    """How blocks that are recomputed in backward keep their inputs."""

    partition_activations: bool = False
    cpu_checkpointing: bool = False
    contiguous_memory_optimization: bool = False
    number_checkpoints: Count | None = None
    synchronize_checkpoint_boundary: bool = False
    profile: bool = False


class TensorBoard(Section):
    """Where TensorBoard events go. They are written by this package, not by DeepSpeed's monitor."""

    enabled: bool = True
    output_path: str | None = None
    """Directory of the events; `null` is the run folder."""
    job_name: str | None = None
    """Name of a directory in `output_path`."""


class ProductSettings(Section):
    """The section `ds_tft`: what DeepSpeed has no key for."""

    streaming: bool = True
    """Variable selection in chunks of variables, which are recomputed in backward. The result is the same;
    `false` computes all variables at once and keeps them."""
    variables_per_chunk: Count | Auto = "auto"
    """Variables of a chunk; `auto` suits the device."""
    recompute: tuple[str, ...] | Literal["default"] | None = None
    """Blocks of the model whose activations are recomputed in backward; `default` takes those that pay.
    `null` recomputes nothing unless `--use-gradient-checkpointing` or `activation_checkpointing` asks for it."""
    compress_kept: Literal["int8"] | None = None
    """Keep the inputs of recomputed blocks as INT8. Lossy: gradients change slightly."""
    memory_budget_gib: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Memory that training may take on its device, in GiB. A GPU is held to it, a CPU is planned with it."""
    on_out_of_memory: Literal["stop", "halve"] = "stop"
    """`halve` goes on with half the micro-batch and twice the accumulation; `stop` says what to change."""
    trace_every_steps: Count | None = None
    """Updates between two that are traced, with memory by phase and block; `null` traces the first ones only."""
    trace_snapshot: bool = False
    """Write the CUDA allocator's history of a traced update to the run folder."""
    int8: Int8Settings = Int8Settings()

    @model_validator(mode="after")
    def _check(self) -> ProductSettings:
        if not self.streaming and self.variables_per_chunk != "auto":
            raise ValueError(
                f"variables_per_chunk has no effect without streaming, got {self.variables_per_chunk}; "
                "leave it out"
            )
        return self


class DeepSpeedSettings(Section):
    """The whole DeepSpeed JSON. A key left out means what it means to DeepSpeed, unless said otherwise."""

    train_batch_size: Count | Auto = "auto"
    """Windows per optimizer update, over all processes."""
    train_micro_batch_size_per_gpu: Count | Auto = "auto"
    """Windows per forward and backward in one process."""
    gradient_accumulation_steps: Count | Auto = "auto"
    """Forwards and backwards per update."""
    gradient_clipping: Annotated[float, Field(ge=0)] = 1.0
    """Largest norm of the gradient; 0 does not clip."""
    optimizer: Optimizer = OptimizerAdamW()
    scheduler: Scheduler | None = None
    fp16: Fp16 = Fp16()
    bf16: Bf16 = Bf16()
    zero_optimization: ZeroOptimization = ZeroOptimization()
    zero_allow_untested_optimizer: bool | None = None
    """Lets ZeRO work with SGD or AdamW8bit; `null` allows it where it is needed."""
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing()
    compression_training: CompressionTraining | None = None
    """INT8 training, with the keys that DeepSpeed had up to 0.19.6; carried out by this package. `null` does none
    unless `--use-int8` asks for it."""
    tensorboard: TensorBoard = TensorBoard()
    steps_per_print: Count | None = None
    """Updates between DeepSpeed's own log lines, which also need `log_level` `info`; `null` prints none."""
    wall_clock_breakdown: bool = False
    log_level: Literal["debug", "info", "warning", "error", "critical"] | None = None
    ds_tft: ProductSettings = ProductSettings()

    @property
    def precision(self) -> Literal["fp32", "fp16", "bf16"]:
        """Type of weights, activations and gradients."""
        if self.fp16.enabled:
            return "fp16"
        return "bf16" if self.bf16.enabled else "fp32"

    @property
    def leaves_micro_batch_open(self) -> bool:
        """Whether the micro-batch is to be chosen: neither it nor the accumulation is given."""
        return self.train_micro_batch_size_per_gpu == self.gradient_accumulation_steps == "auto"

    @property
    def recomputes(self) -> bool:
        """Whether blocks are recomputed: asked for by name, or by what `activation_checkpointing` says."""
        section = self.activation_checkpointing
        asked = section.cpu_checkpointing or section.synchronize_checkpoint_boundary or section.profile
        return asked or self.ds_tft.recompute is not None

    @property
    def quantises(self) -> bool:
        """Whether training goes on to an INT8 model."""
        return self.compression_training is not None

    @model_serializer(mode="wrap")
    def _dump(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out settings of INT8 that have no effect: read again, they would be refused."""
        values: dict[str, Any] = handler(self)
        if not self.quantises:
            values.get("ds_tft", {}).pop("int8", None)
        return values

    @model_validator(mode="after")
    def _check(self) -> DeepSpeedSettings:
        self._check_precision()
        self._check_rates()
        self._check_int8()
        if self.zero_optimization.stage == 3 and self.ds_tft.streaming:
            raise ValueError(
                "zero_optimization.stage 3 gathers weights for plain modules only; "
                "use stage 2, or set ds_tft.streaming to false"
            )
        if self.zero_optimization.stage == 3 and self.recomputes:
            raise ValueError(
                "zero_optimization.stage 3 does not gather weights again where a block is recomputed; "
                "use stage 2, or leave ds_tft.recompute and activation_checkpointing out"
            )
        self._check_kept()
        stage, allowed = self.zero_optimization.stage, self.zero_allow_untested_optimizer
        if isinstance(self.optimizer, OptimizerAdamW8bit):
            self.optimizer.check_zero(stage, self.zero_optimization.offloads, allowed)
        if isinstance(self.optimizer, OptimizerSGD) and stage and allowed is False:
            raise ValueError(
                f"zero_allow_untested_optimizer is false, and SGD in stage {stage} needs it; leave it out"
            )
        return self

    def _check_int8(self) -> None:
        """Refuses INT8 where it cannot be carried out, and its settings where there is none."""
        if not self.quantises:
            if "int8" in self.ds_tft.model_fields_set:
                raise ValueError(
                    "ds_tft.int8 has no effect without compression_training; give --use-int8, or leave it out"
                )
            return
        if self.zero_optimization.stage == 3:
            raise ValueError(
                "compression_training needs whole weights to quantise, and zero_optimization.stage 3 partitions "
                "them; use stage 2"
            )
        if not self.ds_tft.streaming:
            raise ValueError(
                "compression_training quantises the streaming form of the variable selection, and ds_tft.streaming "
                "is false; leave it out"
            )

    def _check_kept(self) -> None:
        """Refuses two ways to keep the inputs of blocks, or one where nothing is recomputed."""
        if self.ds_tft.compress_kept is None:
            return
        if self.activation_checkpointing.cpu_checkpointing:
            raise ValueError(
                "ds_tft.compress_kept and activation_checkpointing.cpu_checkpointing both say how the inputs of "
                "recomputed blocks are kept; give one of them"
            )
        if not self.recomputes:
            raise ValueError(
                f"ds_tft.compress_kept is {self.ds_tft.compress_kept!r}, and no block is recomputed; "
                'set ds_tft.recompute to "default", or leave it out'
            )

    def _check_precision(self) -> None:
        """Refuses combinations that DeepSpeed rejects late or carries out badly."""
        if self.fp16.enabled and self.bf16.enabled:
            raise ValueError("fp16.enabled and bf16.enabled are both true; enable one")
        if self.precision != "fp32" and self.zero_optimization.stage == 0:
            raise ValueError(
                f"{self.precision}.enabled with zero_optimization.stage 0 takes an optimizer of DeepSpeed "
                "whose updates are imprecise; use stage 1, which is the same on one process"
            )

    def _check_rates(self) -> None:
        """Keeps the learning rate in one place."""
        rate = self.optimizer.params.lr
        highest = getattr(self.scheduler.params, "warmup_max_lr", "auto") if self.scheduler else "auto"
        if highest not in ("auto", rate):
            raise ValueError(
                f"scheduler.params.warmup_max_lr is {highest}, but optimizer.params.lr is {rate}; "
                "give the rate in optimizer.params.lr only"
            )
        lowest = getattr(self.scheduler.params, "warmup_min_lr", 0.0) if self.scheduler else 0.0
        if lowest > rate:
            raise ValueError(
                f"scheduler.params.warmup_min_lr is {lowest}, above optimizer.params.lr {rate}; lower it"
            )
