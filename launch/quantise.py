"""Makes an INT8 model of a trained one, and fine-tunes it unless told not to.

    deepspeed launch/quantise.py --model runs/demo --parquet-file bars.parquet --output-dir runs/demo-int8

`python launch/quantise.py ...` does the same in one process without the launcher.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ds_tft.cli import run_command
from ds_tft.errors import ConfigError
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.environment import prepare_environment


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all flags."""
    parser = argparse.ArgumentParser(description="Make an INT8 model of a trained one.", allow_abbrev=False)
    add = parser.add_argument
    add("--model", required=True, help="a run folder, or the export folder of one")
    add("--parquet-file", required=True, help="the data that the model was trained on")
    add("--fine-tune-steps", type=int, metavar="N",
        help="updates of quantisation-aware training; 0 only rounds (default: a tenth of the training)")  # fmt: skip
    add(
        "--deepspeed_config",
        "--deepspeed-config",
        help="DeepSpeed JSON of the fine-tuning (default: ds_configs/zero1.json's content)",
    )
    add("--batch-size", type=int, help="windows per optimizer update, over all processes")
    add("--use-gradient-checkpointing", action="store_true", help="recompute activations in backward")
    add("--output-dir", help="run folder (default: runs/<date>-<time>)")
    add(
        "--resume",
        choices=["auto"],
        help="go on in --output-dir after the newest checkpoint of the fine-tuning",
    )
    add("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="any setting of the training, such as deepspeed.ds_tft.int8.calibration=mse")  # fmt: skip
    add("--local_rank", "--local-rank", type=int, default=0, help=argparse.SUPPRESS)  # given by the launcher
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the flags and quantises."""
    options = build_parser().parse_args(argv)
    place = prepare_environment()
    steps = options.fine_tune_steps
    given = [] if steps is None else [f"deepspeed.ds_tft.int8.fine_tune_steps={steps}"]
    arguments = TrainArguments(
        parquet=options.parquet_file,
        deepspeed_config=options.deepspeed_config,
        batch_size=options.batch_size,
        use_gradient_checkpointing=options.use_gradient_checkpointing,
        output_dir=options.output_dir,
        resume=options.resume,
        overrides=(*options.overrides, *given),
    )

    def command() -> None:
        if steps is not None and steps < 0:
            raise ConfigError(f"--fine-tune-steps: expected 0 or more, got {steps}; 0 only rounds")
        from ds_tft.training.quantise import quantise  # imports torch: after the environment is ready

        quantise(options.model, arguments, place)

    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
