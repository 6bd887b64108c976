"""Where commands write: a terminal as wide as it is, or plain text of a fixed width."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

PLAIN_WIDTH = 100
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class SafeConsole(Console):
    """A console on which names and values of the data are only ever text.

    A terminal would carry out an escape sequence in them; half a surrogate pair (a file name that is not
    UTF-8) could not be written at all.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Renders as `Console` does, without control characters in the text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(without_controls(segment.text), segment.style)


def make_console() -> Console:
    """Returns a console on standard output: as wide as the terminal, or 100 columns of plain text."""
    console = SafeConsole(highlight=False)
    if console.is_terminal:
        return console
    return SafeConsole(highlight=False, width=PLAIN_WIDTH, color_system=None)


def without_controls(text: str) -> str:
    """Takes control characters out of a text, those that change the direction of writing included."""
    return _CONTROLS.sub("", text)
