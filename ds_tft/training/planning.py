"""The command that plans: memory of a configuration and of alternatives to it, without training and GPU."""

from __future__ import annotations

import json
import os.path
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape

from ds_tft.config.batch import ACCUMULATION, GLOBAL, MICRO, BatchSizes, check_fills, resolve_batch
from ds_tft.config.deepspeed import read_deepspeed_settings
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.overrides import Override, changes, for_deepspeed, merged
from ds_tft.config.resolve import RunFlags, read_run_settings
from ds_tft.config.run import RunSettings
from ds_tft.console import make_console
from ds_tft.data.infer import infer_roles
from ds_tft.data.parquet import open_source
from ds_tft.data.prepare import prepare_training
from ds_tft.errors import ConfigError
from ds_tft.formatting import format_bytes
from ds_tft.memory.plan.alternatives import AS_GIVEN, Alternative, look_at_alternatives, recommend
from ds_tft.memory.plan.memory_plan import MemoryPlan
from ds_tft.memory.plan.processes import Planner
from ds_tft.memory.plan.tables import alternatives_table, plan_table
from ds_tft.model.inputs import ModelSize
from ds_tft.model_size import derive_size
from ds_tft.training.setup import check_settings, windows_per_epoch

GIB = 2**30
DEFAULT_BUDGET_GIB = 4.0
MOST_GIB = 1e6  # as for ds_tft.memory_budget_gib
MOST_WINDOWS = 10**9
DEFAULT_INPUTS = (5, 210, 10)
BUDGET = ("ds_tft", "memory_budget_gib")
ROLES = (
    "series", "static_reals", "static_categories", "known_reals", "known_categories", "observed_reals",
    "observed_categories", "features",
)  # fmt: skip
"""Settings of section `data` that say which inputs there are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanArguments:
    """What the command line said. `None` and empty mean: not given."""

    parquet: str | None = None
    inputs: tuple[int, int, int] | None = None
    """Static, observed and known real variables of the model, where there is no file to tell; without both it
    is `DEFAULT_INPUTS`."""
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
    run_settings, run_changes = read_run_settings(
        arguments.config, arguments.overrides, RunFlags(targets=arguments.targets)
    )
    settings, engine_changes = _engine_settings(arguments)
    batch = _batch_sizes(arguments, settings)
    size, model_lines = _model_size(arguments, run_settings, batch)
    for line in (*run_changes, *engine_changes, *batch.notes, *model_lines, f"batch: {batch}"):
        console.print(escape(line), soft_wrap=True)
    gib = settings.ds_tft.memory_budget_gib or DEFAULT_BUDGET_GIB
    budget_bytes = int(gib * GIB)
    found = _look(arguments, size, settings, batch, budget_bytes, console)
    chosen = recommend(found, batch.micro_batch)
    taken = None if chosen is None else _plan_to_take(chosen, budget_bytes)
    console.print(escape(_advice(chosen, taken, gib)), soft_wrap=True)
    if arguments.write is not None:
        if chosen is None or taken is None:
            raise ConfigError(
                f"--write: nothing fits {gib:g} GiB, got {len(found)} configurations that do not; "
                "raise --budget-gib, or lower model.hidden_size"
            )
        _write(Path(arguments.write), chosen.change.settings, taken.batch, console)


def _check(arguments: PlanArguments) -> None:
    """Refuses numbers that mean nothing, and what cannot be written to."""
    if arguments.budget_gib is not None and not 0 < arguments.budget_gib <= MOST_GIB:
        raise ConfigError(
            f"--budget-gib: expected more than 0 and at most {MOST_GIB:,.0f}, got {arguments.budget_gib:g}; "
            "give GiB"
        )
    if arguments.processes < 1:
        raise ConfigError(f"--processes: expected 1 or more, got {arguments.processes}; give a number")
    if arguments.parquet is not None and arguments.inputs is not None:
        given = ",".join(map(str, arguments.inputs))
        raise ConfigError(f"--inputs: the file says which inputs there are, got {given}; give one of both")
    if arguments.write is not None:
        _check_writable(arguments.write)


def _check_writable(path: str) -> None:
    """Refuses a place where no file can be, before the planning."""
    parent = Path(path).parent
    if not os.path.isdir(parent):
        raise ConfigError(f"--write: there is no folder '{parent}', got '{path}'; make it first")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ConfigError(f"--write: expected the name of a file, got '{path}', which is none; give another")


def _engine_settings(arguments: PlanArguments) -> tuple[DeepSpeedSettings, list[str]]:
    """Returns the DeepSpeed JSON with the command line laid over it, and a line for each change."""
    settings, lines = read_deepspeed_settings(
        arguments.deepspeed_config,
        arguments.overrides,
        use_checkpointing=arguments.use_gradient_checkpointing,
    )
    if arguments.budget_gib not in (None, settings.ds_tft.memory_budget_gib):
        raw = settings.model_dump(mode="json", exclude_unset=True)
        flag = Override(BUDGET, arguments.budget_gib, "--budget-gib")
        merged(raw, [*for_deepspeed(arguments.overrides), flag])  # refuses a --set that says another
        source = arguments.deepspeed_config or "default DeepSpeed settings"
        lines += changes(DeepSpeedSettings, raw, [flag], source)
        product = settings.ds_tft.model_copy(update={BUDGET[-1]: arguments.budget_gib})
        settings = settings.model_copy(update={BUDGET[0]: product})
    check_settings(settings, torch.device(arguments.device), arguments.processes)
    return settings, lines


def _batch_sizes(arguments: PlanArguments, settings: DeepSpeedSettings) -> BatchSizes:
    """Returns the sizes of an update."""
    batch = resolve_batch(settings, arguments.processes, arguments.batch_size)
    if batch.global_batch > MOST_WINDOWS:
        raise ConfigError(
            f"--batch-size ({GLOBAL}): expected at most {MOST_WINDOWS:,} windows per update, got "
            f"{batch.global_batch}; give fewer"
        )
    return batch


def _model_size(
    arguments: PlanArguments, settings: RunSettings, batch: BatchSizes
) -> tuple[ModelSize, list[str]]:
    """Returns the model's shapes, and in words where they come from."""
    lines: list[str] = []
    if arguments.parquet is not None:
        source = open_source(arguments.parquet)
        data = prepare_training(source, infer_roles(source, settings.data), settings)
        check_fills(batch, windows_per_epoch(data, settings))
        size = derive_size(data.preprocessor, settings)
        words = str(source.path)
    else:
        static, observed, known = arguments.inputs or DEFAULT_INPUTS
        roles = [name for name in ROLES if name in settings.data.model_fields_set]
        if roles:
            lines.append(f"data: {', '.join(roles)} without --parquet-file: no effect on the inputs planned")
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
    lines.append(
        f"model: {size.num_static} static, {size.num_observed} observed, {size.num_known} known inputs "
        f"({words}); encoder {size.encoder_length}, horizon {size.horizon}, hidden {size.hidden_size}"
    )
    return size, lines


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
            if not found and each.plan is not None:
                console.print(plan_table(each.plan, budget_bytes, plain=not console.is_terminal))
            found.append(each)
    console.print(alternatives_table(found, batch, budget_bytes, plain=not console.is_terminal))
    return found


