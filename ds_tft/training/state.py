"""Everything the loop knows besides the engine, in one place, so that a checkpoint can hold all of it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ds_tft.errors import ConfigError

STATE_VERSION = 1


@dataclass(slots=True)
class TrainingState:
    """Position in the run and what was learnt about it so far. Plain types only."""

    step: int = 0
    """Optimizer updates done, skipped ones included."""
    epoch: int = 0
    update: int = 0
    """Updates done within the epoch."""
    best_loss: float | None = None
    best_step: int | None = None
    validations_without_improvement: int = 0
    nonfinite_validations: int = 0
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    stopped_early: bool = False
    unlogged_losses: list[float] = field(default_factory=list)
    """Losses of the updates since the last log line, over all processes, as of the checkpoint."""

    def record_validation(self, loss: float) -> bool:
        """Takes in a validation loss.

        Args:
            loss: Mean pinball loss. A non-finite loss never counts as an improvement.

        Returns:
            True when this is the best so far.
        """
        if not math.isfinite(loss):
            self.nonfinite_validations += 1
        if math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss):
            self.best_loss, self.best_step = loss, self.step
            self.validations_without_improvement = 0
            return True
        self.validations_without_improvement += 1
        return False

    def to_dict(self) -> dict[str, Any]:
        """Returns plain types, with the version of this record."""
        return {"version": STATE_VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, raw: dict[str, Any], where: str) -> TrainingState:
        """Rebuilds the state that `to_dict` gave.

        Raises:
            ConfigError: When fields are missing or unknown, or the version is another one.
        """
        known = {one.name for one in fields(cls)}
        if raw.get("version") != STATE_VERSION or set(raw) - {"version"} != known:
            odd = sorted((set(raw) - {"version"}) ^ known)
            raise ConfigError(
                f"{where}: training state of version {raw.get('version')} does not fit, "
                f"got differing fields {odd}; "
                f"resume with the release that wrote it (version {STATE_VERSION} is read here)"
            )
        return cls(**{name: raw[name] for name in known})
