"""Parsed JSON -> checked settings; what pydantic finds becomes one line in the words of the JSON's author."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticUndefined, to_jsonable_python

from ds_tft.config.expectations import expectation, remedy
from ds_tft.config.json_reader import dotted, shortened
from ds_tft.errors import ConfigError, suggestion

Model = TypeVar("Model", bound=BaseModel)
Path = tuple[str | int, ...]
A_NAME = "NAME"
"""Stands in paths for a name that the author of the JSON chooses."""
NOWHERE_ELSE: Mapping[Path, str] = MappingProxyType({})


def validate(
    model: type[Model], raw: Mapping[str, Any], where: str, origins: Mapping[Path, str] = NOWHERE_ELSE
) -> Model:
    """Checks parsed JSON against `model`.

    Args:
        model: Settings; frozen, strict, no extra keys.
        raw: The JSON object.
        where: What messages name as the place, usually the file.
        origins: Paths whose value came from elsewhere, and from where, such as a flag.

    Returns:
        The settings.

    Raises:
        ConfigError: For the first thing that is wrong: its place, what was expected, what was given.
    """
    try:
        return model.model_validate_json(json.dumps(raw), strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False)
    path, problems = _first_problem(raw, found)
    message = _message(model, raw, path, problems)
    raise ConfigError(located(path, message, where, origins))


def located(path: Path, message: str, where: str, origins: Mapping[Path, str] = NOWHERE_ELSE) -> str:
    """Puts a message's place in front of it: `run.json: model.dropout: ...`, or the flag instead of the file.

    A message about a section of which flags gave a part names both.
    """
    within = [origin for start, origin in origins.items() if path[: len(start)] == start]
    beneath = [origin for start, origin in origins.items() if start[: len(path)] == path]
    where = within[-1] if within else ", ".join(dict.fromkeys([where, *beneath]))
    return f"{where}: {dotted(path)}: {message}" if path else f"{where}: {message}"


def section_at(model: type[BaseModel], raw: Any, path: Path) -> type[BaseModel] | None:
    """Finds the section that `path` leads to; `None` where a single value or free-form JSON is."""
    steps = iter(path)
    for step in steps:
        if not isinstance(step, str) or step not in model.model_fields:
            return None
        annotation = model.model_fields[step].annotation
        raw = _member(raw, step)
        if _has_names(annotation):
            raw = _member(raw, next(steps, None))
        chosen = _choose(list(_sections(annotation)), raw)
        if chosen is None:
            return None
        model = chosen
    return model


def default_at(model: type[BaseModel], raw: Any, path: Path) -> Any:
    """Finds the default of the setting at `path`, as JSON; `PydanticUndefined` where it has none."""
    section = section_at(model, raw, path[:-1]) if path else None
    if section is None or path[-1] not in section.model_fields:
        return PydanticUndefined
    return to_jsonable_python(section.model_fields[str(path[-1])].get_default(call_default_factory=True))


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Sections named in an annotation, members of a union included."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    for part in getattr(annotation, "__args__", ()):
        yield from _sections(part)


def _has_names(annotation: Any) -> bool:
    """Whether a field holds sections under names of the author's."""
    return get_origin(annotation) is dict


def _member(raw: Any, step: str | int | None) -> Any:
    """A member of a JSON object, or `None`."""
    return raw.get(step) if isinstance(raw, dict) else None


def _choose(sections: Sequence[type[BaseModel]], raw: Any) -> type[BaseModel] | None:
    """Picks from a union the section whose `type` is the one written."""
    written = raw.get("type") if isinstance(raw, dict) else None
    for section in sections:
        if "type" in section.model_fields and section.model_fields["type"].default == written:
            return section
    return sections[0] if sections else None


def _first_problem(raw: Any, found: Sequence[ErrorDetails]) -> tuple[Path, list[ErrorDetails]]:
    """The first problem's path and pydantic's errors for it: one for each branch where it is in a union."""
    location = found[0]["loc"]
    common = location[: _first_tag(raw, location)]
    paths = [(_path(raw, error), error) for error in found if error["loc"][: len(common)] == common]
    # A branch that got further into the value is the one that was meant.
    deepest = max((path for path, _ in paths), key=len)
    return deepest, [error for path, error in paths if path == deepest]


