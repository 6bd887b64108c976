"""Measures the errors of a trained model on a file, beside those of simple baselines.

    python launch/evaluate.py --model runs/demo --parquet-file bars.parquet

Needs neither DeepSpeed nor a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ds_tft.cli import run_command
from ds_tft.training.environment import prepare_environment


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all flags."""
    parser = argparse.ArgumentParser(description="Evaluate a trained model on a file.", allow_abbrev=False)
    add = parser.add_argument
    add("--model", required=True, help="a run folder, or the export folder of one")
    add("--parquet-file", required=True, help="a parquet file, a folder of shards, or a glob in quotes")
    add("--split", choices=("test", "validation", "train"),
        help="period of the labels, as training cut the data (default: test)")  # fmt: skip
    add("--from", dest="first", metavar="TIME", help="first origin, instead of a split")
    add("--to", dest="last", metavar="TIME", help="last origin")
    add("--batch-size", type=int, help="windows per forward (default: that of training)")
    add("--output", help="a .json file for all figures (default: they are only printed)")
    add("--local_rank", "--local-rank", type=int, default=0, help=argparse.SUPPRESS)  # given by the launcher
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the flags and evaluates."""
    options = build_parser().parse_args(argv)
    if not prepare_environment().is_first:
        return 0  # one process does it, however many the launcher starts

    def command() -> None:
        # These import torch: only once it is needed.
        from ds_tft.console import make_console
        from ds_tft.forecast.evaluate_file import EvaluateArguments, evaluate_file
        from ds_tft.forecast.time_range import TimeRange

        arguments = EvaluateArguments(
            model=options.model,
            parquet=options.parquet_file,
            split=options.split,
            origins=TimeRange(options.first, options.last),
            batch_size=options.batch_size,
            output=options.output,
        )
        evaluate_file(arguments, make_console())

    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
