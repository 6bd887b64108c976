"""TensorBoard events of a run: readable while it runs, and after it was killed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ds_tft.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch.utils.tensorboard import SummaryWriter

FLUSH_SECONDS = 10.0


class TensorBoardWriter:
    """Writes scalars against optimizer steps; the same calls do nothing where it is not enabled.

    Use it as a context manager, or call `close`: what is not yet on disk is written, whatever ended the run.
    """

    def __init__(
        self,
        folder: Path,
        *,
        enabled: bool = True,
        resumed_step: int | None = None,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        """Opens an event file.

        Args:
            folder: Where event files are; a resumed run adds one.
            enabled: False on all processes but the first.
            resumed_step: Step that the run goes on from. TensorBoard hides what was written for later ones.
            flush_seconds: Longest time that a value stays in memory.

        Raises:
            ConfigError: The folder cannot be written to.
        """
        self._writer: SummaryWriter | None = None
        if enabled:
            # Here, so that the processes that write nothing need not import it (0.2 CPU seconds).
            from torch.utils.tensorboard import SummaryWriter

            try:
                self._writer = SummaryWriter(
                    str(folder),
                    purge_step=None if resumed_step is None else resumed_step + 1,
                    flush_secs=flush_seconds,
                )
            except OSError as error:
                raise ConfigError(
                    f"tensorboard.output_path: cannot write to '{folder}', got {error.strerror}; "
                    "give another folder"
                ) from None

    def __enter__(self) -> TensorBoardWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes values by tag, such as `loss/train`; a tag names the quantity and its unit.

        Args:
            step: Optimizer steps done.
            scalars: Plain numbers, so that nothing here waits for a device.
        """
        if self._writer is None:
            return
        for tag, value in scalars.items():
            self._writer.add_scalar(tag, value, step)

    def figure(self, step: int, tag: str, figure: Figure) -> None:
        """Writes a figure; it stays the caller's."""
        if self._writer is not None:
            self._writer.add_figure(tag, figure, step, close=False)

    def text(self, step: int, tag: str, text: str) -> None:
        """Writes a text, read as Markdown."""
        if self._writer is not None:
            self._writer.add_text(tag, text, step)

    def flush(self) -> None:
        """Writes everything to disk now."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Writes everything to disk and closes the file. May be called twice."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
