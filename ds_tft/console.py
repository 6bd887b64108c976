"""Where commands write: a terminal as wide as it is, or plain text of a fixed width."""

from __future__ import annotations

from rich.console import Console

PLAIN_WIDTH = 100


def make_console() -> Console:
    """Returns a console on standard output: as wide as the terminal, or 100 columns of plain text."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH, color_system=None)
