"""The page about the run JSON, made from the settings themselves.

`python -m ds_tft.config.reference > docs/run_config.md`
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ds_tft.config.run import RunSettings

Schema = Mapping[str, Any]

HEAD = """\
# The run JSON

`--config FILE` says what is learned: columns, windows, splits, scaling, model, training. How the model is
trained so that it fits is in [the DeepSpeed JSON](deepspeed_config.md). What the data settings do is told
in [data.md](data.md), what the loop does in [training.md](training.md).

This page is made by `python -m ds_tft.config.reference > docs/run_config.md`.

- Every key has a default; the file may be left out. Unknown keys are errors, and so are numbers in quotes.
- The file is strict JSON: no comments, no trailing commas, no key twice.
- A list of column names may be written as one name: `"target": "close"`.
- Any key can be set on the command line: `--set window.horizon=5`, `--set 'model.quantiles=[0.1, 0.5, 0.9]'`.
  `--target`, `--epochs` and `--seed` stand for `data.target`, `training.epochs` and `training.seed`.
- `settings.json` in the run folder holds all values of a run.
"""


def reference() -> str:
    """Returns the page in Markdown: one table per section, one row per key."""
    schema = RunSettings.model_json_schema()
    sections = _sections(schema, schema["$defs"], "")
    return "\n".join([HEAD, *("\n".join(_section(*section)) for section in sections)])


def _sections(schema: Schema, definitions: Schema, path: str) -> Iterator[tuple[str, Schema, Schema]]:
    """Dotted path, schema and definitions of every section below one, in the order of the settings."""
    for name, field in schema["properties"].items():
        if "$ref" in field:
            below = definitions[field["$ref"].rpartition("/")[2]]
            yield f"{path}{name}", below, definitions
            yield from _sections(below, definitions, f"{path}{name}.")


def _section(path: str, schema: Schema, definitions: Schema) -> Iterator[str]:
    """Lines of one section."""
    yield from (f"## `{path}`", "", _text(schema), "")
    yield from ("| key | type | default | meaning |", "|---|---|---|---|")
    for name, field in schema["properties"].items():
        if "$ref" in field:
            meaning = _text(definitions[field["$ref"].rpartition("/")[2]])
            anchor = f"{path}.{name}".replace(".", "")
            yield f"| `{name}` | object | | {meaning} See [`{path}.{name}`](#{anchor}). |"
        else:
            default = f"`{json.dumps(field['default'])}`"
            yield f"| `{name}` | {_kind(field)} | {default} | {_text(field)} |"
    yield ""


def _text(schema: Schema) -> str:
    """Description on one line."""
    return " ".join(schema["description"].split()).replace("|", "\\|")


def _kind(field: Schema) -> str:
    """What a value may be, in words."""
    if "anyOf" in field:
        return " or ".join(_kind(choice) for choice in field["anyOf"])
    if "enum" in field:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in field["enum"])
    if field["type"] == "array":
        return f"list of {_items(field['items'])}"
    words = {"string": "text", "boolean": "`true` or `false`", "null": "`null`"}
    return words.get(field["type"]) or f"{field['type']}{_range(field)}"


def _items(items: Schema) -> str:
    """What a list may hold, in words."""
    if "enum" in items:
        return _kind(items)
    return "column names" if items["type"] == "string" else f"{items['type']}s{_range(items)}"


def _range(field: Schema) -> str:
    """Limits of a number."""
    words = {
        "minimum": "{} or more",
        "exclusiveMinimum": "above {}",
        "maximum": "{} or less",
        "exclusiveMaximum": "below {}",
    }
    limits = [text.format(_limit(field[key])) for key, text in words.items() if key in field]
    return f" ({', '.join(limits)})" if limits else ""


def _limit(limit: float) -> str:
    """A limit as people write it."""
    return "2^63" if limit == 2**63 else f"{limit:g}"


if __name__ == "__main__":
    print(reference(), end="")
