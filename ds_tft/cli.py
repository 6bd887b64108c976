"""What the launch scripts share: errors for users become one line and exit code 2."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable

from ds_tft.errors import ConfigError, Stopped, UserError
from ds_tft.memory.out_of_memory import is_out_of_memory

USER_ERROR_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130
"""What a shell gives a program ended by Ctrl-C."""
GRACE_SECONDS = 10.0
"""How long another process leaves the first one to say what is wrong, before it speaks itself."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Reasons of the system for not writing any more."""


def run_command(command: Callable[[], None], grace_seconds: float = GRACE_SECONDS) -> int:
    """Runs `command` and returns the exit code.

    A `UserError` is printed as one line, and so are memory or a disk that ran out. All processes of a run usually meet
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
    except Stopped as stopped:
        if _rank() == 0:
            print(stopped, file=sys.stderr, flush=True)
        else:
            time.sleep(grace_seconds)
        return stopped.exit_code
    except Exception as caught:
        error = _as_user_error(caught)
        if error is None:
            raise
        place = f" in process {_rank()}" if _rank() else ""
        if place:
            time.sleep(grace_seconds)
        line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(str(error).split()))
        print(f"error{place}: {line}", file=sys.stderr, flush=True)
        return USER_ERROR_EXIT_CODE
    return 0


def _rank() -> int:
    """Number of this process among those of the run."""
    return int(os.environ.get("RANK", "0"))


def _as_user_error(error: Exception) -> UserError | None:
    """Memory or a disk that ran out as an error of the user's; None for a bug."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, OSError) and error.errno in FULL:
        where = f"'{error.filename}'" if error.filename else "a file"
        return ConfigError(
            f"disk: cannot write {where}, got {error.strerror}; make room "
            "(a training run goes on with --resume auto)"
        )
    if is_out_of_memory(error):
        first = str(error).split("\n")[0]
        return ConfigError(
            f"memory: there is not enough, got {first!r}; lower train_micro_batch_size_per_gpu, "
            "training.evaluation_batch_size (--batch-size in a forecast), window.encoder_length or "
            "model.hidden_size"
        )
    return None
