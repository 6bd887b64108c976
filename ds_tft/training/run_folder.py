"""The run folder: where everything of a run is kept, and whether a resumed run still is that run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import torch.distributed

from ds_tft.errors import ConfigError
from ds_tft.training.environment import ProcessPlace

SETTINGS = "settings.json"
MUST_STAY = ("data", "window", "split", "scaling", "model", "layout")
"""Sections that decide what the checkpoint's numbers mean."""


def choose_folder(output_dir: str | None, place: ProcessPlace) -> Path:
    """Returns the run folder, the same on all processes; by default one named after the time.

    Args:
        output_dir: `--output-dir`.
        place: This process among those of the run.
    """
    chosen: list[Any] = [output_dir or f"runs/{datetime.now():%Y%m%d-%H%M%S}"]
    if place.world_size > 1:
        torch.distributed.broadcast_object_list(chosen)
    return Path(chosen[0])


def refuse_used_folder(folder: Path) -> None:
    """Refuses to start a new run in the folder of another.

    Raises:
        ConfigError: The folder holds a run.
    """
    if (folder / SETTINGS).exists():
        raise ConfigError(
            f"--output-dir: '{folder}' already holds a run; give another folder, or --resume auto to go on with it"
        )


def write_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Saves the resolved settings of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


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
    changed = list(_differences(before, now, ""))
    serious = [line for key, line in changed if key.split(".")[0] in MUST_STAY]
    if serious:
        raise ConfigError(
            f"--resume: settings differ from the run in '{folder}', got {'; '.join(serious)}; "
            "set them back, or start a new run"
        )
    return tuple(line for _, line in changed)


def _differences(before: Any, now: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yields the dotted key and a line for every value that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted(before.keys() | now.keys()):
            yield from _differences(before.get(name), now.get(name), f"{key}.{name}".lstrip("."))
    elif before != now:
        yield key, f"{key}: {json.dumps(before)} -> {json.dumps(now)}"
