"""What recomputing each block of the model frees, and what the ways to recompute several of them cost.

    python benchmarks/blocks.py

The workload is that of workload.py; variable selection streams. First, for every block of the model, what is kept for
backward by the whole model with this block alone recomputed. Then the default blocks, and all that free
anything, by each machinery. Steps, without an update, take turns in one process; a ratio is the median over turns of
processor time (on a GPU: time) against the step without recomputing in the same turn. Weights and batch are left out.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import torch
from machine import machine_lines
from tables import print_table
from torch import Tensor
from workload import Workload, build_model, draw_batch, find_device, loss_of, now

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


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints two tables."""
    parser = argparse.ArgumentParser(description="Measure recomputed blocks.")
    parser.add_argument("--hidden-size", type=int, default=128, help="default: 128")
    parser.add_argument("--batch", type=int, default=32, help="windows per step (default: 32)")
    parser.add_argument("--variables", type=int, default=225, help="inputs of the model (default: 225)")
    parser.add_argument("--rounds", type=int, default=6, help="steps of each form (default: 6)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads on a CPU (default: 1)")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    workload = Workload(hidden_size=options.hidden_size, variables=options.variables)
    device = find_device()
    model = build_model(workload, device).train()
    stream_variable_selection(model)
    inputs, labels = draw_batch(model.size, options.batch, device)
    print(*machine_lines(("torch", "deepspeed")), sep="\n")
    blocks = [name for name, _ in model.named_children()]
    savings = measure_blocks(model, lambda: loss_of(model, inputs, labels), blocks, [*inputs, labels])
    print(f"kept for backward, nothing recomputed: {savings[0].plain_bytes / MIB:.2f} MiB")
    largest_first = sorted(savings, key=lambda saving: -saving.saved_bytes)
    print_table(["block", "freed MiB", "share", "default"], map(_saving_row, largest_first))
    every = tuple(saving.block for saving in savings if saving.saved_bytes > 0)
    print_forms(make_forms(model, every), inputs, labels, options.rounds)


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
    with KeptForBackward([*form.model.parameters(), *inputs, labels]) as kept:
        loss = loss_of(form.model, inputs, labels)
    held = kept.bytes
    loss.backward()
    return held


def print_forms(forms: Sequence[Form], inputs: ModelInputs, labels: Tensor, rounds: int) -> None:
    """Prints what is kept, and the time of a step relative to that without recomputing."""
    seconds = [[_seconds(form, inputs, labels) for form in forms] for _ in range(rounds + 1)]
    rows = []
    for number, form in enumerate(forms):
        ratio = median(turn[number] / turn[0] for turn in seconds[1:])  # the first one warms up
        host, again = 0.0, 0
        if form.report is not None:
            form.report.reset()
        kept = kept_bytes(form, inputs, labels) / MIB
        if form.report is not None:
            moved, again = form.report.traffic(), form.report.recomputes()
            host = 0.0 if moved is None else moved.to_host_bytes / MIB
        rows.append([form.name, f"{kept:.2f}", f"{host:.2f}", str(again), f"{ratio:.2f}"])
    print_table(["recomputed", "kept on the device MiB", "host MiB", "runs again", "time of a step"], rows)


def _seconds(form: Form, inputs: ModelInputs, labels: Tensor) -> float:
    """Runs forward and backward, and returns how long they took."""
    start = now(labels.device)
    loss_of(form.model, inputs, labels).backward()
    end = now(labels.device)
    return end.wall - start.wall if labels.device.type == "cuda" else end.cpu - start.cpu


def _saving_row(saving: BlockSaving) -> list[str]:
    """Cells of a block."""
    share = saving.saved_bytes / saving.plain_bytes
    default = "x" if saving.block in DEFAULT_BLOCKS else ""
    return [saving.block, f"{saving.saved_bytes / MIB:.2f}", f"{share:.1%}", default]


if __name__ == "__main__":
    main()
