"""What the launch scripts share: errors for users become one line and exit code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from ds_tft.errors import UserError

USER_ERROR_EXIT_CODE = 2


def run_command(command: Callable[[], None]) -> int:
    """Runs `command` and returns the exit code.

    A `UserError` is printed as one line, by the first process only: all processes meet the same one. Anything else
    is a bug and keeps its traceback.
    """
    try:
        command()
    except UserError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return USER_ERROR_EXIT_CODE
    return 0
