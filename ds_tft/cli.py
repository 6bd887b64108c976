"""What the launch scripts share: errors for users become one line and exit code 2."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from ds_tft.errors import ConfigError, UserError
from ds_tft.memory.out_of_memory import is_out_of_memory

USER_ERROR_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130
"""What a shell gives a program ended by Ctrl-C."""
GRACE_SECONDS = 10.0
"""How long another process leaves the first one to say what is wrong, before it speaks itself."""


def run_command(command: Callable[[], None], grace_seconds: float = GRACE_SECONDS) -> int:
    """Runs `command` and returns the exit code.

    A `UserError` is printed as one line, and so is memory that ran out. All processes of a run usually meet
    the same one: the first prints it and leaves, upon which the launcher ends the others. They wait for that,
    since the launcher would end the first process too if another left before it has printed. Anything else is
    a bug and keeps its traceback.

    Args:
        command: What to run.
        grace_seconds: How long processes other than the first wait before they print an error of their own.
    """
    try:
        command()
    except KeyboardInterrupt:
        print("interrupted; a training run goes on with --resume auto", file=sys.stderr, flush=True)
        return INTERRUPTED_EXIT_CODE
    except Exception as caught:
        error = _as_user_error(caught)
        if error is None:
            raise
        rank = os.environ.get("RANK", "0")
        place = "" if rank == "0" else f" in process {rank}"
        if place:
            time.sleep(grace_seconds)
        line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(str(error).split()))
        print(f"error{place}: {line}", file=sys.stderr, flush=True)
        return USER_ERROR_EXIT_CODE
    return 0


def _as_user_error(error: Exception) -> UserError | None:
    """Memory that ran out as an error of the user's; None for a bug."""
    if isinstance(error, UserError):
        return error
    if is_out_of_memory(error):
        first = str(error).split("\n")[0]
        return ConfigError(
            f"memory: there is not enough, got {first!r}; lower train_micro_batch_size_per_gpu, "
            "training.evaluation_batch_size (--batch-size in a forecast), window.encoder_length or "
            "model.hidden_size"
        )
    return None
