"""What streaming variable selection costs and saves, beside the plain module.

    python benchmarks/variable_selection.py

The workload is TFT-225: 5 static, 210 observed and 10 known inputs, encoder length 60, horizon 10, batches
of 32, fp32, dropout 0.1. A step is the forward of the whole model, the quantile loss and the backward; the
optimizer's update is the same for both and left out. Plain and streaming each have a process; their steps take
turns, and the fastest of each counts, on a CPU in processor time, which other work on the machine disturbs
least. Kept for backward and peak live bytes are those of a step, without weights and batch; the peak holds the
gradients.

On a CPU the plain form spends much of its time on fresh pages for its large tensors. With MALLOC_MMAP_MAX_=0 and
MALLOC_TRIM_THRESHOLD_=100000000000 in the environment, glibc keeps freed memory and both are spared that.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import perf_counter, process_time
from typing import NamedTuple

import torch
from machine import machine_lines

from ds_tft.memory.chunks import MIB, StreamingSettings
from ds_tft.memory.meter import kept_for_backward
from ds_tft.memory.peak import peak_live_bytes
from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.inputs import ModelInputs, ModelSize
from ds_tft.model.loss import pinball_loss
from ds_tft.model.tft import TemporalFusionTransformer

FORMS = ("plain", "streaming")


class Workload(NamedTuple):
    """What both forms do."""

    hidden_size: int
    batch: int
    threads: int
    settings: StreamingSettings


class Figures(NamedTuple):
    """What was measured of one form of the model."""

    kept_mib: float
    peak_mib: float
    step_seconds: float
    evaluation_seconds: float


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description="Compare streaming variable selection with plain.")
    parser.add_argument("--hidden-sizes", type=int, nargs="+", default=[64, 128], help="default: 64 128")
    parser.add_argument("--batch", type=int, default=32, help="windows per step (default: 32)")
    parser.add_argument("--rounds", type=int, default=5, help="steps of each form (default: 5)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads on a CPU (default: 1)")
    parser.add_argument("--buffer-mib", type=float, help="size of a buffer of a chunk; default: by device")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    buffer_bytes = None if options.buffer_mib is None else int(options.buffer_mib * MIB)
    print(*machine_lines(("torch",)), sep="\n")
    print("| hidden | form | kept MiB | peak MiB | step s | evaluation windows/s |")
    print("|---|---|---|---|---|---|")
    for hidden_size in options.hidden_sizes:
        workload = Workload(
            hidden_size, options.batch, options.threads, StreamingSettings(buffer_bytes=buffer_bytes)
        )
        _print_rows(workload, measure(workload, options.rounds))


def measure(workload: Workload, rounds: int) -> dict[str, Figures]:
    """Lets a process per form take turns, and returns the figures of each."""
    context = get_context("spawn")
    pipes: dict[str, Connection] = {}
    for form in FORMS:
        pipes[form], other_end = context.Pipe()
        context.Process(target=serve, args=(form, workload, other_end), daemon=True).start()

    def ask(form: str, question: str) -> float:
        pipes[form].send(question)
        return float(pipes[form].recv())

    figures = {}
    seconds = {
        question: [{form: ask(form, question) for form in FORMS} for _ in range(rounds + 1)][1:]
        for question in ("step", "evaluation")
    }  # the first round warms up
    for form in FORMS:
        kept, peak = ask(form, "kept") / MIB, ask(form, "peak") / MIB
        best = (min(turn[form] for turn in turns) for turns in seconds.values())
        figures[form] = Figures(kept, peak, *best)
        pipes[form].send("end")
    return figures


def serve(form: str, workload: Workload, pipe: Connection) -> None:
    """Answers questions about one form, in a process of its own."""
    torch.set_num_threads(workload.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build(workload.hidden_size, device)
    if form == "streaming":
        stream_variable_selection(model, workload.settings)
    inputs, labels = draw_batch(model.size, workload.batch, device)
    step, forecast = training_step(model, inputs, labels), evaluation(model, inputs)
    answers: dict[str, Callable[[], float]] = {
        "step": lambda: seconds_of(step, device),
        "evaluation": lambda: seconds_of(forecast, device),
        "kept": lambda: kept_for_backward(
            lambda: loss_of(model.train(), inputs, labels), [*model.parameters(), *inputs]
        ),
        "peak": lambda: peak_live_bytes(step, device),
    }
    while (question := pipe.recv()) != "end":
        model.zero_grad(set_to_none=True)
        pipe.send(answers[question]())


def build(hidden_size: int, device: torch.device) -> TemporalFusionTransformer:
    """TFT-225."""
    torch.manual_seed(0)
    size = ModelSize(static_reals=5, observed_reals=210, known_reals=10, hidden_size=hidden_size, dropout=0.1)
    return TemporalFusionTransformer(size).to(device)


def draw_batch(size: ModelSize, batch: int, device: torch.device) -> tuple[ModelInputs, torch.Tensor]:
    """Random inputs and labels."""
    steps = size.encoder_length + size.horizon
    inputs = ModelInputs(
        static_reals=torch.randn(batch, size.static_reals),
        static_categories=torch.zeros(batch, 0, dtype=torch.int64),
        observed_reals=torch.randn(batch, size.encoder_length, size.observed_reals),
        observed_categories=torch.zeros(batch, size.encoder_length, 0, dtype=torch.int64),
        known_reals=torch.randn(batch, steps, size.known_reals),
        known_categories=torch.zeros(batch, steps, 0, dtype=torch.int64),
        encoder_lengths=torch.full((batch,), size.encoder_length),
    )
    labels = torch.randn(batch, size.horizon, size.num_targets)
    return inputs.to(device, torch.float32), labels.to(device)


def loss_of(model: TemporalFusionTransformer, inputs: ModelInputs, labels: torch.Tensor) -> torch.Tensor:
    """Mean quantile loss."""
    total, weight = pinball_loss(model(inputs), labels, torch.ones_like(labels), model.size.quantiles)
    return total / weight


def training_step(
    model: TemporalFusionTransformer, inputs: ModelInputs, labels: torch.Tensor
) -> Callable[[], None]:
    """Forward and backward."""

    def step() -> None:
        loss_of(model.train(), inputs, labels).backward()

    return step


def evaluation(model: TemporalFusionTransformer, inputs: ModelInputs) -> Callable[[], None]:
    """A forecast."""

    def forecast() -> None:
        model.eval()
        with torch.no_grad():
            model(inputs)

    return forecast


def seconds_of(work: Callable[[], None], device: torch.device) -> float:
    """Runs the work and returns how long it took."""
    start = _now(device)
    work()
    return _now(device) - start


def _now(device: torch.device) -> float:
    """Seconds: of the clock once a GPU is done, of the processor on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return perf_counter()
    return process_time()


def _print_rows(workload: Workload, forms: dict[str, Figures]) -> None:
    """Prints both forms, and streaming relative to plain."""
    hidden_size = workload.hidden_size
    for name, form in forms.items():
        speed = workload.batch / form.evaluation_seconds
        numbers = f"{form.kept_mib:,.1f} | {form.peak_mib:,.1f} | {form.step_seconds:.3f} | {speed:.1f}"
        print(f"| {hidden_size} | {name} | {numbers} |")
    plain, streaming = forms["plain"], forms["streaming"]
    kept, peak = streaming.kept_mib / plain.kept_mib, streaming.peak_mib / plain.peak_mib
    step = streaming.step_seconds / plain.step_seconds
    speed = plain.evaluation_seconds / streaming.evaluation_seconds
    print(f"| {hidden_size} | streaming / plain | {kept:.3f} | {peak:.3f} | {step:.2f} | {speed:.1f} |")


if __name__ == "__main__":
    main()
