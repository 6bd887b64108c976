"""The run folder: where everything of a run is kept, and whether a resumed run still is that run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from ds_tft.config.deepspeed_sections import TensorBoard
from ds_tft.data.prepare import TrainingData
from ds_tft.errors import ConfigError
from ds_tft.training.agreement import from_first
from ds_tft.training.folder_lock import FolderLock

SETTINGS = "settings.json"
MUST_STAY = (
    "data",
    "window",
    "split",
    "scaling",
    "model",
    "layout",
    "prepared",
    "training.seed",
    "training.windows_per_epoch",
    "engine.train_batch_size",
    "engine.optimizer.type",
    "engine.optimizer.params.min_8bit_size",
    "engine.scheduler.type",
    "engine.zero_optimization.stage",
    "engine.fp16",
    "engine.bf16",
)
"""What decides what the numbers of a checkpoint mean and which windows are still to come."""
SHOWN_ELSEWHERE = "arguments"
"""Section whose effect shows in the others; of its own it only has the data."""


def choose_folder(output_dir: str | None) -> Path:
    """Returns the run folder, the same on all processes; by default one named after the time.

    Args:
        output_dir: `--output-dir`.

    Raises:
        ConfigError: The flag is empty, or no text.
    """
    if output_dir == "":
        raise ConfigError("--output-dir: empty, got ''; give a folder, or leave it out")
    if not (
        output_dir or ""
    ).isprintable():  # half a surrogate pair, which TensorBoard cannot write, included
        raise ConfigError(f"--output-dir: not a printable name, got {output_dir!r}; give another folder")
    return Path(from_first(lambda: output_dir or f"runs/{datetime.now():%Y%m%d-%H%M%S}"))


@contextmanager
def held_folder(folder: Path, warn: Callable[[str], None]) -> Iterator[None]:
    """Keeps other runs out of the folder as long as this is entered. Every process must call this.

    Args:
        folder: The run folder.
        warn: Writes a line to the log.

    Raises:
        ConfigError: Another run has the folder, or it cannot be written to.
    """
    with ExitStack() as held:
        from_first(lambda: held.enter_context(FolderLock(folder, warn)) and None)
        yield


def tensorboard_folder(settings: TensorBoard, folder: Path) -> Path:
    """Returns where TensorBoard events go: into the run folder unless the DeepSpeed JSON says otherwise.

    Args:
        settings: Section `tensorboard`.
        folder: The run folder.
    """
    if settings.output_path is None and settings.job_name is None:
        return folder / "tensorboard"
    return Path(settings.output_path or folder / "tensorboard") / (settings.job_name or "")


def refuse_used_folder(folder: Path) -> None:
    """Refuses to start a new run in the folder of another. Every process must call this.

    Raises:
        ConfigError: The folder holds a run.
    """
    if from_first((folder / SETTINGS).exists):
        raise ConfigError(
            f"--output-dir: '{folder}' already holds a run; give another folder, "
            "or --resume auto to go on with it"
        )


def fingerprint(data: TrainingData) -> dict[str, Any]:
    """Describes prepared data so that a resumed run notices other values in the same columns."""
    fitted = data.preprocessor.model_dump_json() + data.bounds.model_dump_json()
    return {
        "series": len(data.table.series_keys),
        "windows": {split: len(data.windows[split]) for split in ("train", "validation")},
        "scalers": hashlib.sha256(fitted.encode()).hexdigest()[:16],
    }


def write_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Saves the resolved settings of a run.

    Raises:
        ConfigError: The folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--output-dir: cannot write to '{folder}', got {error.strerror}; give another folder"
        ) from None


def check_same_run(folder: Path, settings: dict[str, Any]) -> tuple[str, ...]:
    """Compares the settings of a resumed run with those it was started with.

    Args:
        folder: The run folder.
        settings: What `write_settings` would save now.

    Returns:
        Lines about changes that are carried out.

    Raises:
        ConfigError: Something changed that the checkpoint depends on; every such key is named.
    """
    file = folder / SETTINGS
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--resume: '{file}' is not readable, got {error}; give the run's own folder"
        ) from None
    now = json.loads(json.dumps(settings))  # tuples as lists, as in the file
    changed = [change for change in _differences(before, now, "") if not _is_shown_elsewhere(change[0])]
    serious = [line for key, line in changed if _must_stay(key)]
    if serious:
        raise ConfigError(
            f"--resume: settings or data differ from the run in '{folder}', got {'; '.join(serious)}; "
            "set them back, or start a new run"
        )
    return tuple(line for _, line in changed)


def _must_stay(key: str) -> bool:
    """Whether a dotted key is one of those that must stay, lies below one, or holds one."""
    return any(f"{key}.".startswith(f"{name}.") or f"{name}.".startswith(f"{key}.") for name in MUST_STAY)


def _is_shown_elsewhere(key: str) -> bool:
    """Whether a change of this key says nothing new."""
    return key.split(".")[0] == SHOWN_ELSEWHERE and key != f"{SHOWN_ELSEWHERE}.parquet"


def _differences(before: Any, now: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yields the dotted key and a line for every value that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted(before.keys() | now.keys()):
            yield from _differences(before.get(name), now.get(name), f"{key}.{name}".lstrip("."))
    elif before != now:
        yield key, f"{key}: {json.dumps(before)} -> {json.dumps(now)}"
