"""Checks that the memory passes train the same model, on your own data, settings and device.

python launch/verify.py --deepspeed_config ds_configs/zero1.json --parquet-file F.parquet --target y
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ds_tft.cli import run_command
from ds_tft.training.arguments import add_settings_flags, settings_arguments
from ds_tft.training.environment import prepare_environment


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all flags."""
    parser = argparse.ArgumentParser(
        description="Check the memory passes: losses, gradients, bytes and time of one batch.",
        allow_abbrev=False,
    )
    parser.add_argument("--parquet-file", required=True, help="a parquet file, a folder of shards, or a glob")
    add_settings_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the flags and verifies."""
    options = build_parser().parse_args(argv)
    place = prepare_environment()

    def command() -> None:
        from ds_tft.training.verify import verify  # imports torch: after the environment is ready

        verify(settings_arguments(options), place)

    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
