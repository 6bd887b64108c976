"""The shapes of the model, as they follow from the prepared data and the settings."""

from __future__ import annotations

from ds_tft.config.run import RunSettings
from ds_tft.data.preprocessor import Preprocessor
from ds_tft.model.inputs import ModelSize


def derive_size(preprocessor: Preprocessor, settings: RunSettings) -> ModelSize:
    """Derives the shapes of the model.

    Args:
        preprocessor: What training settled about the data.
        settings: The run JSON.
    """
    layout, maps = preprocessor.layout, preprocessor.categories

    def cardinalities(names: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(maps[name].cardinality for name in names)

    return ModelSize(
        static_reals=len(layout.static_reals),
        static_categories=cardinalities(layout.static_categories),
        observed_reals=len(layout.roles.target) + len(layout.observed_reals),
        observed_categories=cardinalities(layout.roles.observed_categories),
        known_reals=1 + len(layout.known_reals),
        known_categories=cardinalities(layout.roles.known_categories),
        encoder_length=settings.window.encoder_length,
        horizon=settings.window.horizon,
        num_targets=len(layout.roles.target),
        quantiles=tuple(sorted(settings.model.quantiles)),
        hidden_size=settings.model.hidden_size,
        num_heads=settings.model.num_heads,
        lstm_layers=settings.model.lstm_layers,
        dropout=settings.model.dropout,
    )
