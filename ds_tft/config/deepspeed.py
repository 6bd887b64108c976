"""The DeepSpeed JSON with the command line laid over it, and what of it this machine can carry out."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any

from ds_tft.config.batch import BatchSizes, resolve_batch
from ds_tft.config.compression import everything
from ds_tft.config.deepspeed_refused import refuse_known
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.engine_config import engine_config
from ds_tft.config.engine_notes import engine_notes
from ds_tft.config.json_reader import read_json
from ds_tft.config.optimizer_sections import OptimizerAdamW8bit, OptimizerSGD
from ds_tft.config.overrides import Override, changes, for_deepspeed, merged, origins
from ds_tft.config.validation import validate
from ds_tft.errors import ConfigError

__all__ = [
    "BatchSizes",
    "DeepSpeedSettings",
    "check_machine",
    "default_deepspeed_json",
    "engine_config",
    "engine_notes",
    "read_deepspeed_settings",
    "resolve_batch",
]


def default_deepspeed_json() -> dict[str, Any]:
    """What is used without `--deepspeed_config`; the content of `ds_configs/zero1.json`."""
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": 0.001,
                "betas": [0.9, 0.999],
                "weight_decay": 0.01,
                "torch_adam": True,
                "fused": True,
            },
        },
        "scheduler": {
            "type": "WarmupCosineLR",
            "params": {
                "warmup_num_steps": "auto",
                "warmup_type": "linear",
                "cos_min_ratio": 0.01,
                "total_num_steps": "auto",
            },
        },
        "zero_optimization": {
            "stage": 1,
            "reduce_bucket_size": "auto",
            "allgather_bucket_size": "auto",
        },
    }


def read_deepspeed_settings(
    path: str | None,
    overrides: Sequence[str] = (),
    *,
    use_checkpointing: bool = False,
    use_int8: bool = False,
) -> tuple[DeepSpeedSettings, list[str]]:
    """Reads how the model is to be trained: the file, below the command line.

    Args:
        path: The DeepSpeed JSON (`--deepspeed_config`); `None` takes `default_deepspeed_json()`.
        overrides: Arguments of `--set`; those that start with `deepspeed.` count here.
        use_checkpointing: Whether `--use-gradient-checkpointing` is given: blocks are recomputed, the default
            ones where the file names none.
        use_int8: Whether `--use-int8` is given: weights and inputs of all modules become INT8, unless
            `compression_training` says what does.

    Returns:
        The settings, and one line for each value that the command line changed.

    Raises:
        ConfigError: The file cannot be read, or a setting is unknown, unsupported, of the wrong kind, out of
            range or in conflict with another.
    """
    raw = read_json(path) if path is not None else default_deepspeed_json()
    where = path or "default DeepSpeed settings"
    given = for_deepspeed(overrides)
    complete = merged(raw, given)
    if use_checkpointing and _names_no_blocks(complete):
        given.append(Override(("ds_tft", "recompute"), "default", "--use-gradient-checkpointing"))
        complete = merged(raw, given)
    if use_int8 and complete.get("compression_training") is None:
        given.append(Override(("compression_training",), everything(), "--use-int8"))
        complete = merged(raw, given)
    refuse_known(complete, where, origins(given))
    settings = validate(DeepSpeedSettings, complete, where, origins(given))
    return settings, changes(DeepSpeedSettings, raw, given, where)


def _names_no_blocks(raw: Any) -> bool:
    """Whether a JSON leaves open which blocks are recomputed."""
    product = raw.get("ds_tft") if isinstance(raw, dict) else None
    return product is None or (isinstance(product, dict) and product.get("recompute") is None)


def check_machine(
    settings: DeepSpeedSettings,
    has_cuda: bool,
    find_tool: Callable[[str], str | None] = shutil.which,
) -> None:
    """Refuses at once what this machine would refuse minutes into the start.

    Args:
        settings: The DeepSpeed JSON.
        has_cuda: Whether the run is on a GPU.
        find_tool: Finds a program; `None` where it is missing.

    Raises:
        ConfigError: fp16 without a GPU, or an optimizer to compile without the tools for it.
    """
    if settings.fp16.enabled and not has_cuda:
        raise ConfigError("fp16.enabled: true needs a GPU, and none was found; use bf16, or neither")
    if isinstance(settings.optimizer, OptimizerSGD | OptimizerAdamW8bit):
        return
    if settings.optimizer.params.torch_adam:
        return
    on_gpu = has_cuda and not settings.zero_optimization.offloads
    operation = "CPUAdam" if settings.zero_optimization.offloads else "FusedAdam"
    for tool in ("c++", "ninja", *(["nvcc"] if on_gpu else [])):
        if find_tool(tool) is None:
            raise ConfigError(
                f"optimizer.params.torch_adam: false compiles DeepSpeed's {operation} at the first start and "
                f"needs {tool}, which was not found; install it or write torch_adam true"
            )
