"""What the INT8 stage of a run came to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ds_tft.forecast.evaluate import Evaluation
from ds_tft.forecast.summary import Int8Summary


@dataclass(frozen=True, kw_only=True, slots=True)
class Int8Outcome:
    """The INT8 model, measured."""

    folder: Path
    """Of the export."""
    line: str
    """What it is, in a few words."""
    bytes: int
    """Of its weights."""
    evaluation: Evaluation | None
    """Errors over the test period; `None` where it has no windows."""

    @property
    def summary(self) -> Int8Summary:
        """What the closing summary shows."""
        evaluation = self.evaluation
        return Int8Summary(
            folder=str(self.folder),
            line=self.line,
            bytes=self.bytes,
            model=None if evaluation is None else evaluation.model,
            scaled=None if evaluation is None or evaluation.scaled is None else evaluation.scaled.model,
        )
