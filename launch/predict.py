"""Forecasts with a trained model.

    python launch/predict.py --model runs/demo --parquet-file bars.parquet --output forecasts.parquet

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
    parser = argparse.ArgumentParser(description="Forecast with a trained model.", allow_abbrev=False)
    add = parser.add_argument
    add("--model", required=True, help="a run folder, or the export folder of one")
    add("--parquet-file", required=True, help="a parquet file, a folder of shards, or a glob in quotes")
    add("--output", help="a .parquet or .csv file (default: forecasts.parquet in the run folder)")
    add("--from", dest="first", metavar="TIME",
        help="forecast from every origin from this time on, not only from the last known target")  # fmt: skip
    add("--to", dest="last", metavar="TIME", help="last origin")
    add("--stride", type=int, help="rows between the origins of a series (default: 1)")
    add("--batch-size", type=int, help="windows per forward (default: that of training)")
    add("--local_rank", "--local-rank", type=int, default=0, help=argparse.SUPPRESS)  # given by the launcher
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the flags and forecasts."""
    options = build_parser().parse_args(argv)
    if not prepare_environment().is_first:
        return 0  # one process does it, however many the launcher starts

    def command() -> None:
        from ds_tft.console import make_console
        from ds_tft.forecast.predict import PredictArguments, predict  # imports torch: only once it is needed
        from ds_tft.forecast.time_range import TimeRange

        arguments = PredictArguments(
            model=options.model,
            parquet=options.parquet_file,
            output=options.output,
            origins=TimeRange(options.first, options.last),
            stride=options.stride,
            batch_size=options.batch_size,
        )
        predict(arguments, make_console())

    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
