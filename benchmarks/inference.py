"""How many windows per second a trained model forecasts in each of its forms, in what memory, with what weights.

    python benchmarks/inference.py
    python benchmarks/inference.py --threads 1 --batches 32 --rounds 9

The workload is that of workload.py, without gradients and dropout; the weights are random. The forms take turns. A turn
is one batch, or of small batches as many as make `TURN_WINDOWS` windows; a ratio is the median over rounds of the ratio
within a round. The plain form gets larger batches in parts of `--plain-batch` windows: 256 at once would take it
13 GiB, and longer. The ranges of the INT8 model are measured on the windows that are forecast.
Exit code 1: a goal is missed. The goals are meant for the sizes of workload.py, those of speed for a CPU.

Letters: B batch, K horizon steps, Q quantiles.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

import torch
from machine import machine_lines
from tables import print_table, verdict
from torch import Tensor, nn
from workload import Workload, build_model, draw_batch, find_device, now

from ds_tft.forecast.forecasting_form import forecasting_form
from ds_tft.memory.meter import MIB
from ds_tft.memory.peak import peak_live_bytes
from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.inputs import ModelInputs
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.quantization.attach import Covered, attach_quantisation
from ds_tft.quantization.calibration import calibrate
from ds_tft.quantization.stored import build_stored

PLAIN, STREAMING, FOLDED, BF16, INT8 = "plain", "plain, streaming", "folded", "folded, bf16", "INT8"
TURN_WINDOWS = 32
COMPARED_WINDOWS = 8
PERCENTILE = 99.99
FOLDED_GOAL, FOLDED_BATCH = 3.0, 32
"""Times as many windows per second as the plain form, in batches of at least so many windows."""
INT8_GOAL = 1.0
"""The same, in batches of any size."""
OF_PLAIN_BYTES, OF_FOLDED_BYTES = 0.12, 0.30
"""Bytes of the INT8 weights at most."""


class Form(NamedTuple):
    """A model as it forecasts."""

    model: TemporalFusionTransformer
    dtype: torch.dtype = torch.float32
    largest_batch: int | None = None
    """Windows that it is given at once; `None` gives it all."""

    def forecast(self, inputs: ModelInputs) -> Tensor:
        """Returns the forecasts of a batch, (B, K, 1, Q) in the type of the form.

        Args:
            inputs: In that type.
        """
        with torch.no_grad():
            return torch.cat([self.model(part) for part in self.parts(inputs)])

    def parts(self, inputs: ModelInputs) -> list[ModelInputs]:
        """Cuts a batch to what the form is given at once."""
        parts = [tensor.split(self.largest_batch or len(tensor)) for tensor in inputs]
        return [ModelInputs(*part) for part in zip(*parts, strict=True)]


class Goal(NamedTuple):
    """What a form is to reach."""

    what: str
    where: str
    value: float
    least: float | None = None
    most: float | None = None

    @property
    def said(self) -> str:
        """Whether it is reached."""
        return verdict(self.value, self.most) if self.least is None else verdict(-self.value, -self.least)

    @property
    def row(self) -> tuple[str, str, str, str, str]:
        """Cells of the goal."""
        bound = f"at most {self.most:g}" if self.least is None else f"at least {self.least:g}"
        return self.what, self.where, bound, f"{self.value:.3f}", self.said


Seconds = Mapping[str, Sequence[float]]
"""Wall seconds per window of each turn, by form."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints tables."""
    parser = argparse.ArgumentParser(description="Measure how fast trained models forecast.")
    parser.add_argument("--hidden-size", type=int, default=128, help="default: 128")
    parser.add_argument("--variables", type=int, default=225, help="inputs of the model (default: 225)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 256], help="default: 1 32 256")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="torch threads (default: 1 2)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each form (default: 5)")
    parser.add_argument(
        "--plain-batch", type=int, default=32, help="windows that the plain form gets at once (default: 32)"
    )
    options = parser.parse_args(argv)
    workload = Workload(hidden_size=options.hidden_size, variables=options.variables)
    device = find_device()
    print(*machine_lines(("torch", "deepspeed")), sep="\n", flush=True)
    forms = build_forms(workload, device, options.plain_batch)
    goals = _print_models(forms, workload, device, options.batches)
    # A GPU has no use for the threads of the host.
    for threads in options.threads[: 1 if device.type == "cuda" else None]:
        torch.set_num_threads(threads)
        times = {
            batch: take_turns(forms, inputs_of(forms, workload, device, batch), device, options.rounds)
            for batch in options.batches
        }
        where = "GPU" if device.type == "cuda" else f"{threads} thread{'s' if threads > 1 else ''}"
        _print_speeds(times, where)
        if device.type == "cpu":
            goals += speed_goals(times, where)
    print_table(("goal", "where", "bound", "measured", ""), [goal.row for goal in goals])
    return int(any(goal.said == "MISS" for goal in goals))


def build_forms(workload: Workload, device: torch.device, plain_batch: int) -> dict[str, Form]:
    """Builds one model in all forms.

    Args:
        workload: The sizes.
        device: Where they run.
        plain_batch: Windows that the plain form gets at once.
    """
    cpu = torch.device("cpu")
    plain = build_model(workload, cpu).eval()
    streaming = copy.deepcopy(plain)
    stream_variable_selection(streaming)
    folded = forecasting_form(plain)
    calibrated = copy.deepcopy(folded)
    covered = Covered.all_of(calibrated)
    quantisation = attach_quantisation(calibrated, covered)
    batch, _ = draw_batch(workload.size, workload.batch, cpu)
    calibrate(calibrated, quantisation, [batch], "percentile", PERCENTILE)
    forms = {
        PLAIN: Form(plain, largest_batch=plain_batch),
        STREAMING: Form(streaming),
        FOLDED: Form(folded),
        BF16: Form(copy.deepcopy(folded).bfloat16(), torch.bfloat16),
        INT8: Form(build_stored(workload.size, covered, calibrated.state_dict())),
    }
    return {name: form._replace(model=form.model.to(device)) for name, form in forms.items()}


def inputs_of(
    forms: Mapping[str, Form], workload: Workload, device: torch.device, batch: int
) -> dict[str, ModelInputs]:
    """Draws a batch, for each form in its type."""
    inputs, _ = draw_batch(workload.size, batch, device)
    return {name: inputs.to(device, form.dtype) for name, form in forms.items()}


def take_turns(
    forms: Mapping[str, Form], inputs: Mapping[str, ModelInputs], device: torch.device, rounds: int
) -> Seconds:
    """Lets the forms take turns.

    Args:
        forms: By name; each has run before, so that no first-time work counts.
        inputs: One batch, in the type of each form.
        device: Where they are.
        rounds: Turns of each form.

    Returns:
        Wall seconds per window of each turn, by form.
    """
    batch = len(inputs[PLAIN].static_reals)
    calls = max(1, TURN_WINDOWS // batch)
    times: dict[str, list[float]] = {name: [] for name in forms}
    for number in range(rounds):
        # The order turns around, so that none is always behind the same other one.
        for name in tuple(forms)[:: 1 if number % 2 else -1]:
            begin = now(device).wall
            for _ in range(calls):
                forms[name].forecast(inputs[name])
            times[name].append((now(device).wall - begin) / (calls * batch))
    return times


def faster(times: Seconds, name: str) -> float:
    """Returns how many times as many windows per second as the plain form a form does, the median of rounds."""
    return median(plain / own for plain, own in zip(times[PLAIN], times[name], strict=True))


def speed_goals(times: Mapping[int, Seconds], where: str) -> list[Goal]:
    """Compares speeds with what is asked of them.

    Args:
        times: By batch.
        where: On what they were measured.
    """
    return list(_speed_goals(times, where))


def _speed_goals(times: Mapping[int, Seconds], where: str) -> Iterator[Goal]:
    """Yields a goal for each form and batch that has one."""
    for batch, done in times.items():
        what = f"{{}} / {PLAIN}, windows/s, batch {batch}"
        if batch >= FOLDED_BATCH:
            yield Goal(what.format(FOLDED), where, faster(done, FOLDED), least=FOLDED_GOAL)
        yield Goal(what.format(INT8), where, faster(done, INT8), least=INT8_GOAL)


def size_goals(sizes: Mapping[str, int]) -> list[Goal]:
    """Compares the bytes of the INT8 weights with what is asked of them.

    Args:
        sizes: Bytes of the weights by form.
    """
    bounds = {PLAIN: OF_PLAIN_BYTES, FOLDED: OF_FOLDED_BYTES}
    return [
        Goal(f"{INT8} / {name}, bytes of weights", "", sizes[INT8] / sizes[name], most=bound)
        for name, bound in bounds.items()
    ]


def weight_bytes(model: nn.Module) -> int:
    """Returns what the weights take, in memory as in a file."""
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())


def distances(forms: Mapping[str, Form], inputs: Mapping[str, ModelInputs]) -> dict[str, float]:
    """Returns how far each form's forecasts are from the plain ones: root mean square, relative to their spread."""
    found = {name: form.forecast(inputs[name]).float() for name, form in forms.items()}
    plain = found[PLAIN]
    return {name: float((one - plain).square().mean().sqrt() / plain.std()) for name, one in found.items()}


def _print_models(
    forms: Mapping[str, Form], workload: Workload, device: torch.device, batches: Sequence[int]
) -> list[Goal]:
    """Prints what does not depend on threads, or hardly; returns the goals of the weights."""
    off = distances(forms, inputs_of(forms, workload, device, COMPARED_WINDOWS))
    sizes = {name: weight_bytes(form.model) for name, form in forms.items()}
    peaks: dict[str, list[int]] = {name: [] for name in forms}
    for batch in batches:
        inputs = inputs_of(forms, workload, device, batch)
        for name, form in forms.items():
            part = form.parts(inputs[name])[0]  # the others take no more
            call: Callable[[], object] = partial(form.forecast, part)
            peaks[name].append(peak_live_bytes(call, device))
    rows = (
        (
            name,
            f"{sizes[name] / MIB:.1f}",
            f"{off[name]:.1e}",
            *(f"{peak / MIB:,.1f}" for peak in peaks[name]),
        )
        for name in forms
    )
    headings = ("form", "weights MiB", "off by", *(f"peak MiB, batch {batch}" for batch in batches))
    print_table(headings, rows)
    return size_goals(sizes)


def _print_speeds(times: Mapping[int, Seconds], where: str) -> None:
    """Prints windows per second and how they compare with those of the plain form."""
    headings = [f"{where}: windows/s", *(part for batch in times for part in (f"batch {batch}", "/ plain"))]
    rows = (
        (
            name,
            *(
                part
                for done in times.values()
                for part in (f"{1 / median(done[name]):.1f}", f"{faster(done, name):.2f}")
            ),
        )
        for name in next(iter(times.values()))
    )
    print_table(headings, rows)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
