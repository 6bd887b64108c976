"""`metrics.jsonl`: one JSON object per line, which any reader of strict JSON can take."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import NamedTuple, TextIO

Value = float | int | str | bool | None


class Rewound(NamedTuple):
    """What `MetricsFile.rewind` took out."""

    later: int
    """Records of later steps."""
    unreadable: int
    """Lines that are not whole records, such as one that a killed process had begun."""


class MetricsFile:
    """Appends records to a file, each written through at once.

    Args:
        path: The file; it is created with the first record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

    def append(self, step: int, values: Mapping[str, Value]) -> None:
        """Writes `{"step": step, ...values}`.

        JSON has no NaN or infinity: they become null, and the record names them under `nonfinite`.
        """
        record: dict[str, object] = {"step": step} | {name: _plain(value) for name, value in values.items()}
        nonfinite = [
            name for name, value in record.items() if isinstance(value, float) and not isfinite(value)
        ]
        record |= dict.fromkeys(nonfinite)
        if nonfinite:
            record["nonfinite"] = nonfinite
        if self._file is None:
            self._file = self.path.open("a", encoding="utf-8")
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()

    def rewind(self, step: int) -> Rewound:
        """Removes the records of steps after `step`, so that a resumed run writes each step once."""
        self.close()
        if not self.path.exists():
            return Rewound(0, 0)
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        steps = [_step_of(line) for line in lines]
        kept = [line for line, at in zip(lines, steps, strict=True) if at is not None and at <= step]
        # Replaced as a whole: a process killed here leaves the old file or the new one.
        draft = self.path.with_suffix(".rewound")
        draft.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        os.replace(draft, self.path)
        unreadable = steps.count(None)
        return Rewound(later=len(lines) - len(kept) - unreadable, unreadable=unreadable)

    def close(self) -> None:
        """Closes the file; another record opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _plain(value: Value) -> Value:
    """The value itself, or as a Python number where NumPy made it."""
    return value if value is None or isinstance(value, (bool, int, str)) else float(value)


def _step_of(line: str) -> int | None:
    """The step of a record, `None` where the line is not one."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) else None
