"""Trains a Temporal Fusion Transformer on a parquet file.

    deepspeed launch/train.py --deepspeed_config ds_configs/zero1.json --parquet-file F.parquet --target y

`python launch/train.py ...` does the same in one process without the launcher.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from ds_tft.cli import run_command
from ds_tft.training.arguments import add_settings_flags, duration, settings_arguments
from ds_tft.training.environment import prepare_environment


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all flags."""
    parser = argparse.ArgumentParser(
        description="Train a Temporal Fusion Transformer on a parquet file.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--parquet-file", required=True, help="a parquet file, a folder of shards, or a glob in quotes")
    add_settings_flags(parser)
    add("--epochs", type=int, help="passes over the training windows")
    add("--use-int8", action="store_true", help="quantisation-aware training to INT8")
    add("--output-dir", help="run folder (default: runs/<date>-<time>)")
    add("--resume", metavar="CHECKPOINT", help="'auto', a tag such as step-1200, or a checkpoint folder")
    add("--seed", type=int, help="seed of weights, order and dropout")
    add(
        "--max-time",
        type=duration,
        metavar="TIME",
        help="save and leave before so much time is over, such as 90m or 3h30m",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the flags and trains."""
    options = build_parser().parse_args(argv)
    place = prepare_environment()
    arguments = replace(
        settings_arguments(options),
        epochs=options.epochs,
        use_int8=options.use_int8,
        output_dir=options.output_dir,
        resume=options.resume,
        seed=options.seed,
        max_seconds=options.max_time,
    )

    def command() -> None:
        from ds_tft.training.run import train  # imports torch: after the environment is ready

        train(arguments, place)

    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
