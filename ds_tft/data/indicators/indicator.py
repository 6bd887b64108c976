"""What is known of one indicator column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ds_tft.data.indicators.bars import PreparedBars
from ds_tft.data.indicators.rolling import Floats


@dataclass(frozen=True, slots=True)
class Indicator:
    """One column: its name, how it is defined, and the function that computes it."""

    name: str
    window: int
    """Rows of a run up to and with the first one that has a value; all rows before it are NaN."""
    formula: str
    compute: Callable[[PreparedBars], Floats]
    needs_volume: bool = False
