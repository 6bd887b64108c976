"""The columns that the run JSON names: each must exist, fit its role and have no other."""

from __future__ import annotations

import re

from ds_tft.config.run import DataSettings
from ds_tft.data.column_types import ColumnKind
from ds_tft.data.parquet import ParquetSource
from ds_tft.errors import DataError, suggestion

# Role, as the setting of that name in `data`, and what its columns must be readable as.
ROLE_KINDS: dict[str, ColumnKind | None] = {
    "time": ColumnKind.TIME,
    "series": ColumnKind.CATEGORY,
    "target": ColumnKind.REAL,
    "static_reals": ColumnKind.REAL,
    "static_categories": ColumnKind.CATEGORY,
    "known_reals": ColumnKind.REAL,
    "known_categories": ColumnKind.CATEGORY,
    "observed_reals": ColumnKind.REAL,
    "observed_categories": ColumnKind.CATEGORY,
    "weight": ColumnKind.REAL,
    "ignored": None,
}
_MARKET_WORDS = {"open", "high", "low", "close", "volume", "price", "vwap", "bid", "ask"}


def given_roles(source: ParquetSource, settings: DataSettings) -> dict[str, str]:
    """Returns the role of every column that the settings name, in the order of the settings.

    Raises:
        DataError: A column does not exist, cannot be read in its role, or is named twice.
    """
    roles: dict[str, str] = {}
    for role, kind in ROLE_KINDS.items():
        for name in _named(getattr(settings, role)):
            if name not in source.columns:
                raise _absent(f"data.{role}", name, source)
            if name in roles:
                raise _twice(name, role, roles[name])
            refusal = None if kind is None else source.columns[name].refusal(kind)
            if refusal is not None:
                raise DataError(f"data.{role}: {refusal}")
            roles[name] = role
    return roles


def bar_columns(source: ParquetSource, settings: DataSettings, given: dict[str, str]) -> tuple[str, ...]:
    """Returns the columns that `features: "ohlcv"` reads: open, high, low, close and, unless null, volume.

    Raises:
        DataError: One of them does not exist, does not hold numbers, or is named in `data.ignored`.
    """
    if settings.features != "ohlcv":
        return ()
    named = {field: getattr(settings.bars, field) for field in type(settings.bars).model_fields}
    bars = {field: name for field, name in named.items() if name is not None}
    for field, name in bars.items():
        if name not in source.columns and field == "volume":
            raise DataError(
                f"data.bars.volume: no column {name!r} in {source.path}; "
                "name it, or set data.bars.volume to null for the set without volume"
            )
        if name not in source.columns:
            raise _absent(f"data.bars.{field}", name, source)
        if given.get(name) == "ignored":
            raise DataError(
                f"data.ignored: features 'ohlcv' reads column {name!r}; name it in one place only"
            )
        refusal = source.columns[name].refusal(ColumnKind.REAL)
        if refusal is not None:
            raise DataError(f"data.bars.{field}: {refusal}")
    return tuple(bars.values())


def leakage_notes(given: dict[str, str]) -> tuple[str, ...]:
    """Returns a warning when columns that look like market data are given as known for the horizon."""
    suspects = [name for name, role in given.items() if role.startswith("known_") and _is_market(name)]
    if not suspects:
        return ()
    return (
        "given as known for the horizon, which is leakage unless they truly are known in advance: "
        f"{', '.join(suspects)}",
    )


def words_of(name: str) -> list[str]:
    """Returns the words of a column name in lower case: `avgMax_temp` is avg, max, temp."""
    return re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())


def _is_market(name: str) -> bool:
    """Whether a name sounds like a market's price or volume."""
    return not _MARKET_WORDS.isdisjoint(words_of(name))


def _named(value: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The columns that a setting names."""
    return () if value is None else (value,) if isinstance(value, str) else value


def _absent(where: str, name: str, source: ParquetSource) -> DataError:
    """The error for a column that is not there."""
    return DataError(f"{where}: no column {name!r} in {source.path}; {suggestion(name, source.columns)}")


def _twice(name: str, role: str, other: str) -> DataError:
    """The error for a column that is named twice."""
    if role == other:
        return DataError(f"data.{role}: column {name!r} is named twice; name it once")
    return DataError(
        f"data.{role}: column {name!r} is also in data.{other}; a column has one role, choose one"
    )
