"""Going on with another number of processes: DeepSpeed's converter puts the files of each process together."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed

from ds_tft.errors import ConfigError
from ds_tft.training.agreement import from_first
from ds_tft.training.checkpoint_files import UNFINISHED

CONVERTER = "deepspeed.checkpoint.ds_to_universal"


def processes_of(checkpoint: Path) -> int | None:
    """Returns how many processes wrote a checkpoint; None where nothing in it depends on their number.

    Args:
        checkpoint: Its folder.
    """
    return len(list(checkpoint.glob("*zero_pp_rank_*_optim_states.pt"))) or None


@contextmanager
def put_together(checkpoint: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Yields a folder that any number of processes can load. Every process must enter this.

    Args:
        checkpoint: Written by another number of processes; it stays as it is.
        say: Writes a line to the log.

    Raises:
        ConfigError: It cannot be converted.
    """
    folder = checkpoint.parent / f"{UNFINISHED}{checkpoint.name}-together"
    from_first(lambda: _convert(checkpoint, folder))
    say(
        f"checkpoint: processes {processes_of(checkpoint)} -> {torch.distributed.get_world_size()}, its states are put "
        "together"
    )
    try:
        yield folder
    finally:
        torch.distributed.barrier()
        if torch.distributed.get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _convert(checkpoint: Path, folder: Path) -> None:
    """Runs the converter, in a process of its own: it starts others, and prints."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", CONVERTER, "--input_folder", str(checkpoint), "--output_folder", str(folder),
               "--num_extract_workers", "1", "--num_merge_workers", "1", "--inject_missing_state"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise ConfigError(
            f"--resume: '{checkpoint}' was written by {processes_of(checkpoint)} processes and cannot be put together "
            f"for another number, got {last!r}; start {processes_of(checkpoint)} processes, or make room"
        )
