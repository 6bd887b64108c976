"""Writes a trained model as an ONNX file.

    python launch/export_onnx.py --model runs/demo --parquet-file bars.parquet --output model.onnx

Needs neither DeepSpeed nor a GPU, but the packages onnx and onnxruntime: pip install 'ds_tft[onnx]'
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ds_tft.cli import run_command
from ds_tft.training.environment import prepare_environment


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all flags."""
    parser = argparse.ArgumentParser(description="Write a trained model as an ONNX file.", allow_abbrev=False)
    add = parser.add_argument
    add("--model", required=True, help="a run folder, or an export folder of one; export_int8 for INT8")
    add("--output", required=True, help="the .onnx file to write")
    add("--parquet-file",
        help="data with targets to compare the file with the model on (default: synthetic windows)")  # fmt: skip
    add("--local_rank", "--local-rank", type=int, default=0, help=argparse.SUPPRESS)  # given by the launcher
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the flags and writes the file."""
    options = build_parser().parse_args(argv)
    if not prepare_environment().is_first:
        return 0  # one process does it, however many the launcher starts

    def command() -> None:
        from ds_tft.onnx_export.packages import require_packages

        require_packages()
        # These import torch and onnx: only once they are needed.
        from ds_tft.console import make_console
        from ds_tft.onnx_export.command import ExportOnnxArguments, export_onnx

        arguments = ExportOnnxArguments(
            model=options.model, output=options.output, parquet=options.parquet_file
        )
        export_onnx(arguments, make_console())

    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
