"""How measured values are written for people: 4 significant digits and a unit."""

from __future__ import annotations

import math
from collections.abc import Sequence

BYTE_UNITS = ((1, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"))
TIME_UNITS = ((1e-6, "us"), (1e-3, "ms"), (1, "s"), (60, "min"), (3600, "h"))


def format_number(value: float, digits: int = 4) -> str:
    """Writes a value with 4 significant digits: `1.235`, `12,350`, `1.699e-05`, `n/a` for NaN."""
    if math.isnan(value):
        return "n/a"
    if math.isinf(value) or value == 0:
        return f"{value:g}"
    rounded = float(f"{value:.{digits - 1}e}")
    if not 1e-4 <= abs(rounded) < 1e12:
        return f"{rounded:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}"


def format_bytes(count: float) -> str:
    """Writes a number of bytes in B, KiB, MiB or GiB, powers of 1024."""
    return _with_unit(count, BYTE_UNITS)


def format_seconds(seconds: float) -> str:
    """Writes a duration in us, ms, s, min or h."""
    if seconds == 0:
        return "0 s"
    return _with_unit(seconds, TIME_UNITS)


def _with_unit(value: float, units: Sequence[tuple[float, str]]) -> str:
    """Takes the largest unit that is not above the value."""
    size, unit = max((u for u in units if u[0] <= abs(value)), default=units[0])
    return f"{format_number(value / size)} {unit}"
