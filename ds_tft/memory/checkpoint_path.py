"""The machinery that runs a block again in backward: DeepSpeed's, or torch's own.

Both drop what the block's operations save, and run the block again when backward asks for the first of it.
Both are given a function without arguments that finds the block's inputs itself (`kept_inputs.py`), so that
neither has tensors of the caller to empty, and what is kept is the same.

DeepSpeed's is taken except with `cpu_checkpointing`: its offload empties the only copy on a CPU, and on CUDA
moves every tensor, however small, and counts none. It has nothing to do with inputs kept as INT8, which either
restores alike. DeepSpeed's refuses `torch.autograd.grad`, with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


class CheckpointPath(Enum):
    """Which machinery runs."""

    DEEPSPEED = "DeepSpeed's non_reentrant_checkpoint"
    OWN = "torch's non-reentrant checkpoint with offload of this package"


def choose_path(*, offload: bool) -> CheckpointPath:
    """Chooses the machinery.

    Args:
        offload: Whether inputs are moved to host memory (`cpu_checkpointing`).
    """
    return CheckpointPath.OWN if offload else CheckpointPath.DEEPSPEED


def run_checkpointed(path: CheckpointPath, run: Callable[[], None], device: torch.device) -> None:
    """Runs a function now, and again in backward.

    Args:
        path: Which machinery.
        run: The block. What it returns is not looked at: results are handed over by other means.
        device: Where it computes; the generator of this device repeats its numbers, as does the CPU's.
    """
    if path is CheckpointPath.OWN:
        # The tensor tells torch which device's generator to repeat.
        checkpoint(lambda _marker: run(), torch.empty(0, device=device), use_reentrant=False)
        return
    from deepspeed import checkpointing

    autocast = AutocastState.present(device)

    def run_as_now() -> tuple[Tensor, ...]:
        with autocast.again():
            run()
        return ()

    checkpointing.non_reentrant_checkpoint(run_as_now)


@dataclass(frozen=True, kw_only=True, slots=True)
class AutocastState:
    """Autocast of some device types; backward runs outside the context in which forward ran."""

    types: tuple[tuple[str, bool, torch.dtype], ...]
    """Device type, whether enabled, and to which type."""
    cache: bool

    @staticmethod
    def present(device: torch.device) -> AutocastState:
        """Returns the state now, of a device and of the CPU."""
        return AutocastState(
            types=tuple(
                (name, torch.is_autocast_enabled(name), torch.get_autocast_dtype(name))
                for name in sorted({device.type, "cpu"})
            ),
            cache=torch.is_autocast_cache_enabled(),
        )

    @contextmanager
    def again(self) -> Iterator[None]:
        """Restores the state while inside."""
        with ExitStack() as stack:
            for name, enabled, dtype in self.types:
                stack.enter_context(torch.autocast(name, dtype, enabled, self.cache))
            yield