def _first_tag(raw: Any, location: Path) -> int:
    """Index of the first step of a pydantic location that names a branch of a union."""
    value = raw
    for index, step in enumerate(location):
        if not _has(value, step):
            return index
        value = value[step]
    return len(location)


def _path(raw: Any, error: ErrorDetails) -> Path:
    """The path of an error into the JSON, without the branches of unions that pydantic lists in it."""
    path: Path = ()
    value, last = raw, len(error["loc"]) - 1
    for index, step in enumerate(error["loc"]):
        if _has(value, step):
            path, value = (*path, step), value[step]
        elif index == last and error["type"] == "missing" and isinstance(step, str):
            path = (*path, step)
    if error["type"].startswith("union_tag"):
        path = (*path, error["ctx"]["discriminator"].strip("'"))
    return path


def _has(value: Any, step: str | int) -> bool:
    """True if JSON `value` has a member or an item `step`."""
    if isinstance(value, dict):
        return step in value
    return isinstance(value, list) and isinstance(step, int) and step < len(value)


def _message(model: type[BaseModel], raw: Any, path: Path, problems: Sequence[ErrorDetails]) -> str:
    """What is wrong at `path`, and what to do."""
    first = problems[0]
    if first["type"] in ("value_error", "assertion_error"):
        return str(first["ctx"]["error"])
    if first["type"] == "extra_forbidden":
        return f"unknown key; {_right_name(model, raw, path)}"
    if first["type"] == "missing" and isinstance(first["loc"][-1], str):
        return "missing; it has no default"
    if first["type"] == "union_tag_not_found":
        return f"missing; write one of {_types_at(model, raw, path[:-1])}"
    value = _value_at(raw, path)
    return f"expected {_expected(problems)}, got {shortened(value)}{_remedies(model, raw, path, problems)}"


def _expected(problems: Sequence[ErrorDetails]) -> str:
    """What a value should have been, over all branches of a union."""
    absent = [index for index in (problem["loc"][-1] for problem in problems) if isinstance(index, int)]
    if problems[0]["type"] == "missing":
        return f"a list of {max(absent) + 1}"
    return ", or ".join(dict.fromkeys(expectation(problem) for problem in problems))


def _types_at(model: type[BaseModel], raw: Any, path: Path) -> str:
    """Names of the types that the section at `path` may have."""
    section = section_at(model, raw, path[:-1])
    annotation = section.model_fields[str(path[-1])].annotation if section else None
    return ", ".join(shortened(one.model_fields["type"].default) for one in _sections(annotation))


def _remedies(model: type[BaseModel], raw: Any, path: Path, problems: Sequence[ErrorDetails]) -> str:
    """What to do about a value: the most specific advice that any branch has, else the default."""
    default = default_at(model, raw, path)
    value = _value_at(raw, path)
    specific = [remedy(problem, value, None) for problem in problems]
    return next((text for text in specific if text), remedy(problems[0], value, default))


def _value_at(raw: Any, path: Path) -> Any:
    """The JSON value at `path`."""
    for step in path:
        raw = raw[step]
    return raw


def _right_name(model: type[BaseModel], raw: Any, path: Path) -> str:
    """Suggests what an unknown key was meant to be: a section that has it, or a name near it."""
    key = str(path[-1])
    section = section_at(model, raw, path[:-1])
    known = section.model_fields if section else {}
    homes = {(*place, key) for place, other in _all_sections(model) if key in other.model_fields}
    if path in homes:
        return f"another type has it, this one has: {', '.join(sorted(known))}"
    return f"did you mean '{dotted(homes.pop())}'?" if len(homes) == 1 else suggestion(key, known)


def _all_sections(model: type[BaseModel], place: Path = ()) -> Iterator[tuple[Path, type[BaseModel]]]:
    """Every section below `model` and where it is."""
    yield place, model
    for name, field in model.model_fields.items():
        for section in _sections(field.annotation):
            names = (A_NAME,) if _has_names(field.annotation) else ()
            yield from _all_sections(section, (*place, name, *names))
