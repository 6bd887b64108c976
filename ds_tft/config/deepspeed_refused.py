"""Keys that DeepSpeed knows, or knew, and that cannot be used here: each is refused with its reason.

DeepSpeed ignores several of them, and many misspelt ones, in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ds_tft.config.json_reader import shortened
from ds_tft.config.validation import NOWHERE_ELSE, Path, located
from ds_tft.errors import ConfigError

REMOVED = "it is no longer in DeepSpeed; remove it"
CLUSTER = "it is made for clusters; remove it"
STAGE_3 = "it tunes stage 3; remove it, or use stage 1 with offload_optimizer"
DEPRECATED = "it is deprecated in DeepSpeed; use offload_optimizer"
NVME = "it serves NVMe; use offload_optimizer with device cpu"
REPLACED = "it is no longer in DeepSpeed; use compression_training"
CASTING = "types follow fp16 and bf16; remove it"
OWN_FILES = "checkpoints are written by this package; remove it"
MONITOR = "the run writes TensorBoard events and a metrics file; remove it"
ONE_PIECE = "the model runs in one piece; remove it"
UNNEEDED = "it makes no difference to this model; remove it"
OTHER = "use AdamW, Adam or SGD"
PRUNING = "zeros save neither memory nor time here; use weight_quantization"
TO_THE_END = "what is quantised stays so to the end; remove it"
SYMMETRIC = "a zero point was measured to gain nothing; use symmetric"

WEIGHTS: Path = ("compression_training", "weight_quantization", "shared_parameters")
ACTIVATIONS: Path = ("compression_training", "activation_quantization", "shared_parameters")
TOP_LEVEL: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            ("nebula", "elasticity", "sparse_attention", "sparse_gradients", "eigenvalue"), REMOVED
        ),
        **dict.fromkeys(("graph_harvesting", "progressive_layer_drop", "curriculum_learning"), REMOVED),
        **dict.fromkeys(("quantize_training", "weight_quantization"), REPLACED),
        **dict.fromkeys(("pipeline", "tensor_parallel", "expert_parallel"), ONE_PIECE),
        **dict.fromkeys(("wandb", "comet", "csv_monitor"), MONITOR),
        **dict.fromkeys(("comms_logger", "prescale_gradients", "gradient_predivide_factor"), CLUSTER),
        **dict.fromkeys(("disable_allgather", "sequence_parallel_size"), CLUSTER),
        **dict.fromkeys(("checkpoint", "datastates", "dump_state"), OWN_FILES),
        **dict.fromkeys(
            ("data_types", "communication_data_type", "seq_parallel_communication_data_type"), CASTING
        ),
        **dict.fromkeys(("hybrid_engine", "vocabulary_size", "use_data_before_expert_parallelism"), UNNEEDED),
        **dict.fromkeys(("compile", "timers", "disable_python_gc"), UNNEEDED),
        "amp": "it is no longer in DeepSpeed; use bf16",
        "bfloat16": "it is the older name; use bf16",
        "data_efficiency": "it would replace the sampling of windows; use training.windows_per_epoch",
        "autotuning": "it needs more packages and its own launcher; compare settings by short runs",
        "aio": NVME,
        "torch_autocast": "it fails for LSTM layers on many CPUs; use bf16",
        "flops_profiler": "it leaves out much of LSTM layers; use wall_clock_breakdown",
        "memory_breakdown": "it makes a step hundreds of times slower; remove it",
        "gradient_allreduce_op": "gradients are averaged; remove it",
        "managed_gradient_accumulation": "use gradient_accumulation_steps",
        "dataloader_drop_last": "windows are loaded by this package; remove it",
        "zero_force_ds_cpu_optimizer": "use optimizer.params.torch_adam",
    }
)
ZERO: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory"), DEPRECATED),
        **dict.fromkeys(("sub_group_size", "memory_efficient_linear", "leaf_module"), STAGE_3),
        **dict.fromkeys(("override_module_apply", "log_trace_cache_warnings"), STAGE_3),
        **dict.fromkeys(("mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"), REMOVED),
        **dict.fromkeys(("zero_hpz_partition_size", "zero_quantized_weights"), CLUSTER),
        **dict.fromkeys(("zero_quantized_nontrainable_weights", "zero_quantized_gradients"), CLUSTER),
        **dict.fromkeys(("use_multi_rank_bucket_allreduce", "round_robin_gradients"), CLUSTER),
        **dict.fromkeys(("elastic_checkpoint", "load_from_fp32_weights"), OWN_FILES),
        **dict.fromkeys(
            ("ignore_unused_parameters", "parameter_alignment", "enable_sanity_checks"), UNNEEDED
        ),
        **dict.fromkeys(("pipeline_loading_checkpoint", "save_muon_momentum_buffer_in_memory"), UNNEEDED),
        "legacy_stage1": REMOVED,
        "offload_param": "weights stay on the GPU; use offload_optimizer",
        "zenflow": "use offload_optimizer",
        "compute_grad_norm": "the norm is always logged; remove it",
    }
)
OFFLOAD: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("nvme_path", "buffer_count", "fast_init", "pipeline_read", "pipeline_write"), NVME),
        **dict.fromkeys(("ratio", "super_offload", "cpuadam_cores_perc"), STAGE_3),
    }
)
SECTIONS: Mapping[Path, Mapping[str, str]] = MappingProxyType(
    {
        (): TOP_LEVEL,
        ("zero_optimization",): ZERO,
        ("zero_optimization", "offload_optimizer"): OFFLOAD,
        ("optimizer",): {"legacy_fusion": REMOVED},
        ("optimizer", "params"): {"max_grad_norm": "use gradient_clipping at the top level"},
        ("scheduler", "params"): {"last_batch_iteration": "it follows the checkpoint; remove it"},
        ("fp16",): {
            "auto_cast": "inputs are always cast; remove it",
            "fp16_master_weights_and_grads": "master weights stay in fp32; remove it",
        },
        ("bf16",): {
            "bf16_master_weights_and_grads": "master weights stay in fp32; remove it",
            "bf16_optimizer_states": "optimizer states stay in fp32; remove it",
            "check_grad_overflow": "non-finite gradients are always checked; remove it",
            "immediate_grad_update": UNNEEDED,
        },
        ("compression_training",): {
            **dict.fromkeys(("sparse_pruning", "row_pruning"), PRUNING),
            "head_pruning": "heads are few from the start; use model.num_heads in the run JSON",
            "channel_pruning": "it prunes convolutions, and the model has none; remove it",
            "layer_reduction": "it takes layers out of a deep model; use model.lstm_layers in the run JSON",
        },
        WEIGHTS: {"schedule_offset_end": TO_THE_END},
        ACTIVATIONS: {"schedule_offset_end": TO_THE_END},
    }
)
# Names are compared without regard to case, as DeepSpeed does.
NAMES: Mapping[Path, Mapping[str, str]] = MappingProxyType(
    {
        ("optimizer", "type"): {
            **dict.fromkeys(("lamb", "lion"), f"it is compiled at start and has no CPU version; {OTHER}"),
            **dict.fromkeys(
                ("onebitadam", "onebitlamb", "zerooneadam"), f"it is no longer in DeepSpeed; {OTHER}"
            ),
            **dict.fromkeys(("muadam", "muadamw", "musgd"), f"it needs another package; {OTHER}"),
            **dict.fromkeys(("adagrad", "rmsprop"), OTHER),
            "muon": f"it is made for large language models; {OTHER}",
            "fusedadam": "use AdamW with torch_adam false, which is the same",
            "deepspeedcpuadam": "use AdamW with torch_adam false and offload_optimizer, which is the same",
        },
        ("scheduler", "type"): {
            "onecycle": "it sets the second beta of Adam to 0.99; use WarmupCosineLR",
            "lrrangetest": "it raises the rate without end; compare rates by short runs",
        },
        ("zero_optimization", "offload_optimizer", "device"): {"nvme": "use cpu"},
        (*WEIGHTS, "quantization_type"): {"asymmetric": SYMMETRIC},
        (*WEIGHTS, "rounding"): {
            "stochastic": "training runs the arithmetic of the INT8 model, which rounds to the nearest; use nearest"
        },
        (*ACTIVATIONS, "quantization_type"): {"asymmetric": SYMMETRIC},
        (*ACTIVATIONS, "range_calibration"): {
            "dynamic": "ranges are measured once and stay, as the INT8 model needs them; use static"
        },
    }
)


def refuse_known(raw: Mapping[str, Any], where: str, origins: Mapping[Path, str] = NOWHERE_ELSE) -> None:
    """Refuses the first key or name in `raw` that DeepSpeed has and this package does not.

    Args:
        raw: The DeepSpeed JSON.
        where: What the message names as the place.
        origins: Paths that came from elsewhere, as in `validate`.

    Raises:
        ConfigError: With the reason and what to use instead.
    """
    for path, message in (*_keys(raw), *_names(raw)):
        raise ConfigError(located(path, message, where, origins))


def _keys(raw: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Keys that are refused."""
    for path, reasons in SECTIONS.items():
        section = _at(raw, path)
        for key in section if isinstance(section, dict) else ():
            if key in reasons:
                yield (*path, key), f"not supported, {reasons[key]}"
            elif path == ("zero_optimization",) and key.startswith("stage3_"):
                yield (*path, key), f"not supported, {STAGE_3}"


def _names(raw: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Optimizers, schedulers, devices and ways to quantise that are refused."""
    for path, reasons in NAMES.items():
        name = _at(raw, path)
        if isinstance(name, str) and name.lower() in reasons:
            yield path, f"not supported, got {shortened(name)}; {reasons[name.lower()]}"


def _at(raw: Any, path: Path) -> Any:
    """The value at `path`, or `None`; values of the wrong kind are refused later."""
    for step in path:
        raw = raw.get(step) if isinstance(raw, dict) else None
    return raw
