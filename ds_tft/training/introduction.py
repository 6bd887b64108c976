"""The opening words of a run: what was read, what the model is, what it runs on."""

from __future__ import annotations

import torch

import ds_tft
from ds_tft.data.infer import roles_table
from ds_tft.data.schema import Roles
from ds_tft.model.tft import TemporalFusionTransformer, parameter_table
from ds_tft.training.log import RunLog
from ds_tft.training.setup import RunSetup


def introduce(log: RunLog, setup: RunSetup) -> None:
    """Says what was read, in which roles, and what was done to it."""
    log.say(f"ds_tft {ds_tft.__version__}: {setup.source.path}")
    inferred = setup.inferred
    if inferred is not None:
        log.console.print(roles_table(inferred))
    notes = () if inferred is None else inferred.notes
    for line in (
        *setup.changes,
        *notes,
        *setup.data.lines,
        *_known_hint(setup.data.preprocessor.layout.roles),
    ):
        log.say(line)


def model_lines(model: TemporalFusionTransformer, num_parameters: int) -> tuple[str, ...]:
    """Returns the shapes of the model, and the parameters of its blocks, for the log."""
    size = model.size
    total = size.num_static + size.num_observed + size.num_known
    blocks = ", ".join(f"{name} {count:,}" for name, count in parameter_table(model) if count)
    return (
        f"model: {total} inputs ({size.num_static} static, {size.num_observed} observed, "
        f"{size.num_known} known), encoder {size.encoder_length}, horizon {size.horizon}, "
        f"hidden {size.hidden_size}",
        f"model: {num_parameters:,} parameters: {blocks}",
    )


def device_name(device: torch.device) -> str:
    """Returns the device in words."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return f"{properties.name}, {properties.total_memory / 2**30:.1f} GiB"
    return f"CPU, {torch.get_num_threads()} threads"


def _known_hint(roles: Roles) -> tuple[str, ...]:
    """Says that no column is known in advance, which is never inferred."""
    if roles.known_reals or roles.known_categories:
        return ()
    return (
        "known in advance: no column of the file; name those that are in data.known_reals or known_categories",
    )
