"""What a run says while it goes on: lines and a progress bar on the console, records in `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from ds_tft.console import make_console
from ds_tft.formatting import format_number, format_seconds
from ds_tft.training.metrics_file import MetricsFile

METRICS_FILE = "metrics.jsonl"


class RunLog:
    """Console and metrics file of the process that speaks; the same calls do nothing in the others.

    On a terminal progress is a bar at the bottom, otherwise a line for every call of `progress`. Use it as a
    context manager, or call `close`: the terminal is given back as it was, whatever ended the run.
    """

    def __init__(
        self,
        folder: Path,
        *,
        enabled: bool = True,
        console: Console | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Opens nothing yet: the metrics file comes with the first record.

        Args:
            folder: The run folder.
            enabled: False on all processes but the first.
            console: Where to write instead of standard output.
            clock: Seconds, for the time that is left.
        """
        self.console = Console(quiet=True) if not enabled else console or make_console()
        self._file = MetricsFile(folder / METRICS_FILE) if enabled else None
        self._clock = clock
        self._pace: _Pace | None = None
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def say(self, message: str) -> None:
        """Prints a line."""
        self.console.print(Text(message), soft_wrap=True)

    def warn(self, message: str) -> None:
        """Prints a line that stands out."""
        self.console.print(Text(f"warning: {message}", style="yellow"), soft_wrap=True)

    def rewind(self, step: int) -> None:
        """Removes the records of steps after `step`, from which the run goes on, and says how many."""
        if self._file is None:
            return
        later, unreadable = self._file.rewind(step)
        if later or unreadable:
            self.say(
                f"{METRICS_FILE}: removed {later} records of steps after {step}, which are done again, "
                f"and {unreadable} unreadable lines"
            )

    def start(self, total_steps: int, step: int = 0) -> None:
        """Begins to show progress and to estimate the time that is left.

        Args:
            total_steps: Steps of the whole run.
            step: Steps done before, in a resumed run.
        """
        self._pace = _Pace(total_steps, step, self._clock)
        if self.console.is_interactive and self._file is not None:
            # Refreshed by hand: no thread that a forked data worker could find holding a lock.
            self._bar = Progress(
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(bar_width=20),
                TextColumn("{task.description}"),
                console=self.console,
                auto_refresh=False,
                transient=True,
            )
            self._task = self._bar.add_task("", total=total_steps, completed=step)
            self._bar.start()

    def advance(self, step: int) -> None:
        """Moves the bar, between two calls of `progress`."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step, refresh=True)

    def progress(self, step: int, epoch: int, scalars: Mapping[str, float], seconds_per_step: float) -> None:
        """Records training figures and shows the most telling ones.

        Args:
            step: Optimizer steps done.
            epoch: Epoch that the step belongs to.
            scalars: Values by tag; all are recorded.
            seconds_per_step: Mean since the last call.
        """
        if self._file is None:
            return
        self._file.append(step, {"epoch": epoch, **scalars, "throughput/seconds_per_step": seconds_per_step})
        text = self._progress_text(step, epoch, scalars, seconds_per_step)
        if self._bar is None:
            self.say(f"step {self._step_text(step)}  {text}")
        else:
            self._bar.update(self._task, completed=step, description=text, refresh=True)

    def validation(self, step: int, epoch: int, scalars: Mapping[str, float], best: bool) -> None:
        """Records and prints a validation.

        Args:
            step: Optimizer steps done.
            epoch: Epoch that the step belongs to.
            scalars: Losses by tag, `loss/validation` first.
            best: Whether it is the best so far.
        """
        if self._file is None:
            return
        self._file.append(step, {"epoch": epoch, **scalars, "best": best})
        losses = "  ".join(f"{_short(tag)} {format_number(value)}" for tag, value in scalars.items())
        self.say(f"step {self._step_text(step)}  {losses}{'  (best so far)' if best else ''}")

    def close(self) -> None:
        """Takes the bar off the terminal and closes the metrics file; another record opens it again."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._file is not None:
            self._file.close()

    def _progress_text(
        self, step: int, epoch: int, scalars: Mapping[str, float], seconds_per_step: float
    ) -> str:
        """Loss, speed and the time that is left."""
        parts = [f"epoch {epoch}"]
        if "loss/train" in scalars:
            parts.append(f"loss {format_number(scalars['loss/train'])}")
        if "throughput/windows_per_second" in scalars:
            parts.append(f"{format_number(scalars['throughput/windows_per_second'])} windows/s")
        parts.append(f"{format_seconds(seconds_per_step)}/step")
        if self._pace is not None and (left := self._pace.seconds_left(step)) is not None:
            parts.append(f"{format_seconds(left)} left")
        return "  ".join(parts)

    def _step_text(self, step: int) -> str:
        """`120/5,000`, or the step alone where the total is not known."""
        return f"{step:,}" if self._pace is None else f"{step:,}/{self._pace.total_steps:,}"


class _Pace:
    """How long the steps of this process took, validations and saves included."""

    def __init__(self, total_steps: int, step: int, clock: Callable[[], float]) -> None:
        self.total_steps = total_steps
        self._first_step = step
        self._started = clock()
        self._clock = clock

    def seconds_left(self, step: int) -> float | None:
        """Time to the last step at the pace so far; `None` before the first step."""
        done = step - self._first_step
        if done <= 0:
            return None
        return (self._clock() - self._started) / done * max(self.total_steps - step, 0)


def _short(tag: str) -> str:
    """`loss/validation` -> `validation loss`; `loss/validation_p50` -> `p50`."""
    name = tag.removeprefix("loss/validation").removeprefix("_")
    return name or "validation loss"
