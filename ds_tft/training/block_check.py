"""Blocks named in `ds_tft.recompute` must free memory: measured on a small batch before training."""

from __future__ import annotations

import numpy as np
import torch

from ds_tft.memory.block_savings import measure_blocks, refuse_useless
from ds_tft.memory.passes import attach_streaming
from ds_tft.memory.streaming import unstream
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.training.setup import RunSetup

WINDOWS = 4


def refuse_useless_blocks(model: TemporalFusionTransformer, setup: RunSetup) -> None:
    """Runs a few windows once per named block. The default blocks are known to pay and are not checked.

    Args:
        model: On the CPU, without passes; it has none afterwards.
        setup: The run.

    Raises:
        ConfigError: A block that is unknown, named twice, or frees nothing.
    """
    blocks = setup.engine_settings.ds_tft.recompute
    if blocks is None or blocks == "default":
        return
    windows = setup.data.windows["train"]
    batch = setup.batch_builder().build(windows, np.arange(min(WINDOWS, len(windows))))
    report = attach_streaming(model, setup.engine_settings, torch.device("cpu"))
    try:
        refuse_useless(measure_blocks(model.train(), lambda: model(batch.inputs), blocks, batch.inputs))
    finally:
        if report is not None:
            unstream(model)
