"""Whether tensors are only allocated and nothing is computed, for code that repeats itself.

A dry run (`plan/dry_run.py`) finds out what memory a step takes. What is done many times alike need then be
done once, and pieces of work for several threads are done in the one thread that the dry run sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# A state of the running thread, like torch's grad mode; only the context below sets it.
_RUNNING: ContextVar[bool] = ContextVar("dry run", default=False)


def is_dry_run() -> bool:
    """True while nothing is computed."""
    return _RUNNING.get()


@contextmanager
def dry_running() -> Iterator[None]:
    """Marks what runs inside as a dry run."""
    token = _RUNNING.set(True)
    try:
        yield
    finally:
        _RUNNING.reset(token)
