"""Plans the memory of training, without training and without a GPU.

python launch/plan.py --deepspeed_config ds_configs/zero1.json --config run.json --budget-gib 4
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ds_tft.cli import run_command
from ds_tft.training.arguments import add_settings_flags
from ds_tft.training.environment import prepare_environment


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all flags."""
    parser = argparse.ArgumentParser(
        description="Plan the memory of training: states, activations, peak, and what fits.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--parquet-file", help="read the model's inputs from this file")
    add("--inputs", type=_three_counts, metavar="STATIC,OBSERVED,KNOWN",
        help="real inputs of the model where no file is given (default: 5,210,10)")  # fmt: skip
    add_settings_flags(parser)
    add("--budget-gib", type=float, metavar="GIB",
        help="memory of one device; replaces ds_tft.memory_budget_gib (default: that, or 4)")  # fmt: skip
    add("--device", choices=("cuda", "cpu"), default="cuda", help="where training will run (default: cuda)")
    add("--processes", type=int, default=1, help="processes of the run (default: 1)")
    add("--write", metavar="OUT.json", help="save the recommended DeepSpeed JSON here, replacing a file")
    return parser


def _three_counts(text: str) -> tuple[int, int, int]:
    """Reads `5,210,10`."""
    try:
        static, observed, known = (int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected three numbers such as 5,210,10, got '{text}'") from None
    if min(static, observed, known) < 0:
        raise argparse.ArgumentTypeError(f"expected numbers from 0, got '{text}'")
    return static, observed, known


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the flags and plans."""
    options = build_parser().parse_args(argv)
    prepare_environment()

    def command() -> None:
        from ds_tft.training import planning  # imports torch: after the environment is ready

        planning.plan(
            planning.PlanArguments(
                parquet=options.parquet_file,
                inputs=options.inputs,
                targets=tuple(options.target or ()),
                config=options.config,
                deepspeed_config=options.deepspeed_config,
                batch_size=options.batch_size,
                use_gradient_checkpointing=options.use_gradient_checkpointing,
                overrides=tuple(options.overrides),
                budget_gib=options.budget_gib,
                device=options.device,
                processes=options.processes,
                write=options.write,
            )
        )

    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
