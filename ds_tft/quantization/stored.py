"""The INT8 model as it is stored and as it forecasts: folded, streaming, its weights as codes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.fold import build_folded
from ds_tft.model.inputs import ModelSize
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.quantization.attach import Covered, attach_quantisation


def build_stored(
    size: ModelSize, covered: Covered, weights: Mapping[str, Tensor] | None = None
) -> TemporalFusionTransformer:
    """Builds an INT8 model, in evaluation mode, on the CPU.

    Args:
        size: Shapes of the model.
        covered: What is quantised.
        weights: Weights of the folded model and the measured steps, in floating point; without them the model waits
            for a state dict of codes.
    """
    model = build_folded(size)
    stream_variable_selection(model)
    quantisation = attach_quantisation(model, covered)
    if weights is not None:
        model.load_state_dict(weights)
    quantisation.store()
    return model.eval()
