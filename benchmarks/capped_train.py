"""Runs launch/train.py with a share of the GPU's memory, so that a large card behaves as a small one.

python benchmarks/capped_train.py GIB [flags of launch/train.py]
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

TRAIN = Path(__file__).parents[1] / "launch" / "train.py"


def main(argv: Sequence[str]) -> None:
    """Caps the memory and hands the rest over."""
    from ds_tft.training.environment import prepare_environment

    place = prepare_environment()  # before torch is imported, as launch/train.py does
    import torch

    if torch.cuda.is_available():
        cap_memory(float(argv[0]), place.local_rank)
    sys.argv = [str(TRAIN), *argv[1:]]
    runpy.run_path(str(TRAIN), run_name="__main__")


def cap_memory(gib: float, index: int = 0) -> None:
    """Limits what this process may allocate on a GPU; more is an out-of-memory error."""
    import torch

    total = torch.cuda.get_device_properties(index).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, gib * 2**30 / total), index)


if __name__ == "__main__":
    main(sys.argv[1:])
