"""Saving and resuming: what DeepSpeed stores, the training state beside it, and which checkpoint is the newest."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import torch.distributed

from ds_tft.errors import ConfigError
from ds_tft.training.state import TrainingState

TAG = re.compile(r"step-(\d+)")
UNFINISHED = "unfinished-"


def save_checkpoint(engine: Any, folder: Path, state: TrainingState, keep: int) -> Path:
    """Writes a checkpoint of all processes, then makes it visible under its final name.

    Args:
        engine: The DeepSpeed engine. Every process must call this.
        folder: The run's `checkpoints` folder.
        state: The loop's state.
        keep: How many checkpoints to leave; older ones are removed.

    Returns:
        The checkpoint's folder, named `step-N`.
    """
    tag = f"step-{state.step}"
    engine.save_checkpoint(
        str(folder), tag=UNFINISHED + tag, client_state={"ds_tft": state.to_dict()}, save_latest=False
    )
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        final = folder / tag
        if final.exists():
            shutil.rmtree(final)
        (folder / (UNFINISHED + tag)).rename(final)
        for old in list_checkpoints(folder)[:-keep]:
            shutil.rmtree(old)
    torch.distributed.barrier()
    return folder / tag


def list_checkpoints(folder: Path) -> list[Path]:
    """Returns the finished checkpoints of a run, oldest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if TAG.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def find_checkpoint(run_folder: Path, resume: str) -> Path:
    """Finds the checkpoint that `--resume` means.

    Args:
        run_folder: The run folder, whose `checkpoints` are looked through for `auto` and for a tag.
        resume: `auto` (the newest), a tag such as `step-1200`, or the path of a checkpoint.

    Raises:
        ConfigError: When there is no such checkpoint. A run asked to resume never starts afresh.
    """
    candidates = list_checkpoints(run_folder / "checkpoints")
    if resume == "auto":
        if not candidates:
            raise ConfigError(
                f"--resume auto: no checkpoint in '{run_folder / 'checkpoints'}'; "
                "check --output-dir, or leave --resume out to start a new run"
            )
        return candidates[-1]
    for path in (Path(resume), run_folder / "checkpoints" / resume):
        if path.is_dir() and TAG.fullmatch(path.name):
            return path
    names = ", ".join(path.name for path in candidates) or "none"
    raise ConfigError(
        f"--resume: no checkpoint '{resume}', checkpoints of the run: {names}; give one of them or 'auto'"
    )


def load_checkpoint(engine: Any, checkpoint: Path) -> TrainingState:
    """Restores the engine and returns the loop's state.

    Raises:
        ConfigError: When the checkpoint was written by another number of processes, or holds no training state.
    """
    files = len(list(checkpoint.glob("*zero_pp_rank_*_optim_states.pt")))
    if files and files != torch.distributed.get_world_size():
        raise ConfigError(
            f"--resume: '{checkpoint}' was written by {files} processes, got {torch.distributed.get_world_size()}; "
            f"start {files} processes"
        )
    path, client_state = engine.load_checkpoint(str(checkpoint.parent), tag=checkpoint.name)
    if path is None or "ds_tft" not in client_state:
        raise ConfigError(
            f"--resume: '{checkpoint}' holds no training state; give a checkpoint of a ds_tft run"
        )
    return TrainingState.from_dict(client_state["ds_tft"], f"--resume: '{checkpoint}'")
