"""What is left of a training once its engine is gone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ds_tft.training.recent import Timing
from ds_tft.training.state import TrainingState


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingOutcome:
    """How far a training went, and how fast."""

    folder: Path
    """Where it wrote."""
    state: TrainingState
    timing: Timing
    first_step: int
    """Step that this process began at."""
