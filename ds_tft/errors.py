"""Errors that a user can mend. Anything else that escapes is a bug and shows its traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A mistake in what was given: one line, `where: what is wrong, got value; what to do`, exit code 2."""


class ConfigError(UserError):
    """A setting, in either JSON file or on the command line, that cannot be carried out."""


class DataError(UserError):
    """Input data that cannot be used as asked."""


class Stopped(Exception):  # noqa: N818
    """A run that was asked to leave before its end, and has saved what it had: one line, no traceback.

    Args:
        message: What stopped it, and how it goes on.
        exit_code: Of the process.
    """

    EXIT_CODE = 3
    """Where no signal has asked."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns the 'what to do' half of an unknown-name message.

    Args:
        name: What the user wrote.
        known: The names that would have been right.

    Returns:
        `did you mean 'x'?` when one is near, otherwise the list of known names.
    """
    known = list(known)
    close = get_close_matches(name, known, n=1) or [
        other for other in known if other.casefold() == name.casefold()
    ]
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(sorted(known))}"
