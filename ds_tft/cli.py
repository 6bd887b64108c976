"""What the launch scripts share: errors for users become one line and exit code 2."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from ds_tft.errors import UserError

USER_ERROR_EXIT_CODE = 2
GRACE_SECONDS = 10.0
"""How long another process leaves the first one to say what is wrong, before it speaks itself."""


def run_command(command: Callable[[], None], grace_seconds: float = GRACE_SECONDS) -> int:
    """Runs `command` and returns the exit code.

    A `UserError` is printed as one line. All processes of a run usually meet the same one: the first prints
    it and leaves, upon which the launcher ends the others. They wait for that, since the launcher would end
    the first process too if another left before it has printed. Anything else is a bug and keeps its
    traceback.

    Args:
        command: What to run.
        grace_seconds: How long processes other than the first wait before they print an error of their own.
    """
    try:
        command()
    except UserError as error:
        rank = os.environ.get("RANK", "0")
        place = "" if rank == "0" else f" in process {rank}"
        if place:
            time.sleep(grace_seconds)
        print(f"error{place}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return USER_ERROR_EXIT_CODE
    return 0
