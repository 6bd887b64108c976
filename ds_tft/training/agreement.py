"""What the processes of a run settle together, so that all of them go on or all of them stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed

from ds_tft.errors import UserError

T = TypeVar("T")


def from_first(make: Callable[[], T]) -> T:
    """Runs something in the first process only, and gives every process its result, or its error.

    Args:
        make: What to run. Every process must call this; the result is pickled.

    Raises:
        UserError: What `make` raised, in every process.
    """
    if _is_alone():
        return make()
    outcome: list[Any] = [None, None]
    if torch.distributed.get_rank() == 0:
        try:
            outcome[0] = make()
        except UserError as error:
            outcome[1] = error
    torch.distributed.broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    result: T = outcome[0]
    return result


def first_error(error: UserError | None) -> UserError | None:
    """Returns the error of the first process that has one, the same in every process; None where none has."""
    if _is_alone():
        return error
    errors: list[UserError | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(errors, error)
    return next((one for one in errors if one is not None), None)


def largest(number: int, device: torch.device) -> int:
    """Returns the largest number that a process gives, the same in every process.

    Args:
        number: Of this process.
        device: The device that the processes communicate from.
    """
    if _is_alone():
        return number
    tensor = torch.tensor([number], device=device)
    torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX)
    return int(tensor.item())


def _is_alone() -> bool:
    """Whether there is only this process."""
    return not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1
