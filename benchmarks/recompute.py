"""What recomputing blocks frees and costs, and what moving their inputs to host memory frees beyond.

    python benchmarks/recompute.py

The workload and its step are those of variable_selection.py; variable selection streams. First, for every
block of the model, what is kept for backward with this block alone recomputed. Then the default blocks, and all
that free anything, by each machinery. Steps take turns in one process; a ratio is the median over turns of
processor time (on a GPU: time) against the step without recomputing in the same turn. Kept bytes are those of
the whole model, without weights and batch.
"""

from __future__ import annotations

import argparse
import copy
from statistics import median
from typing import NamedTuple

import torch
from machine import machine_lines
from torch import Tensor
from variable_selection import _now, build, draw_batch, loss_of, training_step

from ds_tft.memory.block_savings import BlockSaving, measure_blocks
from ds_tft.memory.checkpoint_path import CheckpointPath
from ds_tft.memory.meter import MIB, KeptForBackward
from ds_tft.memory.recompute import DEFAULT_BLOCKS, attach_recompute
from ds_tft.memory.recompute_report import RecomputeReport
from ds_tft.memory.recompute_settings import RecomputeSettings
from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.inputs import ModelInputs
from ds_tft.model.tft import TemporalFusionTransformer


class Form(NamedTuple):
    """A copy of the model that recomputes, or does not."""

    name: str
    model: TemporalFusionTransformer
    report: RecomputeReport | None


def main() -> None:
    """Measures and prints two tables."""
    parser = argparse.ArgumentParser(description="Measure recomputed blocks.")
    parser.add_argument("--hidden-size", type=int, default=128, help="default: 128")
    parser.add_argument("--batch", type=int, default=32, help="windows per step (default: 32)")
    parser.add_argument("--rounds", type=int, default=6, help="steps of each form (default: 6)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads on a CPU (default: 1)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build(options.hidden_size, device).train()
    stream_variable_selection(model)
    inputs, labels = draw_batch(model.size, options.batch, device)
    print(*machine_lines(("torch", "deepspeed")), sep="\n")
    blocks = [name for name, _ in model.named_children()]
    savings = measure_blocks(model, lambda: loss_of(model, inputs, labels), blocks, inputs)
    _print_savings(savings)
    every = tuple(saving.block for saving in savings if saving.saved_bytes > 0)
    forms = make_forms(model, every)
    print_forms(forms, inputs, labels, options.rounds)


def make_forms(model: TemporalFusionTransformer, every: tuple[str, ...]) -> list[Form]:
    """Copies the model for each way to recompute; the first one does not."""
    settings = {
        "default blocks": RecomputeSettings(),
        "default blocks, torch's checkpoint": RecomputeSettings(path=CheckpointPath.OWN),
        "default blocks, offload": RecomputeSettings(offload=True),
        "all blocks": RecomputeSettings(blocks=every),
        "all blocks, offload": RecomputeSettings(blocks=every, offload=True),
    }
    forms = [Form("none", copy.deepcopy(model), None)]
    for name, each in settings.items():
        twin = copy.deepcopy(model)
        forms.append(Form(name, twin, attach_recompute(twin, each)))
    return forms


def kept_bytes(form: Form, inputs: ModelInputs, labels: Tensor) -> int:
    """Bytes kept on the device; all tensors that a machinery holds are saved within reach of the meter."""
    with KeptForBackward([*form.model.parameters(), *inputs]) as kept:
        loss = loss_of(form.model, inputs, labels)
    held = kept.bytes
    loss.backward()
    return held


def _print_savings(savings: tuple[BlockSaving, ...]) -> None:
    """Prints what each block frees."""
    print(f"kept for backward, nothing recomputed: {savings[0].plain_bytes / MIB:.2f} MiB")
    print("| block | freed MiB | share | default |")
    print("|---|---|---|---|")
    for saving in sorted(savings, key=lambda each: -each.saved_bytes):
        freed, share = saving.saved_bytes / MIB, saving.saved_bytes / saving.plain_bytes
        default = "x" if saving.block in DEFAULT_BLOCKS else ""
        print(f"| {saving.block} | {freed:.2f} | {share:.1%} | {default} |")


def print_forms(forms: list[Form], inputs: ModelInputs, labels: Tensor, rounds: int) -> None:
    """Prints what is kept, and the time of a step relative to that without recomputing."""
    device = labels.device
    steps = [training_step(form.model, inputs, labels) for form in forms]
    seconds: list[list[float]] = []
    for _ in range(rounds + 1):
        turn = []
        for step in steps:
            start = _now(device)
            step()
            turn.append(_now(device) - start)
        seconds.append(turn)
    print("| recomputed | kept on the device MiB | host MiB | runs again | time of a step |")
    print("|---|---|---|---|---|")
    for number, form in enumerate(forms):
        ratio = median(turn[number] / turn[0] for turn in seconds[1:])
        host, again = 0.0, 0
        if form.report is not None:
            form.report.reset()
        kept = kept_bytes(form, inputs, labels) / MIB
        if form.report is not None:
            moved, again = form.report.traffic(), form.report.recomputes()
            host = 0.0 if moved is None else moved.to_host_bytes / MIB
        print(f"| {form.name} | {kept:.2f} | {host:.2f} | {again} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
