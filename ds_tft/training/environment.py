"""What the process needs before torch and DeepSpeed are imported. Standard library only, to be cheap."""

from __future__ import annotations

import os
import warnings
from collections.abc import MutableMapping
from dataclasses import dataclass

SINGLE_PROCESS = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """Where this process stands among those of the run."""

    rank: int
    local_rank: int
    world_size: int

    @property
    def is_first(self) -> bool:
        """True for the one process that writes and prints."""
        return self.rank == 0


def prepare_environment(environ: MutableMapping[str, str] = os.environ) -> ProcessPlace:
    """Fills in what a launcher would have set and leaves alone what it has set.

    Args:
        environ: The process environment.

    Returns:
        The place of this process.
    """
    for name, value in SINGLE_PROCESS.items():
        environ.setdefault(name, value)
    environ.setdefault("MASTER_ADDR", "127.0.0.1")
    # A single process needs no meeting point: port 0 lets two runs start at once on one machine.
    if environ["WORLD_SIZE"] == "1":
        environ["MASTER_PORT"] = "0"
    # Nothing here is compiled, and this keeps torch._inductor (2 CPU seconds) from being imported.
    environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    # Threads that wait for each other by spinning make a step 2 to 5 times slower as soon as anything else
    # runs on the machine; sleeping costs next to nothing where nothing does.
    environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # The profiler, which traces memory, warns about tensors that are older than itself: there always are some.
    environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # One line per collective in torch 2.13, about functions that DeepSpeed calls.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.c10d_logger")
    warnings.filterwarnings("ignore", category=FutureWarning, message=r".*_tensor.* is deprecated")
    return ProcessPlace(
        rank=int(environ["RANK"]),
        local_rank=int(environ["LOCAL_RANK"]),
        world_size=int(environ["WORLD_SIZE"]),
    )
