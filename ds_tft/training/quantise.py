"""`launch/quantise.py`: an INT8 model from one that is trained, with or without fine-tuning."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import RenderableType

from ds_tft.config.batch import check_fills, resolve_batch
from ds_tft.config.deepspeed import engine_config, read_deepspeed_settings
from ds_tft.config.overrides import changes, for_run, merged, origins
from ds_tft.config.run import RunSettings
from ds_tft.config.validation import validate
from ds_tft.data.forecast_data import prepare_forecast
from ds_tft.data.parquet import open_source
from ds_tft.data.prepare import TrainingData
from ds_tft.data.split import SPLITS
from ds_tft.data.windows import find_windows
from ds_tft.errors import ConfigError, DataError
from ds_tft.export import ModelDescription, read_export
from ds_tft.forecast.evaluate import Evaluation
from ds_tft.forecast.report import facts_table, print_report
from ds_tft.forecast.score_tables import Scores, Variant, score_blocks
from ds_tft.formatting import format_bytes
from ds_tft.memory.meter import MemoryMeter
from ds_tft.model.fold import build_folded
from ds_tft.training.adam8bit import check_adamw_8bit
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.conclusion import evaluate_on_test
from ds_tft.training.engine import choose_device, start_process_group
from ds_tft.training.environment import ProcessPlace
from ds_tft.training.int8 import check_int8, quantise_model
from ds_tft.training.int8_outcome import Int8Outcome
from ds_tft.training.interruption import Interruption
from ds_tft.training.introduction import introduce
from ds_tft.training.log import RunLog
from ds_tft.training.memory_fit import fit_memory
from ds_tft.training.run_folder import (
    check_same_run,
    choose_folder,
    fingerprint,
    held_folder,
    refuse_used_folder,
    write_settings,
)
from ds_tft.training.setup import RunSetup, check_settings, windows_per_epoch

FREE = "training"
"""Section of the run JSON that may differ from that of the trained model."""
WITHOUT_EFFECT = ("patience", "validate_every_steps")
"""Keys of it that the fine-tuning sets itself."""


def quantise(model: str, arguments: TrainArguments, place: ProcessPlace) -> None:
    """Quantises a trained model, fine-tunes it where the settings say so, exports and evaluates it.

    Args:
        model: The export in floating point, or the run folder that holds it.
        arguments: The rest of the command line.
        place: This process among those of the run.

    Raises:
        UserError: Something in the arguments, the settings or the data that the user can mend.
    """
    loaded = read_export(Path(model))
    if loaded.description.int8 is not None:
        raise ConfigError(
            f"--model: '{model}' is quantised already, got {loaded.description.int8.line}; "
            "give the floating-point export that it was made from"
        )
    setup = _set_up(arguments, loaded.description, place)
    start_process_group(setup.device)
    folder = choose_folder(arguments.output_dir)
    with (
        RunLog(folder, enabled=place.is_first) as log,
        held_folder(folder, log.warn),
        Interruption() as interruption,
    ):
        if arguments.resume is None:
            refuse_used_folder(folder)
        introduce(log, setup)
        setup = fit_memory(setup, log.say)
        check_int8(setup, log.say)
        _open_folder(folder, _settings(model, setup), setup, log)
        evaluation = evaluate_on_test(setup, loaded.model.to(setup.device))
        loaded.model.cpu()
        outcome = quantise_model(setup, loaded, folder, MemoryMeter(setup.device), log.console, interruption)
        if place.is_first:
            _sum_up(log, setup, loaded.bytes, evaluation, outcome)


def _set_up(arguments: TrainArguments, description: ModelDescription, place: ProcessPlace) -> RunSetup:
    """Settles a run on the data of a trained model."""
    settings, run_changes = _run_settings(description, arguments.overrides)
    engine_settings, engine_changes = read_deepspeed_settings(
        arguments.deepspeed_config,
        arguments.overrides,
        use_checkpointing=arguments.use_gradient_checkpointing,
        use_int8=True,
    )
    batch = resolve_batch(engine_settings, place.world_size, arguments.batch_size)
    device = choose_device(place)
    check_settings(engine_settings, device, place.world_size)
    check_adamw_8bit(engine_settings, device)
    source = open_source(arguments.parquet)
    preprocessor, bounds = description.preprocessor, description.bounds
    found = prepare_forecast(source, preprocessor, 0)
    windows, report = find_windows(found.table, preprocessor.window, bounds, required=())
    for split in SPLITS:
        if bounds.has(split) and not len(windows[split]):
            raise DataError(
                f"{arguments.parquet}: no window has its labels in the {split} period of the model, "
                f"got {source.num_rows:,} rows; give the file of the training"
            )
    data = TrainingData(
        table=found.table,
        preprocessor=preprocessor,
        bounds=bounds,
        windows=windows,
        train_rows=(found.table.times < bounds.train_end) & ~found.table.synthetic,
        lines=(*found.lines, *report.lines()),
    )
    check_fills(batch, windows_per_epoch(data, settings))
    return RunSetup(
        arguments=replace(arguments, use_int8=True),
        place=place,
        settings=settings,
        engine_settings=engine_settings,
        batch=batch,
        device=device,
        source=source,
        inferred=None,
        data=data,
        changes=(*run_changes, *engine_changes, *batch.notes),
    )


def _run_settings(
    description: ModelDescription, overrides: Sequence[str]
) -> tuple[RunSettings, tuple[str, ...]]:
    """The run settings of the model, with what of the training may be changed."""
    given = for_run(overrides)
    for one in given:
        if one.path[0] != FREE:
            raise ConfigError(
                f"{one.origin}: {'.'.join(one.path)}: belongs to the trained model, got {one.value!r}; "
                f"set what starts with {FREE}. or deepspeed. only"
            )
        if one.path[-1] in WITHOUT_EFFECT:
            raise ConfigError(
                f"{one.origin}: {'.'.join(one.path)}: has no effect, got {one.value!r}: the fine-tuning runs to its "
                "end, is validated at even distances, and its best model is kept; remove it"
            )
    raw = description.settings.model_dump(mode="json")
    settings = validate(RunSettings, merged(raw, given), "settings of the model", origins(given))
    return settings, tuple(changes(RunSettings, raw, given, "settings of the model"))


def _settings(model: str, setup: RunSetup) -> dict[str, object]:
    """What is kept of the settings."""
    count = sum(parameter.numel() for parameter in build_folded(setup.size).parameters())
    return {
        "model": model,
        "parquet": setup.arguments.parquet,
        FREE: setup.settings.training.model_dump(mode="json"),
        "deepspeed": setup.engine_settings.model_dump(mode="json"),
        "engine": engine_config(setup.engine_settings, setup.batch, setup.total_steps, count),
        "prepared": fingerprint(setup.data),
        "processes": setup.place.world_size,
    }


def _open_folder(folder: Path, settings: dict[str, object], setup: RunSetup, log: RunLog) -> None:
    """Keeps the settings, or checks that what is resumed is what the folder holds."""
    if setup.arguments.resume is not None:
        for line in check_same_run(folder, settings):
            log.say(f"changed since the run began: {line}")
    elif setup.place.is_first:
        write_settings(folder, settings)


def _sum_up(
    log: RunLog, setup: RunSetup, source_bytes: int, evaluation: Evaluation | None, outcome: Int8Outcome
) -> None:
    """Prints what came of it."""
    summary = outcome.summary
    share = summary.bytes / source_bytes
    facts = [
        ("Model", f"{format_bytes(source_bytes)} in floating point"),
        (
            "INT8 model",
            f"{summary.line}, {format_bytes(summary.bytes)}, {share:.3f} of it, in {summary.folder}",
        ),
    ]
    blocks: list[RenderableType] = [facts_table(facts)]
    if evaluation is not None and summary.model is not None:
        scores = Scores(
            title="Test",
            targets=setup.data.preprocessor.layout.roles.target,
            model=evaluation.model,
            baselines=evaluation.baselines,
            scaled=evaluation.scaled,
            variants=(Variant(name="INT8 model", errors=summary.model, scaled=summary.scaled),),
        )
        blocks += score_blocks(scores, not log.console.is_terminal)
    print_report(blocks, log.console)
    folder, file = shlex.quote(summary.folder), shlex.quote(setup.arguments.parquet)
    log.say(f"  python launch/evaluate.py --model {folder} --parquet-file {file}")
