"""What a data set consists of: the role of every column, settled at training and saved with the model."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class TimeKind(StrEnum):
    """What the time column holds."""

    NAIVE = "naive"  # timestamps or dates without a zone
    ZONED = "zoned"  # timestamps with a zone; kept in UTC
    INDEX = "index"  # integers that count steps


class Roles(BaseModel):
    """The role of each column that is used. A column has one role.

    Order matters: it is the order of the model's variables.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    time: str
    series: tuple[str, ...]
    target: tuple[str, ...]
    static_reals: tuple[str, ...] = ()
    static_categories: tuple[str, ...] = ()
    known_reals: tuple[str, ...] = ()
    known_categories: tuple[str, ...] = ()
    observed_reals: tuple[str, ...] = ()
    observed_categories: tuple[str, ...] = ()
    weight: str | None = None

    def real_columns(self) -> tuple[str, ...]:
        """Columns read as numbers, targets and weight included."""
        weight = () if self.weight is None else (self.weight,)
        return self.target + self.static_reals + self.known_reals + self.observed_reals + weight

    def category_columns(self) -> tuple[str, ...]:
        """Columns read as categories, the series id not included."""
        return self.static_categories + self.known_categories + self.observed_categories
