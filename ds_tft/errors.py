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
