"""`launch/verify.py`: the memory passes checked on a user's own data, settings and device, with a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from ds_tft.console import make_console
from ds_tft.data.batches import Batch
from ds_tft.errors import ConfigError, UserError
from ds_tft.formatting import format_bytes, format_number, format_seconds
from ds_tft.memory.out_of_memory import is_out_of_memory
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.block_check import refuse_useless_blocks
from ds_tft.training.environment import ProcessPlace
from ds_tft.training.introduction import device_name, model_lines
from ds_tft.training.memory_fit import fit_memory
from ds_tft.training.setup import RunSetup, set_up
from ds_tft.training.verification import Cost, Difference, Verification, first_windows

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def verify(arguments: TrainArguments, place: ProcessPlace) -> None:
    """Runs one batch through every form of the model, prints two tables and a verdict.

    Args:
        arguments: The command line; what concerns training only has no effect.
        place: This process; there must be one.

    Raises:
        ConfigError: There are several processes, stage 3, or blocks that free nothing.
        UserError: A pass changes losses or gradients by more than its bound.
    """
    if place.world_size > 1:
        raise ConfigError(
            f"launch/verify.py: runs in one process, got {place.world_size}; start it with plain python"
        )
    console = make_console()
    setup = fit_memory(set_up(arguments, place), console.print)
    if setup.engine_settings.zero_optimization.stage == 3:
        raise ConfigError(
            "launch/verify.py: compares passes that stage 3 does not allow, got zero_optimization.stage 3; "
            "use another stage"
        )
    refuse_useless_blocks(TemporalFusionTransformer(setup.size), setup)
    model, batch = _model(setup), _batch(setup)
    for line in (
        *model_lines(model, sum(parameter.numel() for parameter in model.parameters())),
        f"batch: {len(batch.labels)} windows, {setup.engine_settings.precision}, on {device_name(setup.device)}",
    ):
        console.print(line)
    differences, costs = _measure(console, model, batch, setup)
    console.print(_differences_table(differences))
    console.print(_costs_table(costs))
    failed = [each for each in differences if not each.holds]
    if failed:
        raise UserError(_failure(failed[0]))
    for idle in (each for each in differences if each.idle):
        console.print(f"{idle.form}: no effect here: {idle.idle}")
    held = sum(each.bound is not None and not each.idle for each in differences)
    console.print(
        f"verdict: {held} comparisons hold; what they compare trains the same model (inputs as INT8 are lossy "
        "and have no bound)",
        style="bold",
        soft_wrap=True,
    )


def _model(setup: RunSetup) -> TemporalFusionTransformer:
    """The model as training would start it, on its device, in its precision."""
    torch.manual_seed(setup.settings.training.seed)
    model = TemporalFusionTransformer(setup.size)
    return model.to(setup.device, DTYPES[setup.engine_settings.precision])


def _batch(setup: RunSetup) -> Batch:
    """The first windows of the training period, as many as a micro-batch has."""
    windows = setup.data.windows["train"]
    numbers = np.arange(min(setup.batch.micro_batch, len(windows)))
    batch = setup.batch_builder().build(windows, numbers)
    return batch.to(setup.device, DTYPES[setup.engine_settings.precision])


def _measure(
    console: Console, model: TemporalFusionTransformer, batch: Batch, setup: RunSetup
) -> tuple[list[Difference], list[Cost]]:
    """Compares and measures with as many windows as the plain model has memory for."""
    for windows in halvings(len(batch.labels)):
        verification = Verification(model, first_windows(batch, windows), setup.engine_settings)
        try:
            with console.status("comparing losses and gradients"):
                return list(verification.differences()), verification.costs()
        except Exception as error:
            if not is_out_of_memory(error) or windows == 1:
                raise
        if setup.device.type == "cuda":
            torch.cuda.empty_cache()
        console.print(f"batch: {windows} windows do not fit into memory in every form; taking half of them")
    raise AssertionError("a batch has at least one window")


def halvings(number: int) -> Iterator[int]:
    """Yields a number, half of it, and so on, down to 1."""
    while number >= 1:
        yield number
        number //= 2


def _differences_table(differences: Sequence[Difference]) -> Table:
    """One row per comparison."""
    table = Table(title="Losses and gradients: relative difference, 0 is bit-equal", title_justify="left")
    for name in ("form", "against", "in", "dropout", "windows", "loss", "gradients", "bound", "verdict"):
        table.add_column(name, justify="left" if name in ("form", "against", "in", "verdict") else "right")
    for each in differences:
        verdict = "FAILS" if not each.holds else "lossy" if each.bound is None else "holds"
        table.add_row(
            each.form,
            each.reference,
            str(each.dtype).removeprefix("torch."),
            format_number(each.dropout),
            str(each.windows),
            format_number(each.loss),
            format_number(each.gradients),
            "none" if each.bound is None else f"{each.bound:g}",
            "no effect" if each.idle and each.holds else verdict,
        )
    return table


def _costs_table(costs: Sequence[Cost]) -> Table:
    """One row per form."""
    table = Table(title="A training step, without weights and batch", title_justify="left")
    table.add_column("form")
    headings = ("kept for backward", "of plain", "peak, gradients included", "of plain", "host buffers")
    for name in (*headings, "time", "of plain"):
        table.add_column(name, justify="right")
    plain = costs[0]
    for each in costs:
        table.add_row(
            each.form,
            format_bytes(each.kept_bytes),
            f"{each.kept_bytes / plain.kept_bytes:.3f}",
            format_bytes(each.peak_bytes),
            f"{each.peak_bytes / plain.peak_bytes:.3f}",
            format_bytes(each.host_bytes) if each.host_bytes else "none",
            format_seconds(each.seconds),
            f"{each.seconds / plain.seconds:.2f}",
        )
    return table


def _failure(difference: Difference) -> str:
    """Says what does not hold."""
    return (
        f"launch/verify.py: {difference.form} differs from {difference.reference}, got "
        f"{format_number(difference.loss)} in the loss and {format_number(difference.gradients)} in the "
        f"gradients, most in '{difference.worst_parameter}' ({format_number(difference.worst)}), where "
        f"{format_number(difference.bound or 0.0)} is allowed; please report it with the settings"
    )
