"""The run JSON with the command line laid over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ds_tft.config.json_reader import read_json
from ds_tft.config.overrides import Override, changes, for_run, merged, origins
from ds_tft.config.run import RunSettings
from ds_tft.config.validation import validate


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFlags:
    """Flags that stand for a setting of the run JSON. `None` and empty mean: not given."""

    targets: tuple[str, ...] = ()
    epochs: int | None = None
    seed: int | None = None

    def overrides(self) -> list[Override]:
        """The flags that were given."""
        given = (
            Override(("data", "target"), list(self.targets) or None, "--target"),
            Override(("training", "epochs"), self.epochs, "--epochs"),
            Override(("training", "seed"), self.seed, "--seed"),
        )
        return [flag for flag in given if flag.value is not None]


NO_FLAGS = RunFlags()


def read_run_settings(
    path: str | None, overrides: Sequence[str] = (), flags: RunFlags = NO_FLAGS
) -> tuple[RunSettings, list[str]]:
    """Reads what is to be learned: defaults, below the file, below the command line.

    Args:
        path: The run JSON (`--config`); `None` takes every default.
        overrides: Arguments of `--set`, such as `model.hidden_size=128`. Those that start with `deepspeed.`
            belong to the DeepSpeed JSON and are left to `read_deepspeed_settings`.
        flags: The flags with names of their own.

    Returns:
        The settings, and one line for each value that the command line changed.

    Raises:
        ConfigError: The file cannot be read, or a setting is unknown, of the wrong kind or out of range.
    """
    raw: dict[str, Any] = read_json(path) if path is not None else {}
    where = path or "run settings"
    given = for_run(overrides) + flags.overrides()
    settings = validate(RunSettings, merged(raw, given), where, origins(given))
    return settings, changes(RunSettings, raw, given, where)
