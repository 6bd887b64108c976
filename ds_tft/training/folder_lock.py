"""One run at a time in a folder. The system lets go of the lock when the process ends, however it does."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from ds_tft.errors import ConfigError

LOCK = ".lock"
"""File in the run folder; it says who holds it."""


class FolderLock:
    """Holds a folder from `with` to its end. A folder that holds nothing else in the end is removed.

    Args:
        folder: The run folder; it is made if it is not there.
        warn: Writes a line to the log.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._warn = warn
        self._handle: int | None = None

    def __enter__(self) -> FolderLock:
        """Takes the lock.

        Raises:
            ConfigError: Another run has it, or the folder cannot be written to.
        """
        path = self._folder / LOCK
        try:
            while self._handle is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._handle = self._take(path)
        except OSError as error:
            raise ConfigError(
                f"--output-dir: cannot write to '{self._folder}', got {error.strerror}; give another folder"
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Lets go."""
        if self._handle is None:
            return
        if [path.name for path in self._folder.iterdir()] == [LOCK]:
            (self._folder / LOCK).unlink()
            self._folder.rmdir()
        os.close(self._handle)
        self._handle = None

    def _take(self, path: Path) -> int | None:
        """Opens and locks the file; None where it was removed meanwhile, by a run that ended."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                holder = os.read(handle, 1000).decode(errors="replace").strip() or "another process"
                os.close(handle)
                raise ConfigError(
                    f"--output-dir: '{self._folder}' is in use, got a run of {holder}; "
                    "wait until it ends, or give another folder"
                ) from None
            self._warn(
                f"'{path}': no lock here ({error.strerror}), a second run in the folder would not be noticed"
            )
        if not path.exists() or not os.path.samestat(os.fstat(handle), path.stat()):
            os.close(handle)
            return None
        os.truncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        return handle
