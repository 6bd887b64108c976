"""pydantic's error types in plain words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from pydantic_core import ErrorDetails, PydanticUndefined

from ds_tft.config.json_reader import parse_json, shortened
from ds_tft.errors import ConfigError

PLAIN: Mapping[str, str] = MappingProxyType(
    {
        "int_type": "an integer",
        "int_from_float": "an integer",
        "float_type": "a number",
        "bool_type": "true or false",
        "string_type": "text in double quotes",
        "tuple_type": "a list",
        "list_type": "a list",
        "dict_type": "an object",
        "model_type": "an object",
        "model_attributes_type": "an object",
        "finite_number": "a finite number",
        "greater_than_equal": "{ge} or more",
        "greater_than": "a number above {gt}",
        "less_than_equal": "{le} or less",
        "less_than": "a number below {lt}",
        "literal_error": "{expected}",
        "union_tag_invalid": "{expected_tags}",
        "too_long": "a list of {max_length}",
    }
)
SCALARS = ("int_type", "float_type", "bool_type")


def expectation(error: ErrorDetails) -> str:
    """Says what a value should have been."""
    words = PLAIN.get(error["type"])
    if words is None:
        return error["msg"][:1].lower() + error["msg"][1:]
    context = {name: _number(value) for name, value in error.get("ctx", {}).items()}
    return words.format(**context)


def remedy(error: ErrorDetails, value: Any, default: Any) -> str:
    """Says what to do about `value`, with its leading `; `, or nothing.

    Args:
        error: What pydantic found.
        value: The JSON value at fault.
        default: Default of the setting to name if there is no better advice; `None` and unset are not named.
    """
    if isinstance(value, str) and error["type"] in SCALARS:
        unquoted = _unquoted(value)
        if isinstance(unquoted, bool) == (error["type"] == "bool_type") and unquoted is not None:
            return f"; write {shortened(unquoted)}"
    if isinstance(value, str) and error["type"] in ("literal_error", "union_tag_invalid"):
        near = _nearest(value, expectation(error))
        if near:
            return f"; did you mean '{near}'?"
    if isinstance(value, int | float) and error["type"] == "string_type":
        return f"; write {shortened(shortened(value))}"
    if default is None or default is PydanticUndefined or isinstance(default, dict):
        return ""
    return f"; the default is {shortened(default)}"


def _unquoted(text: str) -> int | float | bool | None:
    """The number or truth value inside quotes, if that is what is there."""
    try:
        value = parse_json(text.lower() if text in ("True", "False") else text, "")
    except ConfigError:
        return None
    return value if isinstance(value, int | float) else None


def _nearest(text: str, expected: str) -> str | None:
    """The choice nearest to `text`, whatever its case."""
    choices = {choice.lower(): choice for choice in re.findall(r"'([^']*)'", expected)}
    near = get_close_matches(text.lower(), choices, n=1)
    return choices[near[0]] if near else None


def _number(value: Any) -> Any:
    """Writes 1.0 as 1, as a JSON's author would."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
