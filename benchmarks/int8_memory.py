"""What training keeps for backward with quantised products, and what each measure saves of the plain model's memory.

    python benchmarks/int8_memory.py

The workload is that of workload.py. First table: the folded model with and without quantisation, under the same memory
passes. Second table: one measure after the other, and what it frees of the memory of the plain model: the peak of
forward and backward, with weights and gradients and without the optimizer's state. Exit code 1: a bound is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from machine import machine_lines
from tables import print_table, verdict
from torch import Tensor
from workload import Workload, build_model, draw_batch, find_device, loss_of

from ds_tft.memory.meter import MIB, kept_for_backward
from ds_tft.memory.peak import peak_live_bytes
from ds_tft.memory.recompute import attach_recompute
from ds_tft.memory.recompute_settings import RecomputeSettings
from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.fold import build_folded
from ds_tft.model.inputs import ModelInputs
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.quantization.attach import Covered, attach_quantisation

KEPT_BOUND = 1.05
SAVED_BOUND = 0.90


class Form(NamedTuple):
    """A way to train."""

    name: str
    model: TemporalFusionTransformer
    dtype: torch.dtype = torch.float32


class Figures(NamedTuple):
    """Memory of one step, in bytes."""

    kept: int
    peak: int
    """Beyond weights and gradients."""
    states: int
    """Weights and gradients."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints two tables."""
    parser = argparse.ArgumentParser(description="Measure the memory of quantisation-aware training.")
    parser.add_argument("--hidden-size", type=int, default=128, help="default: 128")
    parser.add_argument("--batch", type=int, default=32, help="windows per step (default: 32)")
    parser.add_argument("--variables", type=int, default=225, help="inputs of the model (default: 225)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    workload = Workload(hidden_size=options.hidden_size, batch=options.batch, variables=options.variables)
    device = find_device()
    print(*machine_lines(("torch", "deepspeed")), sep="\n", flush=True)
    inputs, labels = draw_batch(workload.size, workload.batch, device)
    kept_missed = _compare_kept(workload, device, inputs, labels)
    saved_missed = _compare_causes(workload, device, inputs, labels)
    return int(kept_missed or saved_missed)


def _compare_kept(workload: Workload, device: torch.device, inputs: ModelInputs, labels: Tensor) -> bool:
    """Prints the first table; returns whether the bound is missed."""
    rows, missed = [], False
    for passes, recompute in (("streaming", None), ("recomputing", RecomputeSettings())):
        forms = [
            Form(name, _folded(workload, device, recompute, quantised=quantised))
            for name, quantised in (("fp32", False), ("quantised", True))
        ]
        floating, quantised_figures = (measure(form, inputs, labels) for form in forms)
        ratio = quantised_figures.kept / floating.kept
        said = verdict(ratio, KEPT_BOUND)
        missed |= said == "MISS"
        rows.append(
            (
                f"folded, {passes}",
                f"{floating.kept / MIB:.2f}",
                f"{quantised_figures.kept / MIB:.2f}",
                f"{ratio:.3f}",
                said,
                f"{floating.peak / MIB:.1f}",
                f"{quantised_figures.peak / MIB:.1f}",
            )
        )
    print_table(
        ("kept for backward MiB", "fp32", "quantised", "ratio", f"at most {KEPT_BOUND}", "peak fp32", "quantised"),
        rows,
    )  # fmt: skip
    return missed


def _compare_causes(workload: Workload, device: torch.device, inputs: ModelInputs, labels: Tensor) -> bool:
    """Prints the second table; returns whether the bound is missed."""
    steps: dict[str, Callable[[], Form]] = {
        "plain": lambda: Form("plain", build_model(workload, device)),
        "streaming": partial(_plain_form, workload, device, None, torch.float32),
        "recomputing blocks": partial(_plain_form, workload, device, RecomputeSettings(), torch.float32),
        "bf16": partial(_plain_form, workload, device, RecomputeSettings(), torch.bfloat16),
        "inputs of blocks offloaded (on a GPU)": partial(
            _plain_form, workload, device, RecomputeSettings(offload=device.type == "cuda"), torch.bfloat16
        ),
        "folding": lambda: Form(
            "folded",
            _folded(workload, device, RecomputeSettings(), quantised=False).bfloat16(),
            torch.bfloat16,
        ),
        "INT8 products": lambda: Form(
            "INT8", _folded(workload, device, RecomputeSettings(), quantised=True).bfloat16(), torch.bfloat16
        ),
    }
    found = {name: measure(make(), inputs, labels) for name, make in steps.items()}
    plain = found["plain"]
    rows, before = [], plain
    for name, one in found.items():
        whole, whole_plain, whole_before = (each.peak + each.states for each in (one, plain, before))
        rows.append(
            (
                name,
                f"{one.kept / MIB:.1f}",
                f"{one.peak / MIB:.1f}",
                f"{one.states / MIB:.1f}",
                f"{(whole_before - whole) / whole_plain:+.1%}",
                f"{1 - whole / whole_plain:.1%}",
            )
        )
        before = one
    print_table(
        ("measure, on top of the ones above", "kept MiB", "peak beyond states MiB", "weights and gradients MiB",
         "frees", "freed in all"),
        rows,
    )  # fmt: skip
    last = found["INT8 products"]
    saved = 1 - (last.peak + last.states) / (plain.peak + plain.states)
    print(
        f"in all {saved:.1%} of the plain model's memory, at least {SAVED_BOUND:.0%}: {verdict(-saved, -SAVED_BOUND)}"
    )
    return saved < SAVED_BOUND


def measure(form: Form, inputs: ModelInputs, labels: Tensor) -> Figures:
    """Measures a forward and backward.

    Args:
        form: What to measure; it gets gradients.
        inputs: Of a batch, float32.
        labels: Shape (B, K, O), float32.
    """
    model = form.model.train()
    given = inputs.to(labels.device, form.dtype)
    wanted = labels.to(form.dtype)

    def step() -> None:
        loss_of(model, given, wanted).backward()

    kept = kept_for_backward(partial(loss_of, model, given, wanted), [*model.parameters(), *given, wanted])
    step()  # makes the gradients
    states = sum(2 * parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return Figures(kept, peak_live_bytes(step, labels.device), states)


def _plain_form(
    workload: Workload, device: torch.device, recompute: RecomputeSettings | None, dtype: torch.dtype
) -> Form:
    """The model in its trained form, with memory passes."""
    model = build_model(workload, device)
    stream_variable_selection(model)
    if recompute is not None:
        attach_recompute(model, recompute)
    return Form("plain form", model.to(dtype), dtype)


def _folded(
    workload: Workload, device: torch.device, recompute: RecomputeSettings | None, *, quantised: bool
) -> TemporalFusionTransformer:
    """The model as it is fine-tuned."""
    model = build_folded(workload.size).to(device)
    stream_variable_selection(model)
    quantisation = attach_quantisation(model, Covered.all_of(model))
    for quantiser in quantisation.quantisers.values():
        quantiser.input_step.fill_(0.02)
    if recompute is not None:
        attach_recompute(model, recompute)
    quantisation.turn(weights=quantised, inputs=quantised)
    return model


if __name__ == "__main__":
    sys.exit(main())
