"""Saving and resuming: what DeepSpeed stores, the training state beside it, which checkpoint is meant."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed

from ds_tft.errors import ConfigError, UserError
from ds_tft.training.adam8bit import has_8bit_optimizer
from ds_tft.training.agreement import first_error, from_first
from ds_tft.training.checkpoint_files import (
    TAG,
    UNFINISHED,
    damage,
    drop_draft,
    finish_draft,
    list_checkpoints,
    put_back,
    start_draft,
)
from ds_tft.training.engine import without_warnings
from ds_tft.training.other_processes import processes_of, put_together
from ds_tft.training.state import TrainingState

CHECKPOINTS = "checkpoints"
"""Folder in the run folder."""
BEST_WEIGHTS = "best.safetensors"
"""File of the run folder with the weights of the best validation so far; each checkpoint has its own copy."""
TORCH_WRITER = "inline_container.cc"
"""Where torch says that it could not write, in an error that is no OSError."""


def save_checkpoint(engine: Any, run_folder: Path, state: TrainingState, keep: int) -> Path:
    """Writes a checkpoint of all processes, then makes it visible under its final name.

    Args:
        engine: The DeepSpeed engine. Every process must call this.
        run_folder: The run folder.
        state: The loop's state.
        keep: How many checkpoints to leave; older ones are removed.

    Returns:
        The checkpoint's folder, named `step-N`.

    Raises:
        ConfigError: A file cannot be written, in whichever process. The checkpoints before it are untouched.
    """
    folder, tag = run_folder / CHECKPOINTS, f"step-{state.step}"

    def finish() -> Path:
        if state.best_step is not None:
            shutil.copyfile(run_folder / BEST_WEIGHTS, folder / (UNFINISHED + tag) / BEST_WEIGHTS)
        return finish_draft(folder, tag, keep)

    try:
        from_first(lambda: _written(folder, lambda: start_draft(folder, tag)))
        with _errors_together(engine, folder):
            engine.save_checkpoint(
                str(folder), tag=UNFINISHED + tag, client_state={"ds_tft": state.to_dict()}, save_latest=False
            )
        return from_first(lambda: _written(folder, finish))
    except UserError:
        if torch.distributed.get_rank() == 0:
            drop_draft(folder, tag)
        raise


def _written(folder: Path, write: Callable[[], Path]) -> Path:
    """Runs what writes, with the system's errors as the user's."""
    try:
        return write()
    except OSError as error:
        raise _write_error(folder, error) from None


def _write_error(folder: Path, error: Exception) -> ConfigError:
    """Says that a checkpoint cannot be written, and what there is instead."""
    kept = [path.name for path in list_checkpoints(folder)[-1:]]
    there = f"{kept[0]} is whole, from which --resume auto goes on" if kept else "there is none yet"
    reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
    return ConfigError(f"checkpoints: cannot write to '{folder}', got {reason}; make room ({there})")


@contextmanager
def _errors_together(engine: Any, folder: Path) -> Iterator[None]:
    """Lets DeepSpeed save, and raises what any process met once all are through: DeepSpeed waits for all of them."""
    writer = engine.checkpoint_engine
    write = writer.save
    met: list[UserError] = []

    def save(*arguments: Any, **named: Any) -> None:
        try:
            write(*arguments, **named)
        except (OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and TORCH_WRITER not in str(error):
                raise
            met.append(_write_error(folder, error))

    writer.save = save
    try:
        yield
    except OSError as error:  # of the first process alone, after the last time that the others are waited for
        met.append(_write_error(folder, error))
    finally:
        del writer.save
    anywhere = first_error(met[0] if met else None)
    if anywhere is not None:
        raise anywhere


def find_checkpoint(run_folder: Path, resume: str, warn: Callable[[str], None]) -> Path:
    """Finds the checkpoint that `--resume` means. Every process must call this.

    Args:
        run_folder: The run folder, whose `checkpoints` are looked through for `auto` and for a tag.
        resume: `auto` (the newest that is whole), a tag such as `step-1200`, or the path of a checkpoint.
        warn: Writes a line to the log, about those that are damaged.

    Raises:
        ConfigError: When there is no such checkpoint, or it is damaged. A run asked to resume never starts afresh.
    """

    def find() -> Path:
        put_back(run_folder / CHECKPOINTS)
        return _newest(run_folder, warn) if resume == "auto" else _named(run_folder, resume)

    return from_first(find)


def _newest(run_folder: Path, warn: Callable[[str], None]) -> Path:
    """The newest whole checkpoint."""
    folder = run_folder / CHECKPOINTS
    broken: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        problem = damage(path)
        if problem is None:
            for line in broken:
                warn(f"--resume auto: {line}; going on from {path.name}")
            return path
        broken.append(f"{path.name} is damaged ({problem})")
    if broken:
        raise ConfigError(
            f"--resume auto: no whole checkpoint in '{folder}', got {'; '.join(broken)}; "
            "restore the files, or start a new run"
        )
    raise ConfigError(
        f"--resume auto: no checkpoint in '{folder}'; "
        "check --output-dir, or leave --resume out to start a new run"
    )


def _named(run_folder: Path, resume: str) -> Path:
    """The checkpoint of a tag or path."""
    names = ", ".join(path.name for path in list_checkpoints(run_folder / CHECKPOINTS)) or "none"
    for path in (Path(resume), run_folder / CHECKPOINTS / resume):
        if path.is_dir() and TAG.fullmatch(path.name):
            problem = damage(path)
            if problem is None:
                return path
            raise ConfigError(
                f"--resume: '{path}' is damaged, got {problem}; give another, checkpoints of the run: {names}"
            )
    raise ConfigError(
        f"--resume: no checkpoint '{resume}', checkpoints of the run: {names}; give one of them or 'auto'"
    )


def load_checkpoint(
    engine: Any, checkpoint: Path, run_folder: Path, say: Callable[[str], None]
) -> TrainingState:
    """Restores the engine and the best weights, and returns the loop's state.

    Args:
        engine: The DeepSpeed engine. Every process must call this.
        checkpoint: The checkpoint's folder.
        run_folder: The run folder, whose best weights become those of the checkpoint.
        say: Writes a line to the log.

    Raises:
        ConfigError: When the checkpoint holds no training state, or cannot be taken over from another number of
            processes.
    """
    settings = [_settings_of(group) for group in engine.optimizer.param_groups]
    client_state = _load(engine, checkpoint, say)
    if "ds_tft" not in client_state:
        raise ConfigError(
            f"--resume: '{checkpoint}' holds no training state; give a checkpoint of a ds_tft run"
        )
    _apply_settings(engine, settings)
    state = TrainingState.from_dict(client_state["ds_tft"], f"--resume: '{checkpoint}'")
    from_first(lambda: _restore_best(checkpoint, run_folder, state))
    return state


def _load(engine: Any, checkpoint: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Loads what DeepSpeed has saved, by whatever number of processes; returns what was saved with it."""
    processes, now = processes_of(checkpoint), torch.distributed.get_world_size()
    if processes is None or processes == now:
        return _loaded(engine, checkpoint)
    if has_8bit_optimizer(engine):
        raise ConfigError(
            f"--resume: '{checkpoint}' was written by {processes} processes, got {now} with an 8-bit optimizer, "
            f"whose states cannot be put together; start {processes} processes"
        )
    with put_together(checkpoint, say) as folder:
        engine._config.load_universal_checkpoint = True
        try:
            return _loaded(engine, folder)
        finally:
            engine._config.load_universal_checkpoint = False


def _loaded(engine: Any, folder: Path) -> dict[str, Any]:
    """Lets DeepSpeed load a folder."""
    with without_warnings():
        path, client_state = engine.load_checkpoint(str(folder.parent), tag=folder.name)
    return {} if path is None else client_state


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
