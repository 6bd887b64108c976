"""Saving and resuming: what DeepSpeed stores, the training state beside it, which one is the newest."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch.distributed

from ds_tft.errors import ConfigError
from ds_tft.training.state import TrainingState

TAG = re.compile(r"step-(\d+)")
UNFINISHED = "unfinished-"
CHECKPOINTS = "checkpoints"
"""Folder in the run folder."""
BEST_WEIGHTS = "best.safetensors"
"""File of the run folder with the weights of the best validation so far; each checkpoint has its own copy."""


def save_checkpoint(engine: Any, run_folder: Path, state: TrainingState, keep: int) -> Path:
    """Writes a checkpoint of all processes, then makes it visible under its final name.

    Args:
        engine: The DeepSpeed engine. Every process must call this.
        run_folder: The run folder.
        state: The loop's state.
        keep: How many checkpoints to leave; older ones are removed.

    Returns:
        The checkpoint's folder, named `step-N`.
    """
    folder, tag = run_folder / CHECKPOINTS, f"step-{state.step}"
    engine.save_checkpoint(
        str(folder), tag=UNFINISHED + tag, client_state={"ds_tft": state.to_dict()}, save_latest=False
    )
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        if state.best_step is not None:
            shutil.copyfile(run_folder / BEST_WEIGHTS, folder / (UNFINISHED + tag) / BEST_WEIGHTS)
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
    candidates = list_checkpoints(run_folder / CHECKPOINTS)
    if resume == "auto":
        if not candidates:
            raise ConfigError(
                f"--resume auto: no checkpoint in '{run_folder / CHECKPOINTS}'; "
                "check --output-dir, or leave --resume out to start a new run"
            )
        return candidates[-1]
    for path in (Path(resume), run_folder / CHECKPOINTS / resume):
        if path.is_dir() and TAG.fullmatch(path.name):
            return path
    names = ", ".join(path.name for path in candidates) or "none"
    raise ConfigError(
        f"--resume: no checkpoint '{resume}', checkpoints of the run: {names}; give one of them or 'auto'"
    )


def load_checkpoint(engine: Any, checkpoint: Path, run_folder: Path) -> TrainingState:
    """Restores the engine and the best weights, and returns the loop's state.

    Args:
        engine: The DeepSpeed engine. Every process must call this.
        checkpoint: The checkpoint's folder.
        run_folder: The run folder, whose best weights become those of the checkpoint.

    Raises:
        ConfigError: When the checkpoint was written by another number of processes, or holds no training
            state.
    """
    files = len(list(checkpoint.glob("*zero_pp_rank_*_optim_states.pt")))
    if files and files != torch.distributed.get_world_size():
        raise ConfigError(
            f"--resume: '{checkpoint}' was written by {files} processes, "
            f"got {torch.distributed.get_world_size()}; start {files} processes"
        )
    settings = [_settings_of(group) for group in engine.optimizer.param_groups]
    path, client_state = engine.load_checkpoint(str(checkpoint.parent), tag=checkpoint.name)
    if path is None or "ds_tft" not in client_state:
        raise ConfigError(
            f"--resume: '{checkpoint}' holds no training state; give a checkpoint of a ds_tft run"
        )
    _apply_settings(engine, settings)
    state = TrainingState.from_dict(client_state["ds_tft"], f"--resume: '{checkpoint}'")
    if torch.distributed.get_rank() == 0:
        _restore_best(checkpoint, run_folder, state)
    torch.distributed.barrier()
    return state


def _settings_of(group: dict[str, Any]) -> dict[str, Any]:
    """What a parameter group of an optimizer holds besides the parameters."""
    return {name: value for name, value in group.items() if name != "params"}


def _apply_settings(engine: Any, settings: list[dict[str, Any]]) -> None:
    """Gives the optimizer the settings of this run: DeepSpeed has put those of the checkpoint there."""
    groups = engine.optimizer.param_groups
    for group, own in zip(groups, settings, strict=True):
        group.update(own)
    if engine.lr_scheduler is not None:
        for group, rate in zip(groups, engine.lr_scheduler.get_lr(), strict=True):
            group["lr"] = rate
    if hasattr(engine.optimizer, "clip_grad"):
        engine.optimizer.clip_grad = engine.gradient_clipping()


def _restore_best(checkpoint: Path, run_folder: Path, state: TrainingState) -> None:
    """Makes the best weights those that the checkpoint knows of, whatever came after it."""
    best = run_folder / BEST_WEIGHTS
    if state.best_step is None:
        best.unlink(missing_ok=True)
        return
    unfinished = best.with_name(f".{best.name}.unfinished")
    shutil.copyfile(checkpoint / BEST_WEIGHTS, unfinished)
    os.replace(unfinished, best)
