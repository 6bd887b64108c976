"""What keeping the inputs of recomputed blocks as INT8 (`ds_tft.compress_kept`) frees, costs and does to training.

    python -m ds_tft.data.demo --output demo.parquet
    python benchmarks/compress_kept.py
    python benchmarks/compress_kept.py --parquet-file demo.parquet --seeds 0 1 2

The first command of the two measures the workload of workload.py, variable selection streaming, the
default blocks recomputed: what is kept for backward, the time of a step as in blocks.py, its peak beyond
weights and gradients, the time to compress, and gradients with INT8 against those without, dropout the same
in both. The second one trains the model of launch/examples/demo.json on the file, with and without: same
weights at the start, same windows, same dropout; every floating-point input is compressed, however small. At
the end it compares gradients again.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from blocks import Form, print_forms
from machine import machine_lines
from numpy.typing import NDArray
from torch import Tensor, nn
from workload import Workload, build_model, draw_batch, loss_of, now

from ds_tft.config.resolve import read_run_settings
from ds_tft.config.run import RunSettings
from ds_tft.data.batches import BatchBuilder
from ds_tft.data.infer import infer_roles
from ds_tft.data.parquet import open_source
from ds_tft.data.prepare import TrainingData, prepare_training
from ds_tft.data.split import Split
from ds_tft.memory.host_buffers import Layout
from ds_tft.memory.int8_groups import dequantise, quantise
from ds_tft.memory.meter import MIB
from ds_tft.memory.peak import peak_live_bytes
from ds_tft.memory.recompute import attach_recompute
from ds_tft.memory.recompute_settings import RecomputeSettings
from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.inputs import ModelInputs
from ds_tft.model.loss import pinball_loss
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.model_size import derive_size

EXAMPLE = Path(__file__).parents[1] / "launch" / "examples" / "demo.json"
INT8 = RecomputeSettings(compress=True)


def main() -> None:
    """Measures and prints tables."""
    parser = argparse.ArgumentParser(description="Measure inputs kept as INT8.")
    parser.add_argument("--hidden-size", type=int, default=128, help="default: 128")
    parser.add_argument("--batch", type=int, default=32, help="windows per step (default: 32)")
    parser.add_argument("--rounds", type=int, default=6, help="steps of each form (default: 6)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads on a CPU (default: 1)")
    parser.add_argument("--parquet-file", help="train on this file instead")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default: 0 1 2")
    parser.add_argument("--updates", type=int, default=250, help="of each training (default: 250)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(*machine_lines(("torch", "deepspeed")), sep="\n")
    if options.parquet_file is None:
        measure_step(options.hidden_size, options.batch, options.rounds)
    else:
        measure_training(Task.read(options.parquet_file), options.seeds, options.updates, options.batch)


def measure_step(hidden_size: int, batch: int, rounds: int) -> None:
    """Prints what is kept, the time of a step, and how far gradients are off."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build_model(Workload(hidden_size=hidden_size), device).train()
    stream_variable_selection(model)
    inputs, labels = draw_batch(model.size, batch, device)
    ways = {"default blocks": RecomputeSettings(), "int8": INT8, "offload": RecomputeSettings(offload=True)}
    forms = [Form("none", copy.deepcopy(model), None)]
    for name, settings in ways.items():
        twin = copy.deepcopy(model)
        forms.append(Form(name, twin, attach_recompute(twin, settings)))
    print_forms(forms, inputs, labels, rounds)
    for form in forms:
        peak = peak_live_bytes(partial(_step, form.model, inputs, labels), device)
        print(f"peak beyond weights and gradients, {form.name}: {peak / MIB:.1f} MiB")
    print_cost(inputs.observed_reals)
    exact, close = copy.deepcopy(model), copy.deepcopy(model)
    attach_recompute(close, INT8)
    for each in (exact, close):
        torch.manual_seed(1)
        loss_of(each, inputs, labels).backward()
    print_gradients(exact, close)


def _step(model: TemporalFusionTransformer, inputs: ModelInputs, labels: Tensor) -> None:
    """Forward and backward."""
    loss_of(model, inputs, labels).backward()


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    """Runs the work and returns how long it took."""
    start = now(device).wall
    work()
    return now(device).wall - start


