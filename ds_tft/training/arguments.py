"""The flags of `launch/train.py`, as one value. Standard library only, to be cheap."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainArguments:
    """What the command line said. `None` and empty mean: not given."""

    parquet: str
    targets: tuple[str, ...] = ()
    config: str | None = None
    deepspeed_config: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    use_gradient_checkpointing: bool = False
    use_int8: bool = False
    output_dir: str | None = None
    resume: str | None = None
    seed: int | None = None
    max_seconds: float | None = None
    overrides: tuple[str, ...] = ()


def add_settings_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say what is trained and how, which several commands share."""
    add = parser.add_argument
    add("--target", action="append", help="column to forecast; repeat for several targets")
    add("--config", help="run JSON: columns, window, model, training (default: all defaults)")
    add(
        "--deepspeed_config",
        "--deepspeed-config",
        help="DeepSpeed JSON (default: ds_configs/zero1.json's content)",
    )
    add("--batch-size", type=int, help="windows per optimizer update, over all processes")
    add("--use-gradient-checkpointing", action="store_true", help="recompute activations in backward")
    add("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="any setting, such as model.hidden_size=32 or deepspeed.gradient_clipping=0.5")  # fmt: skip
    add("--local_rank", "--local-rank", type=int, default=0, help=argparse.SUPPRESS)  # given by the launcher


def duration(text: str) -> float:
    """Reads a time such as `90m`, `3h30m` or `45s`; returns seconds.

    Raises:
        argparse.ArgumentTypeError: It is none, or no time at all.
    """
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text)
    hours, minutes, seconds = (int(part or 0) for part in parts.groups()) if parts else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + seconds
    if not total:
        raise argparse.ArgumentTypeError(f"no time, got '{text}'; write it as 3h30m, 90m or 45s")
    return float(total)


def settings_arguments(options: argparse.Namespace) -> TrainArguments:
    """Returns what those flags and `--parquet-file` said."""
    return TrainArguments(
        parquet=options.parquet_file,
        targets=tuple(options.target or ()),
        config=options.config,
        deepspeed_config=options.deepspeed_config,
        batch_size=options.batch_size,
        use_gradient_checkpointing=options.use_gradient_checkpointing,
        overrides=tuple(options.overrides),
    )
