"""How reports are laid out: facts by name, tables, plain text where nobody watches."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ds_tft.console import PLAIN_WIDTH, SafeConsole


def print_report(blocks: Iterable[RenderableType], console: Console) -> None:
    """Prints blocks one below the other; plain text, 100 columns wide, where it is not a terminal."""
    content = Group(*blocks)
    plain = not console.is_terminal
    # Soft wrap keeps the console from breaking lines at a width of its own.
    console.print(_as_text(content) if plain else content, soft_wrap=plain)


def facts_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Returns a name and what there is to say, one pair a line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, line in facts:
        table.add_row(name, Text(line))
    return table


def note_facts(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the lines as facts, of which only the first has a name."""
    return [("Notes" if place == 0 else "", line) for place, line in enumerate(lines)]


def figures_table(plain: bool) -> Table:
    """Returns an empty table in the style of all tables of figures."""
    return Table(box=box.MARKDOWN if plain else box.SIMPLE_HEAD, show_edge=plain, pad_edge=plain)


def _as_text(content: Group) -> Text:
    """Lays the content out in plain text."""
    page = SafeConsole(file=io.StringIO(), width=PLAIN_WIDTH, color_system=None, force_terminal=False)
    with page.capture() as capture:
        page.print(content)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    kept = [line for line, before in zip(lines, ["", *lines], strict=False) if line or before]
    return Text("\n".join(kept))
