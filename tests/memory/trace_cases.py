"""Small models to trace, whose bytes can be counted by hand, and a loop that traces them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ds_tft.memory.meter import MemoryMeter
from ds_tft.memory.trace.files import TraceFiles
from ds_tft.memory.trace.recording import UpdateRecording
from ds_tft.memory.trace.settings import TraceSettings
from ds_tft.memory.trace.timeline import BACKWARD, FORWARD, OPTIMIZER
from ds_tft.memory.trace.tracer import StepTracer
from ds_tft.memory.trace.update_trace import BlockMemory, UpdateTrace

CPU = torch.device("cpu")
FLOAT = 4


class Doubled(torch.autograd.Function):
    """Keeps a copy of its input; needs `extra` values more in forward, and twice as many in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, extra: int) -> Tensor:
        torch.zeros(extra)
        ctx.extra = extra
        ctx.save_for_backward(x.clone())
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        torch.zeros(2 * ctx.extra)
        return 2 * grad, None


class Twice(nn.Module):
    """A block of known size."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        return Doubled.apply(x, self.extra)


class Chain(nn.Module):
    """Scales its input and passes it through two blocks."""

    def __init__(self, values: int = 1000) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(values))
        self.small = Twice(500)
        self.large = Twice(20_000)

    def forward(self, x: Tensor) -> Tensor:
        return self.large(self.small(x * self.scale))


def engine_of(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Any:
    """What the tracer needs of an engine."""
    return SimpleNamespace(
        module=model, optimizer=optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )


def update(engine: Any, batches: list[Any], phase: Callable[[str], Any]) -> None:
    """One update of one or more micro-batches."""
    for number, batch in enumerate(batches):
        with phase(FORWARD):
            loss = engine.module(batch).square().mean()
        with phase(BACKWARD):
            loss.backward()
        with phase(OPTIMIZER):
            if number == len(batches) - 1:
                engine.optimizer.step()
                engine.optimizer.zero_grad()


def record(engine: Any, batches: list[Any]) -> UpdateTrace:
    """The trace of one update."""
    recording = UpdateRecording(engine, CPU)
    recording.start()
    update(engine, batches, recording.phase)
    return recording.stop(step=1)


def block(trace: UpdateTrace, name: str) -> BlockMemory:
    """A block of a trace."""
    return next(each for each in trace.blocks if each.name == name)


@dataclass
class Written:
    """Takes the place of TensorBoard, and remembers."""

    scalars: dict[int, dict[str, float]] = field(default_factory=dict)
    figures: list[tuple[int, str]] = field(default_factory=list)
    texts: list[tuple[int, str, str]] = field(default_factory=list)
    flushed: bool = False

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        self.scalars[step] = dict(scalars)
        self.flushed = False

    def figure(self, step: int, tag: str, figure: object) -> None:
        self.figures.append((step, tag))
        self.flushed = False

    def text(self, step: int, tag: str, text: str) -> None:
        self.texts.append((step, tag, text))
        self.flushed = False

    def flush(self) -> None:
        self.flushed = True


@dataclass
class Traced:
    """A tracer and what it left."""

    tracer: StepTracer
    folder: Path
    written: Written
    said: list[str]

    @property
    def files(self) -> set[str]:
        """Names in the folder of traces."""
        return {path.name for path in (self.folder / "traces").glob("*")}


def make_tracer(
    folder: Path,
    engine: Any,
    every_steps: int | None = None,
    *,
    suffix: str = "",
    is_first: bool = True,
) -> Traced:
    """A tracer that writes into a folder."""
    written, said = Written(), []
    tracer = StepTracer(
        engine,
        CPU,
        MemoryMeter(CPU),
        TraceFiles(run_folder=folder, tensorboard=written, suffix=suffix),
        TraceSettings(every_steps=every_steps),
        say=said.append,
        is_first=is_first,
    )
    return Traced(tracer, folder, written, said)
