"""Tables in Markdown, ready for a page, and whether bounds are met."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

WIDTH = 240  # a row stays on its line, however narrow the terminal


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table; all columns but the first are numbers."""
    table = Table(box=box.MARKDOWN)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=WIDTH, markup=False, highlight=False).print(table)


def verdict(value: float, bound: float | None) -> str:
    """Says whether a value is within its bound; nothing where there is none."""
    if bound is None:
        return ""
    return "pass" if value <= bound else "MISS"
