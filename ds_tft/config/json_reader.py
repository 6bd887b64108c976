"""Strict JSON. DeepSpeed would read its file as HJSON, which lets typing mistakes through."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ds_tft.errors import ConfigError, suggestion

LIMIT_BYTES = 4 * 2**20
DEEPEST = 50
LONGEST_INTEGER = 20
LONGEST_VALUE = 60
PYTHON_WORDS = MappingProxyType({"True": "true", "False": "false", "None": "null"})


class JsonSyntaxError(ConfigError):
    """Text that is not JSON at all, as opposed to JSON that says something unusable."""


def dotted(path: Sequence[str | int]) -> str:
    """Writes a path into JSON as `section.key[0]`; a key that is not a plain word is quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += "." * bool(text) + (step if re.fullmatch(r"[\w-]{1,60}", step) else shortened(step))
    return text


def shortened(value: object) -> str:
    """Writes a value as JSON, cut to a length that leaves a message readable."""
    text = json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."


def read_json(path: str) -> dict[str, Any]:
    """Reads one JSON object from a file.

    Raises:
        ConfigError: The file cannot be read, is not UTF-8, or is not one strict JSON object.
    """
    value = parse_json(_read_text(path), path)
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected an object, got {shortened(value)}; write settings inside {{ }}")
    return value


def parse_json(text: str, where: str) -> Any:
    """Parses one JSON value; unlike `json.loads`, without NaN, infinities and repeated keys.

    Args:
        text: JSON.
        where: What messages name as their place, a file or a flag.

    Raises:
        ConfigError: The text is not strict JSON.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_Pairs, parse_constant=_constant, parse_float=_float, parse_int=_integer
        )
    except json.JSONDecodeError as error:
        what = (error.msg[:1].lower() + error.msg[1:]).removesuffix(" at").removesuffix(" starting")
        place = f"{where}:{error.lineno}:{error.colno}"
        raise JsonSyntaxError(f"{place}: not valid JSON, {what}; {_hint(text, error)}") from None
    except RecursionError:
        raise ConfigError(f"{where}: {_too_deep()}") from None
    return _plain(value, where, ())


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The members of an object in order, repeated keys included."""

    members: list[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class _Unusable:
    """A token that is refused once its path is known."""

    text: str
    what: str


def _constant(text: str) -> _Unusable:
    """NaN, Infinity or -Infinity."""
    return _Unusable(text, "not a JSON value")


def _float(text: str) -> float | _Unusable:
    """Refuses a number that would become infinite."""
    value = float(text)
    return value if math.isfinite(value) else _Unusable(text, "too large a number")


def _integer(text: str) -> int | _Unusable:
    """Refuses digits beyond any setting before they are converted, which takes quadratic time."""
    return int(text) if len(text) <= LONGEST_INTEGER else _Unusable(text, "too large a number")


def _too_deep() -> str:
    return f"nested more than {DEEPEST} levels deep; is this the right file?"


def _plain(value: Any, where: str, path: tuple[str | int, ...]) -> Any:
    """Turns parsed tokens into plain lists and dicts, refusing what strict JSON does not have."""
    if len(path) > DEEPEST:
        raise ConfigError(f"{where}: {_too_deep()}")
    if isinstance(value, _Unusable):
        place = f"{where}: {dotted(path)}" if path else where
        raise ConfigError(f"{place}: {value.what}, got {value.text[:20]}; write a finite number or null")
    if isinstance(value, str):
        _check_text(value, where, path)
    if isinstance(value, list):
        return [_plain(item, where, (*path, index)) for index, item in enumerate(value)]
    if isinstance(value, _Pairs):
        return _object(value, where, path)
    return value


def _object(pairs: _Pairs, where: str, path: tuple[str | int, ...]) -> dict[str, Any]:
    """Builds an object from members that must have different keys."""
    members: dict[str, Any] = {}
    for key, item in pairs.members:
        _check_text(key, where, path)
        if key in members:
            raise ConfigError(f"{where}: {dotted((*path, key))}: key written twice; keep one of the two")
        members[key] = _plain(item, where, (*path, key))
    return members


def _check_text(text: str, where: str, path: tuple[str | int, ...]) -> None:
    """Refuses half of a surrogate pair, which no UTF-8 file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        place = f"{where}: {dotted(path)}" if path else where
        raise ConfigError(
            f"{place}: not a character, got {shortened(text)}; write the character itself"
        ) from None


def _read_text(path: str) -> str:
    """Reads a text file of moderate size."""
    try:
        with open(path, "rb") as file:
            content = file.read(LIMIT_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; {_neighbour(path)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a directory; give the JSON file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{shortened(path)}: cannot be read, {reason}; give a readable JSON file") from None
    if len(content) > LIMIT_BYTES:
        raise ConfigError(f"{path}: larger than {LIMIT_BYTES / 2**20:.0f} MiB; is this the right file?")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = content[error.start]
        raise ConfigError(
            f"{path}: not UTF-8 text, got byte 0x{byte:02x} at offset {error.start}; save it as UTF-8 JSON"
        ) from None
    if not text.strip():
        raise ConfigError(f"{path}: the file is empty; write {{}} for all defaults")
    return text


def _neighbour(path: str) -> str:
    """Names the JSON file that was probably meant."""
    folder = Path(path).parent
    if not folder.is_dir():
        return f"there is no directory '{folder}' either"
    names = [item.name for item in folder.glob("*.json")]
    return suggestion(Path(path).name, names) if names else f"there is no JSON file in '{folder}'"


def _hint(text: str, error: json.JSONDecodeError) -> str:
    """Says what to change, judged by the text around a syntax error."""
    before, after = text[: error.pos].rstrip(), text[error.pos :].lstrip()
    if re.match(r",\s*[}\]]", after) or (before.endswith(",") and after[:1] in ("}", "]")):
        return "remove the comma before the closing bracket"
    if re.match(r"//|/\*|#", after):
        return "remove the comment, JSON has none"
    if after.startswith("'"):
        return "use double quotes"
    word = re.match(r"(True|False|None)\b", after)
    if word:
        return f"write {PYTHON_WORDS[word[0]]}"
    if not after:
        return "the text ends too early; close every bracket and quote"
    if "control character" in error.msg or "Unterminated" in error.msg:
        return "close the quote on the same line"
    if error.msg.startswith("Extra data"):
        return "keep one JSON value per file"
    return _missing_mark(error.msg)


def _missing_mark(message: str) -> str:
    """Says which punctuation the parser waited for."""
    if "',' delimiter" in message:
        return "put a comma between two values, or close a bracket"
    if "':' delimiter" in message:
        return "put a colon between key and value"
    if "property name" in message:
        return "put keys in double quotes"
    return "write a number, true, false, null, an object, a list, or text in double quotes"
