"""The role of every column of a source: as given in the run JSON, or inferred and explained."""

from __future__ import annotations

from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from ds_tft.config.run import DataSettings
from ds_tft.data.column_types import ColumnKind
from ds_tft.data.given_roles import ROLE_KINDS, bar_columns, given_roles, leakage_notes
from ds_tft.data.infer_columns import Decision, infer_columns
from ds_tft.data.infer_series import find_series, is_id_like, series_rows
from ds_tft.data.parquet import ParquetSource
from ds_tft.data.schema import Roles
from ds_tft.errors import DataError

_TIME_NAMES = {
    "time", "timestamp", "datetime", "date_time", "date", "ts", "ds", "time_idx", "time_index",
    "time_step", "timestep", "step", "period", "open_time", "bar_time",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnRole:
    """What became of one column of the source."""

    column: str
    type: str
    role: str
    """A field of `Roles`, `bars` or `ignored`."""
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class InferredRoles:
    """Roles of a source and how they came about."""

    roles: Roles
    reasons: tuple[ColumnRole, ...]
    """One for each column of the source, in its order."""
    notes: tuple[str, ...] = ()


def infer_roles(source: ParquetSource, settings: DataSettings) -> InferredRoles:
    """Settles the role of every column.

    What the settings name is taken as given; the rest follows `data.other_columns`. Columns known for the
    horizon are never inferred.

    Raises:
        DataError: A named column is absent, does not fit its role or has two, or the time column or the
            target cannot be inferred.
    """
    given = given_roles(source, settings)
    bars = bar_columns(source, settings, given)
    decided: dict[str, Decision] = {name: (role, "given") for name, role in given.items()}
    if settings.time is None:
        decided |= _time(source, decided.keys() | set(bars))
    if not settings.target:
        decided |= _target(source, settings, decided)
    decided |= {name: ("bars", "bars") for name in bars if name not in decided}
    notes = leakage_notes(given)
    if settings.series is None:
        series, found = _series(source, decided)
        decided |= series
        notes += found
    decided |= _others(source, settings, decided)
    return InferredRoles(
        roles=_roles(decided),
        reasons=tuple(
            ColumnRole(column=name, type=info.arrow_type, role=decided[name][0], reason=decided[name][1])
            for name, info in source.columns.items()
        ),
        notes=notes + _unsupported_note(source, decided),
    )


def roles_table(inferred: InferredRoles) -> Table:
    """Returns the roles as a table to print: column, type, role, reason."""
    table = Table("column", "type", "role", "reason")
    for row in inferred.reasons:
        table.add_row(*(escape(text) for text in (row.column, row.type, row.role, row.reason)))
    return table


def _time(source: ParquetSource, taken: set[str]) -> dict[str, Decision]:
    """The time column: the only one of that type, or the one whose name says so."""
    usable = [n for n, i in source.columns.items() if n not in taken and i.refusal(ColumnKind.TIME) is None]
    typed = [name for name in usable if source.columns[name].kind is ColumnKind.TIME]
    if len(typed) == 1:
        return {typed[0]: ("time", "the only column of times")}
    named = [name for name in typed or usable if name.casefold() in _TIME_NAMES]
    if len(named) == 1:
        return {named[0]: ("time", "named like a time")}
    candidates = named or typed
    if candidates:
        raise DataError(
            f"data.time: several columns could be the time, got {', '.join(candidates)}; name one"
        )
    raise DataError(
        f"data.time: {source.path} has no column of times, and none named like one; name it in data.time"
    )


def _target(
    source: ParquetSource, settings: DataSettings, decided: dict[str, Decision]
) -> dict[str, Decision]:
    """The target where none is given: the close of the bars."""
    if settings.features == "ohlcv":
        close = settings.bars.close
        if close in decided:
            raise DataError(
                f"data.target: the close of the bars, {close!r}, is the target unless one is named, "
                f"but it is in data.{decided[close][0]}; name a target or take it out there"
            )
        return {close: ("target", "close of the bars")}
    numeric = [n for n, i in source.columns.items() if i.kind is ColumnKind.REAL and n not in decided]
    raise DataError(
        f"data.target: no target given; name the column to forecast, of these: {', '.join(numeric) or 'none'}"
    )


def _series(
    source: ParquetSource, decided: dict[str, Decision]
) -> tuple[dict[str, Decision], tuple[str, ...]]:
    """The columns that name a series, and notes about the search."""
    time = _of_role(decided, "time")[0]
    candidates = [n for n, i in source.columns.items() if n not in decided and _is_candidate(source, n)]
    choice = find_series(source, time, candidates)
    reason = (
        "tells series apart" if len(choice.columns) == 1 else "tells series apart, together with the others"
    )
    return {name: ("series", reason) for name in choice.columns}, choice.notes


def _others(
    source: ParquetSource, settings: DataSettings, decided: dict[str, Decision]
) -> dict[str, Decision]:
    """Columns without a role so far."""
    names = [name for name in source.columns if name not in decided]
    mode = settings.other_columns
    if mode == "ignore" or (mode == "auto" and settings.features == "ohlcv"):
        return dict.fromkeys(names, ("ignored", "named in no role"))
    if not names:
        return {}
    return infer_columns(source, names, series_rows(source, _of_role(decided, "series")))


def _is_candidate(source: ParquetSource, name: str) -> bool:
    """Whether a column may name a series."""
    info = source.columns[name]
    return info.kind is not ColumnKind.UNSUPPORTED and is_id_like(info)


def _unsupported_note(source: ParquetSource, decided: dict[str, Decision]) -> tuple[str, ...]:
    """One note for columns whose type rules them out; the source has noted those that a file lacks."""
    skipped = [
        f"{name} ({info.arrow_type})"
        for name, info in source.columns.items()
        if info.reason is not None and info.missing_in is None and decided[name][1] == info.reason
    ]
    return (f"columns that cannot be used are ignored: {', '.join(skipped)}",) if skipped else ()


def _of_role(decided: dict[str, Decision], role: str) -> tuple[str, ...]:
    """Columns of one role, in the order in which they were decided."""
    return tuple(name for name, (decision, _) in decided.items() if decision == role)


def _roles(decided: dict[str, Decision]) -> Roles:
    """The roles as the data pipeline and the saved model keep them."""
    columns = {role: _of_role(decided, role) for role in ROLE_KINDS if role != "ignored"}
    weight = columns.pop("weight")
    return Roles(time=columns.pop("time")[0], weight=weight[0] if weight else None, **columns)
