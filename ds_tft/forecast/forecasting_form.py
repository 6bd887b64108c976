"""The form in which a trained model forecasts."""

from __future__ import annotations

from ds_tft.memory.streaming import is_streamed, stream_variable_selection
from ds_tft.model.fold import fold, is_folded
from ds_tft.model.tft import TemporalFusionTransformer


def forecasting_form(model: TemporalFusionTransformer) -> TemporalFusionTransformer:
    """Returns a model folded and streaming: the same forecasts to about 1e-6, in less time and memory.

    Args:
        model: Plain, or in that form already, in evaluation mode; a plain one is not changed.
    """
    folded = model if is_folded(model) else fold(model)
    if not any(is_streamed(module) for module in folded.modules()):
        stream_variable_selection(folded)
    return folded