def _advice(chosen: Alternative | None, taken: MemoryPlan | None, gib: float) -> str:
    """Says which one to take."""
    if chosen is None or taken is None:
        return (
            f"take: none of these fits {gib:g} GiB, even with one window at a time; lower model.hidden_size, "
            "window.encoder_length or the number of inputs"
        )
    what = "the configuration as it is" if chosen.change.name == AS_GIVEN else chosen.change.name
    return f"take: {what}, at {taken.batch}; peak {format_bytes(taken.peak_bytes)} of {gib:g} GiB"


def _plan_to_take(chosen: Alternative, budget_bytes: int) -> MemoryPlan | None:
    """At the sizes asked for if they fit, else at the largest that do."""
    fits = chosen.plan is not None and chosen.plan.peak_bytes <= budget_bytes
    return chosen.plan if fits else chosen.largest


def _write(path: Path, settings: DeepSpeedSettings, sizes: BatchSizes, console: Console) -> None:
    """Saves a DeepSpeed JSON, and reads it back as training would."""
    done = "replaced" if os.path.exists(path) else "written"
    complete: dict[str, Any] = settings.model_dump(mode="json", exclude_unset=True)
    complete |= {GLOBAL: sizes.global_batch, MICRO: sizes.micro_batch, ACCUMULATION: sizes.accumulation}
    try:
        path.write_text(json.dumps(complete, indent=2) + "\n")
    except OSError as error:
        reason = error.strerror
        raise ConfigError(f"--write: cannot write '{path}', got {reason}; give another path") from error
    read_deepspeed_settings(str(path))
    console.print(escape(f"{done}: {path}; train with --deepspeed_config {path}"), soft_wrap=True)
