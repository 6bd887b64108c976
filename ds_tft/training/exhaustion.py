"""What a run does when its memory runs out: it says what to change, or goes on with smaller micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ds_tft.errors import ConfigError
from ds_tft.formatting import format_bytes
from ds_tft.memory.plan.processes import Planner
from ds_tft.memory.plan.remedies import find_remedies, remedies_text
from ds_tft.memory.trace.timeline import BACKWARD, FORWARD
from ds_tft.training.setup import RunSetup

BATCH = "batch"
WITHOUT_PLAN = (
    "lower train_micro_batch_size_per_gpu, give --use-gradient-checkpointing, or lower model.hidden_size"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exhaustion:
    """An update that ran out of memory."""

    step: int
    """Its number, from 1."""
    phase: str
    """`batch` while batches are built, `forward`, `backward`, `optimizer`, or empty between them."""
    message: str
    """First line of the error."""


def may_halve(setup: RunSetup, exhaustion: Exhaustion) -> bool:
    """Says whether smaller micro-batches are allowed, possible, and of use.

    An update of the weights that failed may have changed some of them, and takes no less for fewer windows.
    """
    allowed = setup.engine_settings.ds_tft.on_out_of_memory == "halve"
    return allowed and setup.batch.micro_batch % 2 == 0 and exhaustion.phase in (BATCH, FORWARD, BACKWARD)


def explain(setup: RunSetup, exhaustion: Exhaustion) -> ConfigError:
    """Plans changes that save memory and returns an error that names them; takes seconds."""
    batch = setup.batch
    place = f" in {exhaustion.phase}" if exhaustion.phase else ""
    happened = f"memory: step {exhaustion.step} ran out of it{place}, got {exhaustion.message!r}"
    try:
        planned, advice = _plan(setup)
    except (OSError, RuntimeError, MemoryError):  # there may be too little memory left to plan with
        return ConfigError(f"{happened} at micro-batch {batch.micro_batch}; {WITHOUT_PLAN}")
    return ConfigError(
        f"{happened} with {format_bytes(planned)} planned at micro-batch {batch.micro_batch}; {advice}"
    )


def _plan(setup: RunSetup) -> tuple[int, str]:
    """Returns the bytes planned for the run as it was, and what to change."""
    settings, batch = setup.engine_settings, setup.batch
    with Planner(setup.device.type, setup.place.world_size, torch.get_num_threads()) as planner:
        now = planner.predict(setup.size, settings, batch)
        remedies = find_remedies(planner, setup.size, settings, batch, now, None)
    return now.peak_bytes, remedies_text(remedies)
