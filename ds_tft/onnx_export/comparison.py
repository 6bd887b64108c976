"""Whether an ONNX file forecasts what the model does.

In floating point both do the same arithmetic in another order, and differ in the last digits. An INT8 model turns
such a difference into a whole step wherever a value lies at the edge between two codes, rarely and by chance: most
forecasts agree to the last digits, a few are off by as much as rounding to INT8 moves them. The larger the model, the
more: it differs from itself, too, where additions come in another order, as in a batch of another size. A mistake
in the file, such as a wrong step or another way to round, moves nearly all forecasts.

Letters: B windows, K horizon steps, O targets, Q quantiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ds_tft.errors import ConfigError
from ds_tft.formatting import format_number
from ds_tft.model.inputs import ModelInputs
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.onnx_export.windows import Windows

BATCH_SIZES = (32, 1)
TOLERANCE = 1e-5
"""Difference that rounding explains, relative to the spread of the forecasts."""
SHARE_OFF = 0.01
"""Forecasts of an INT8 model that may be off by more, in any case."""
TIMES_OWN = 10
"""How many times as many may be as in the model's comparison with itself, which finds few and by chance."""
LARGEST_SHARE_OFF = 0.25
FURTHEST_OFF = 0.1
"""Difference that no forecast of an INT8 model may exceed: a mistake may be one of few windows."""

Forecasts = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """How far apart the forecasts are. Differences are relative to the spread of the model's own forecasts."""

    is_int8: bool
    largest: float
    """Largest difference; NaN if a forecast is."""
    off: float
    """Share of forecasts that differ by more than `TOLERANCE`."""
    own_off: float
    """The same, of the model in batches of one size beside the model in batches of the other."""

    @property
    def allowed_off(self) -> float:
        """Largest share of an INT8 model's forecasts that may be off."""
        return min(LARGEST_SHARE_OFF, max(SHARE_OFF, TIMES_OWN * self.own_off))

    @property
    def agrees(self) -> bool:
        """Whether the file forecasts what the model does."""
        if not self.is_int8:
            return self.largest <= TOLERANCE
        return self.off < self.allowed_off and self.largest <= FURTHEST_OFF

    @property
    def found(self) -> str:
        """Says what was found."""
        largest = f"{format_number(self.largest)} of the spread of the forecasts"
        if not self.is_int8:
            return f"at most {largest}"
        return f"{self.off:.2%} of the forecasts off by more than {TOLERANCE:g}, at most {largest}"

    @property
    def bound(self) -> str:
        """Says what is allowed, and why."""
        if not self.is_int8:
            return f"at most {TOLERANCE:g}"
        return (
            f"under {self.allowed_off:.2%} off by more than {TOLERANCE:g}, none by more than {FURTHEST_OFF:g}; "
            f"{self.own_off:.2%} are when the model itself runs in batches of another size"
        )

    def require(self) -> None:
        """Refuses a file that forecasts something else.

        Raises:
            ConfigError: It does.
        """
        if not self.agrees:
            raise ConfigError(
                f"ONNX: forecasts are not those of the model ({self.bound}), got {self.found}; nothing was written, "
                "report it with the versions of onnx and onnxruntime"
            )


@torch.no_grad()
def compare(
    model: TemporalFusionTransformer,
    forecast: Callable[[ModelInputs], Forecasts],
    windows: Windows,
    *,
    is_int8: bool,
) -> Comparison:
    """Forecasts all windows both ways, in batches of each size.

    Args:
        model: On the CPU, in evaluation mode.
        forecast: What the file forecasts, (B, K, O, Q).
        windows: To forecast.
        is_int8: Whether the model is an INT8 one.
    """
    own = [_all(lambda inputs: model(inputs).numpy(), windows, size) for size in BATCH_SIZES]
    theirs = [_all(forecast, windows, size) for size in BATCH_SIZES]
    spread = max(float(np.concatenate(own).std(dtype=np.float64)), np.finfo(np.float32).tiny)
    differences = np.abs(np.concatenate(theirs) - np.concatenate(own)) / spread
    return Comparison(
        is_int8=is_int8,
        largest=float(differences.max()),
        off=_share_off(differences),
        own_off=_share_off(np.abs(own[0] - own[1]) / spread),
    )


def _all(forecast: Callable[[ModelInputs], Forecasts], windows: Windows, size: int) -> Forecasts:
    """Forecasts in batches of a size."""
    return np.concatenate([forecast(inputs) for inputs in windows.batches(size)])


def _share_off(differences: Forecasts) -> float:
    """Share of differences beyond the tolerance; what is not a number counts."""
    return float(1 - (differences <= TOLERANCE).mean())
