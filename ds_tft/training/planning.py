"""The command that plans: memory of a configuration and of alternatives to it, without training and GPU."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape

from ds_tft.config.batch import ACCUMULATION, GLOBAL, MICRO, BatchSizes, resolve_batch
from ds_tft.config.deepspeed import read_deepspeed_settings
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.resolve import RunFlags, read_run_settings
from ds_tft.config.run import RunSettings
from ds_tft.console import make_console
from ds_tft.data.infer import infer_roles
from ds_tft.data.parquet import open_source
from ds_tft.data.prepare import prepare_training
from ds_tft.errors import ConfigError
from ds_tft.formatting import format_bytes
from ds_tft.memory.plan.alternatives import AS_GIVEN, Alternative, look_at_alternatives, recommend
from ds_tft.memory.plan.processes import Planner
from ds_tft.memory.plan.tables import alternatives_table, plan_table
from ds_tft.model.inputs import ModelSize
from ds_tft.model_size import derive_size

GIB = 2**30
DEFAULT_BUDGET_GIB = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanArguments:
    """What the command line said. `None` and empty mean: not given."""

    parquet: str | None = None
    inputs: tuple[int, int, int] = (5, 210, 10)
    """Static, observed and known real variables of the model, where there is no file to tell."""
    targets: tuple[str, ...] = ()
    config: str | None = None
    deepspeed_config: str | None = None
    batch_size: int | None = None
    use_gradient_checkpointing: bool = False
    overrides: tuple[str, ...] = ()
    budget_gib: float | None = None
    device: str = "cuda"
    processes: int = 1
    write: str | None = None


def plan(arguments: PlanArguments) -> None:
    """Prints the plan, the alternatives and which one to take, and writes that one where asked to.

    Args:
        arguments: The command line.

    Raises:
        UserError: Something in the arguments, the settings or the data that the user can mend.
    """
    _check(arguments)
    console = make_console()
    run_settings, changes = read_run_settings(
        arguments.config, arguments.overrides, RunFlags(targets=arguments.targets)
    )
    settings, engine_changes = read_deepspeed_settings(
        arguments.deepspeed_config,
        arguments.overrides,
        use_checkpointing=arguments.use_gradient_checkpointing,
    )
    batch = resolve_batch(settings, arguments.processes, arguments.batch_size)
    size, source = _model_size(arguments, run_settings)
    for line in (*changes, *engine_changes, *batch.notes, source, f"batch: {batch}"):
        console.print(escape(line), soft_wrap=True)
    gib = arguments.budget_gib or settings.ds_tft.memory_budget_gib or DEFAULT_BUDGET_GIB
    found = _look(arguments, size, settings, batch, round(gib * GIB), console)
    chosen = recommend(found, batch.micro_batch)
    console.print(escape(_advice(chosen, batch, gib)), soft_wrap=True)
    if arguments.write is not None:
        if chosen is None:
            raise ConfigError(
                f"--write: nothing fits {gib:g} GiB, got {len(found)} configurations that do not; "
                "raise --budget-gib, or lower model.hidden_size"
            )
        _write(Path(arguments.write), chosen, console)


def _check(arguments: PlanArguments) -> None:
    """Refuses numbers that mean nothing."""
    if arguments.budget_gib is not None and not 0 < arguments.budget_gib < float("inf"):
        raise ConfigError(f"--budget-gib: expected more than 0, got {arguments.budget_gib:g}; give GiB")
    if arguments.processes < 1:
        raise ConfigError(f"--processes: expected 1 or more, got {arguments.processes}; give a number")
    if arguments.write is not None and not Path(arguments.write).parent.is_dir():
        parent = Path(arguments.write).parent
        raise ConfigError(f"--write: there is no folder '{parent}', got '{arguments.write}'; make it first")


def _model_size(arguments: PlanArguments, settings: RunSettings) -> tuple[ModelSize, str]:
    """Returns the model's shapes, and in one line where they come from."""
    if arguments.parquet is not None:
        source = open_source(arguments.parquet)
        data = prepare_training(source, infer_roles(source, settings.data), settings)
        size = derive_size(data.preprocessor, settings)
        words = str(source.path)
    else:
        static, observed, known = arguments.inputs
        model, targets = settings.model, max(1, len(settings.data.target or ()))
        if observed < targets or known < 1:
            raise ConfigError(
                f"--inputs: expected at least {targets} observed (the target's history) and 1 known (the "
                f"relative time index), got {static},{observed},{known}; add them"
            )
        size = ModelSize(
            static_reals=static, observed_reals=observed, known_reals=known,
            encoder_length=settings.window.encoder_length, horizon=settings.window.horizon,
            num_targets=targets, quantiles=tuple(sorted(model.quantiles)), hidden_size=model.hidden_size,
            num_heads=model.num_heads, lstm_layers=model.lstm_layers, dropout=model.dropout,
        )  # fmt: skip
        words = "taken from --inputs, all real, since no --parquet-file is given"
    return size, (
        f"model: {size.num_static} static, {size.num_observed} observed, {size.num_known} known inputs "
        f"({words}); encoder {size.encoder_length}, horizon {size.horizon}, hidden {size.hidden_size}"
    )


