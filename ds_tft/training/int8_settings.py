"""How long and at which rate the fine-tuning for INT8 goes: a short run with settings of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.int8 import FINE_TUNE_LEARNING_RATE_SHARE, check_schedule, int8_plan
from ds_tft.config.run import TrainingSettings
from ds_tft.training.setup import RunSetup, windows_per_epoch

STEPS_SHARE = 0.1
FEWEST_STEPS = 20
VALIDATIONS = 5
"""In the whole of the fine-tuning, besides those at the ends of epochs."""


def fine_tuning_steps(setup: RunSetup) -> int:
    """Returns the updates of the fine-tuning; 0 quantises only.

    Raises:
        ConfigError: Quantisation would never switch on in so many.
    """
    plan = int8_plan(setup.engine_settings)
    assert plan is not None
    check_schedule(plan, _asked_steps(setup))
    return _epochs(setup)[0] * _epochs(setup)[1]


def updates_per_epoch(setup: RunSetup) -> int:
    """Returns the updates between two epochs of the fine-tuning, which a resumed one must share; 0 without one."""
    return _epochs(setup)[1]


def fine_tuning_setup(setup: RunSetup) -> RunSetup:
    """Returns the run with the settings of the fine-tuning."""
    training = setup.settings.training
    epochs, per_epoch = _epochs(setup)
    steps = epochs * per_epoch
    changed: dict[str, Any] = {
        "epochs": epochs,
        "windows_per_epoch": min(
            per_epoch * setup.batch.global_batch, windows_per_epoch(setup.data, setup.settings)
        ),
        "validate_every_steps": max(1, steps // VALIDATIONS),
        "patience": 0,
    }
    settings = setup.settings.model_copy(update={"training": _copied(training, changed)})
    return replace(setup, settings=settings, engine_settings=_engine_settings(setup.engine_settings))


def _asked_steps(setup: RunSetup) -> int:
    """Updates that the settings ask for."""
    asked = setup.engine_settings.ds_tft.int8.fine_tune_steps
    return asked if isinstance(asked, int) else max(FEWEST_STEPS, round(STEPS_SHARE * setup.total_steps))


def _epochs(setup: RunSetup) -> tuple[int, int]:
    """Epochs, and updates of each: at least as many as asked for together, in epochs of about equal length."""
    steps = _asked_steps(setup)
    if not steps:
        return 0, 0
    whole = -(-windows_per_epoch(setup.data, setup.settings) // setup.batch.global_batch)
    epochs = -(-steps // whole)
    return epochs, -(-steps // epochs)


def _engine_settings(settings: DeepSpeedSettings) -> DeepSpeedSettings:
    """The DeepSpeed JSON with the learning rate and a schedule that suit the fine-tuning."""
    asked = settings.ds_tft.int8.learning_rate
    params = settings.optimizer.params
    rate = asked if isinstance(asked, float) else FINE_TUNE_LEARNING_RATE_SHARE * params.lr
    optimizer = settings.optimizer.model_copy(update={"params": params.model_copy(update={"lr": rate})})
    scheduler = settings.scheduler
    if scheduler is not None:
        open_keys = {"warmup_num_steps", "total_num_steps", "warmup_max_lr"} & set(
            type(scheduler.params).model_fields
        )
        scheduler = scheduler.model_copy(
            update={"params": scheduler.params.model_copy(update=dict.fromkeys(open_keys, "auto"))}
        )
    return settings.model_copy(update={"optimizer": optimizer, "scheduler": scheduler})


def _copied(training: TrainingSettings, changed: dict[str, Any]) -> TrainingSettings:
    """A copy of the section with other values."""
    return training.model_copy(update=changed)