def print_cost(tensor: Tensor) -> None:
    """Prints the least of ten times that it takes to compress a tensor and to restore it."""
    groups, layout, device = quantise(tensor).groups, Layout.of(tensor), tensor.device

    def compress() -> None:
        quantise(tensor)

    def restore() -> None:
        dequantise(groups, layout)

    for name, work in {"compressing": compress, "restoring": restore}.items():
        least = min(_seconds(work, device) for _ in range(10))
        print(f"{name}: {1e3 * least / (tensor.nbytes / MIB):.2f} ms per MiB")


def print_gradients(exact: nn.Module, close: nn.Module) -> None:
    """Prints how far the gradients of each block are off."""
    print("| block | gradient off by | cosine |")
    print("|---|---|---|")
    blocks = dict(close.named_children())
    for name, block in [*exact.named_children(), ("all", exact)]:
        one, other = _gradient(blocks.get(name, close)), _gradient(block)
        error = float((one - other).norm() / other.norm())
        print(f"| {name} | {error:.2%} | {float(torch.cosine_similarity(one, other, dim=0)):.6f} |")


def _gradient(module: nn.Module) -> Tensor:
    """Returns all gradients of a module in one vector, in float64."""
    return torch.cat([each.grad.flatten().double() for each in module.parameters() if each.grad is not None])


class Task(NamedTuple):
    """Something to learn."""

    data: TrainingData
    builder: BatchBuilder
    settings: RunSettings

    @staticmethod
    def read(parquet_file: str) -> Task:
        """Prepares a file as the example's settings say."""
        settings, _ = read_run_settings(str(EXAMPLE))
        source = open_source(parquet_file)
        data = prepare_training(source, infer_roles(source, settings.data), settings)
        builder = BatchBuilder(data.table, data.preprocessor.window, data.preprocessor.target_scaler)
        return Task(data, builder, settings)

    def model(self, seed: int, recompute: RecomputeSettings | None) -> TemporalFusionTransformer:
        """Returns a model at its start."""
        torch.manual_seed(seed)
        model = TemporalFusionTransformer(derive_size(self.data.preprocessor, self.settings)).train()
        stream_variable_selection(model)
        if recompute is not None:
            attach_recompute(model, recompute)
        return model

    def loss(self, model: TemporalFusionTransformer, split: Split, rows: NDArray[np.int64]) -> Tensor:
        """Returns the mean quantile loss of some windows."""
        batch = self.builder.build(self.data.windows[split], rows)
        total, weight = pinball_loss(model(batch.inputs), batch.labels, batch.weights, model.size.quantiles)
        return total / weight


def measure_training(task: Task, seeds: list[int], updates: int, batch: int) -> None:
    """Prints validation losses with and without INT8 side by side, and how far gradients are off at the end."""
    compressed = RecomputeSettings(compress=True, min_bytes=1)
    print("| seed | validation loss, exact | INT8 | difference |")
    print("|---|---|---|---|")
    for seed in seeds:
        models = [train(task, seed, settings, updates, batch) for settings in (None, compressed)]
        exact, close = (validation_loss(task, model) for model in models)
        print(f"| {seed} | {exact:.5f} | {close:.5f} | {close / exact - 1:+.2%} |", flush=True)
    trained = models[0]
    twin = copy.deepcopy(trained)
    attach_recompute(twin, compressed)
    rows = np.random.default_rng(99).integers(0, len(task.data.windows["train"]), batch)
    for each in (trained, twin):
        each.train().zero_grad()
        torch.manual_seed(1)
        task.loss(each, "train", rows).backward()
    print_gradients(trained, twin)


def train(
    task: Task, seed: int, recompute: RecomputeSettings | None, updates: int, batch: int
) -> TemporalFusionTransformer:
    """Returns the model after some updates."""
    model = task.model(seed, recompute)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draws = np.random.default_rng(seed)
    for _ in range(updates):
        rows = draws.integers(0, len(task.data.windows["train"]), batch)
        optimizer.zero_grad()
        task.loss(model, "train", rows).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def validation_loss(task: Task, model: TemporalFusionTransformer) -> float:
    """Returns the mean loss over the validation windows, a batch of 256 at a time."""
    model.eval()
    count = len(task.data.windows["validation"])
    total = 0.0
    with torch.no_grad():
        for start in range(0, count, 256):
            rows = np.arange(start, min(start + 256, count))
            total += len(rows) * float(task.loss(model, "validation", rows))
    return total / count


if __name__ == "__main__":
    main()
