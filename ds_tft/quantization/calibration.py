"""Measures the ranges of the inputs of quantised modules, once, on training windows; they stay fixed from then on.

So nothing moves in training, evaluation or recomputation. The measurement runs the floating-point model with everything
that is attached to it, in evaluation mode. Its result depends on which values were seen, and on nothing else: not on
the order of batches, nor on how they are spread over processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from ds_tft.errors import ConfigError
from ds_tft.model.inputs import ModelInputs
from ds_tft.quantization.attach import Quantisation
from ds_tft.quantization.histogram import MagnitudeHistogram
from ds_tft.quantization.layer import LayerQuantiser
from ds_tft.quantization.ranges import CalibrationMethod, activation_scale, clip_values, unreached


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationReport:
    """What was measured."""

    modules: int
    ranges: int
    clipped: float
    """Share of the values seen that lies beyond its range."""
    not_finite: int
    """Values left out because they are not finite."""

    def lines(self) -> list[str]:
        """Says it for the log."""
        lines = [
            f"calibration: {self.ranges:,} ranges of {self.modules} modules, {self.clipped:.4%} of values beyond them"
        ]
        if self.not_finite:
            lines.append(f"calibration: {self.not_finite:,} values are not finite and were left out")
        return lines


def calibrate(
    model: nn.Module,
    quantisation: Quantisation,
    batches: Iterable[ModelInputs],
    method: CalibrationMethod,
    percentile: float,
) -> CalibrationReport:
    """Sets the steps of all inputs.

    Args:
        model: What `quantisation` is attached to; left in evaluation mode.
        quantisation: Its quantised modules.
        batches: Training windows, those of this process.
        method: How a range follows from what was seen.
        percentile: Share of values within the range, in per cent, where the method is `percentile`.

    Raises:
        ConfigError: A module saw nothing.
    """
    watched = {name: one for name, one in quantisation.quantisers.items() if one.num_steps}
    for one in watched.values():
        one.observed = MagnitudeHistogram(one.num_steps, one.input_step.device)
    quantisation.turn(weights=False, inputs=False)
    model.eval()
    with torch.no_grad():
        for inputs in batches:
            model(inputs)
    histograms = {name: _take(one) for name, one in watched.items()}
    clipped = seen = not_finite = 0
    for name, histogram in histograms.items():
        histogram.all_reduce()
        if unreached(histogram):
            raise ConfigError(
                f"calibration: '{name}' saw no input, got {type(model).__name__} that does not call it; "
                "leave it out of the modules to quantise"
            )
        clips = clip_values(histogram, method, percentile)
        watched[name].input_step.copy_(activation_scale(clips))
        clipped += int(histogram.count_above(clips))
        seen += int(histogram.finite.sum())
        not_finite += int(histogram.not_finite.sum())
    return CalibrationReport(
        modules=len(watched),
        ranges=sum(one.num_steps for one in watched.values()),
        clipped=clipped / max(1, seen),
        not_finite=not_finite,
    )


def _take(quantiser: LayerQuantiser) -> MagnitudeHistogram:
    """Ends the observation of one module."""
    histogram, quantiser.observed = quantiser.observed, None
    assert histogram is not None
    return histogram
