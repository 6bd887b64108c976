"""Whether code runs for the first time or again in backward, for modules that must know.

A block that is recomputed runs twice per step. Its random numbers repeat, and its buffers are private copies
of what they were (`module_state.py`): a moving average in a buffer needs no care, and must be updated in the
second run as in the first. What lives elsewhere, such as a count in an attribute, is moved once by asking
`is_recomputing()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class _Recompute(NamedTuple):
    """What runs again."""

    saves_only: bool


# States of the running thread, like torch's grad mode; only the contexts below set them.
_WITHIN_BLOCK: ContextVar[bool] = ContextVar("within a recomputed block", default=False)
_RUNNING: ContextVar[_Recompute | None] = ContextVar("running recompute", default=None)


def is_recomputing() -> bool:
    """True while a block runs again in backward."""
    return _RUNNING.get() is not None


def is_within_block() -> bool:
    """True while a recomputed block runs, be it for the first time or again."""
    return _WITHIN_BLOCK.get()


def only_saved_tensors_count() -> bool:
    """True while a block runs again whose last operation may leave its result open.

    Backward needs the tensors that operations save, and not the block's results. So an operation that a block
    ends with saves its inputs, and need not work on them.
    """
    running = _RUNNING.get()
    return running is not None and running.saves_only


@contextmanager
def within_block() -> Iterator[None]:
    """Marks what runs inside as part of a block that is recomputed as a whole."""
    token = _WITHIN_BLOCK.set(True)
    try:
        yield
    finally:
        _WITHIN_BLOCK.reset(token)


@contextmanager
def recomputing(*, saves_only: bool = False) -> Iterator[None]:
    """Marks what runs inside as a repetition.

    Args:
        saves_only: Whether the block ends with an operation that asks `only_saved_tensors_count()`.
    """
    token = _RUNNING.set(_Recompute(saves_only))
    try:
        yield
    finally:
        _RUNNING.reset(token)
