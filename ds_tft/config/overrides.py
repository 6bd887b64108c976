"""Values from the command line over those of a file, given by `--set section.key=value` or a flag."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from ds_tft.config.json_reader import JsonSyntaxError, dotted, parse_json, shortened
from ds_tft.config.validation import default_at
from ds_tft.errors import ConfigError

DEEPSPEED_PREFIX = "deepspeed"


@dataclass(frozen=True, slots=True)
class Override:
    """One value from the command line."""

    path: tuple[str, ...]
    value: Any
    origin: str
    """The flag that gave it, as messages name it."""


def parse_set(text: str) -> Override:
    """Reads the argument of `--set`: a dotted path, `=`, and JSON or a bare word.

    Raises:
        ConfigError: There is no `=`, no path or no value, or the value starts like JSON and is not.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: no '='; write --set section.key=value")
    path = tuple(key.strip().split("."))
    if not all(path):
        raise ConfigError(f"--set {text}: a name is missing before '='; write --set section.key=value")
    if not value.strip():
        raise ConfigError(f"--set {text}: no value after '='; write null for none")
    return Override(path, _value(value.strip(), f"--set {key}"), "--set")


def for_run(overrides: Sequence[str]) -> list[Override]:
    """The `--set` arguments that concern the run JSON."""
    return [item for item in map(parse_set, overrides) if item.path[0] != DEEPSPEED_PREFIX]


def for_deepspeed(overrides: Sequence[str]) -> list[Override]:
    """The `--set deepspeed.` arguments, their paths those of the DeepSpeed JSON.

    Raises:
        ConfigError: `--set deepspeed=` names no key.
    """
    found = [item for item in map(parse_set, overrides) if item.path[0] == DEEPSPEED_PREFIX]
    for item in found:
        if len(item.path) == 1:
            raise ConfigError("--set deepspeed: names no key; write --set deepspeed.gradient_clipping=0.5")
    return [Override(item.path[1:], item.value, "--set deepspeed") for item in found]


def merged(raw: Mapping[str, Any], overrides: Sequence[Override]) -> dict[str, Any]:
    """A copy of `raw` with every override in its place.

    Raises:
        ConfigError: Two overrides give one key different values, or a path leads into a single value.
    """
    _refuse_conflicts(overrides)
    result: dict[str, Any] = copy.deepcopy(dict(raw))
    for override in overrides:
        section = result
        for depth, step in enumerate(override.path[:-1], start=1):
            if section.get(step) is None:
                section[step] = {}
            section = section[step]
            if not isinstance(section, dict):
                parent = dotted(override.path[:depth])
                raise ConfigError(
                    f"{override.origin}: {dotted(override.path)}: '{parent}' is no section, "
                    f"got {shortened(section)}; set '{parent}' itself"
                )
        section[override.path[-1]] = copy.deepcopy(override.value)
    return result


def origins(overrides: Sequence[Override]) -> dict[tuple[str | int, ...], str]:
    """Which paths came from which flag."""
    return {override.path: override.origin for override in overrides}


def changes(
    model: type[BaseModel], raw: Mapping[str, Any], overrides: Sequence[Override], where: str
) -> list[str]:
    """One line for each value that an override changed: `training.epochs: 20 (run.json) -> 50 (--epochs)`."""
    lines = {}
    for override in overrides:
        before, source = _before(model, raw, override.path, where)
        if not _same(before, override.value):
            old = "unset" if before is PydanticUndefined else shortened(before)
            new = f"{shortened(override.value)} ({override.origin.split()[0]})"
            lines[override.path] = f"{dotted(override.path)}: {old} ({source}) -> {new}"
    return list(lines.values())


def _value(text: str, where: str) -> Any:
    """JSON if it is, otherwise a bare word."""
    try:
        return parse_json(text, where)
    except JsonSyntaxError:
        if text[0] in '[{"':  # meant as JSON
            raise
    return text


def _refuse_conflicts(overrides: Sequence[Override]) -> None:
    """Refuses one key given twice on the command line with different values."""
    seen: dict[tuple[str, ...], Override] = {}
    for override in overrides:
        first = seen.setdefault(override.path, override)
        if not _same(first.value, override.value):
            values = f"{shortened(first.value)} and {shortened(override.value)}"
            flags = dict.fromkeys((first.origin, override.origin))
            raise ConfigError(f"{', '.join(flags)}: {dotted(override.path)}: got both {values}; give it once")


def _before(model: type[BaseModel], raw: Any, path: tuple[str, ...], where: str) -> tuple[Any, str]:
    """The value that an override replaces and where it stood."""
    value = raw
    for step in path:
        if not isinstance(value, dict) or step not in value:
            return default_at(model, raw, path), "default"
        value = value[step]
    return value, where


def _same(before: Any, after: Any) -> bool:
    """True if both say the same; `"close"` and `["close"]` do, 1 and true do not."""
    return json.dumps(_listed(before), default=repr) == json.dumps(_listed(after), default=repr)


def _listed(value: Any) -> list[Any]:
    """A single value as a list of one."""
    return value if isinstance(value, list) else [value]