def _look(
    arguments: PlanArguments,
    size: ModelSize,
    settings: DeepSpeedSettings,
    batch: BatchSizes,
    budget_bytes: int,
    console: Console,
) -> list[Alternative]:
    """Prints what is planned, the configuration that is given first, and returns it."""
    found: list[Alternative] = []
    with Planner(arguments.device, arguments.processes, torch.get_num_threads()) as planner:
        for each in look_at_alternatives(planner, size, settings, batch, budget_bytes):
            if not found:
                console.print(plan_table(each.plan, budget_bytes, plain=not console.is_terminal))
            found.append(each)
    console.print(alternatives_table(found, batch, budget_bytes, plain=not console.is_terminal))
    return found


def _advice(chosen: Alternative | None, batch: BatchSizes, gib: float) -> str:
    """Says which one to take."""
    if chosen is None or chosen.largest is None:
        return (
            f"take: none of these fits {gib:g} GiB, even with one window at a time; lower model.hidden_size, "
            "window.encoder_length or the number of inputs"
        )
    sizes = _sizes_to_take(chosen, batch)
    peak = format_bytes((chosen.plan if sizes == batch else chosen.largest).peak_bytes)
    what = "the configuration as it is" if chosen.change.name == AS_GIVEN else chosen.change.name
    return f"take: {what}, at {sizes}; peak {peak} of {gib:g} GiB"


def _sizes_to_take(chosen: Alternative, batch: BatchSizes) -> BatchSizes:
    """The sizes asked for if they fit, else the largest that do."""
    assert chosen.largest is not None, "what is chosen fits"
    return batch if chosen.largest.batch.micro_batch >= batch.micro_batch else chosen.largest.batch


def _write(path: Path, chosen: Alternative, console: Console) -> None:
    """Saves a DeepSpeed JSON, and reads it back as training would."""
    assert chosen.largest is not None, "what is chosen fits"
    sizes = _sizes_to_take(chosen, chosen.plan.batch)
    complete: dict[str, Any] = chosen.change.settings.model_dump(mode="json", exclude_unset=True)
    complete |= {GLOBAL: sizes.global_batch, MICRO: sizes.micro_batch, ACCUMULATION: sizes.accumulation}
    try:
        path.write_text(json.dumps(complete, indent=2) + "\n")
    except OSError as error:
        reason = error.strerror
        raise ConfigError(f"--write: cannot write '{path}', got {reason}; give another path") from error
    read_deepspeed_settings(str(path))
    console.print(escape(f"written: {path}; train with --deepspeed_config {path}"), soft_wrap=True)
