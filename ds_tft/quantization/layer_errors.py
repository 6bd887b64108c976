"""What each quantised module costs: the forecasts when it alone is quantised, beside those of floating point.

Letters: B batch, K horizon steps, O targets, Q quantiles.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ds_tft.model.inputs import ModelInputs
from ds_tft.quantization.attach import Quantisation


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerError:
    """The error of one module."""

    name: str
    kind: str
    forecast_error: float
    """RMS difference of the forecasts over their RMS deviation from their mean."""
    weight_error: float
    """RMS difference of its weights over their RMS."""


@torch.no_grad()
def measure_layer_errors(
    model: nn.Module, quantisation: Quantisation, batches: Sequence[ModelInputs]
) -> tuple[LayerError, ...]:
    """Quantises one module at a time, and looks at the forecasts.

    Args:
        model: What `quantisation` is attached to, calibrated, with floating-point weights; put in evaluation mode.
        quantisation: Its quantised modules; everything is switched on afterwards.
        batches: Windows to forecast.

    Returns:
        One for each module, the largest forecast error first.
    """
    model.eval()
    quantisation.turn(weights=False, inputs=False)
    exact = _forecasts(model, batches)
    spread = (exact - exact.mean(0)).square().mean().sqrt()
    quantisation.turn(weights=True, inputs=True)
    errors = []
    for site in quantisation.sites:
        if site.name not in quantisation.quantisers:
            continue
        with _alone(quantisation, site.name):
            difference = (_forecasts(model, batches) - exact).square().mean().sqrt()
        weights = [
            (
                getattr(site.module, name),
                quantisation.quantisers[site.name].table(name, getattr(site.module, name)),
            )
            for name in site.summed
        ]
        errors.append(
            LayerError(
                name=site.name,
                kind=site.kind,
                forecast_error=float(difference / spread.clamp_min(1e-30)),
                weight_error=_relative_error(weights),
            )
        )
    return tuple(sorted(errors, key=lambda error: -error.forecast_error))


def write_layer_errors(path: Path, errors: Sequence[LayerError]) -> None:
    """Writes them as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(error) for error in errors], indent=1) + "\n", encoding="utf-8")


def layer_error_lines(errors: Sequence[LayerError], most: int = 3) -> list[str]:
    """Names the modules that cost most, for the log."""
    worst = ", ".join(f"{error.name} {error.forecast_error:.2%}" for error in errors[:most])
    return [f"int8: modules whose quantisation alone moves the forecasts most: {worst}"]


def _forecasts(model: nn.Module, batches: Sequence[ModelInputs]) -> Tensor:
    """Returns the forecasts of all windows, (B, K, O, Q) float64."""
    return torch.cat([model(inputs).double() for inputs in batches])


@contextmanager
def _alone(quantisation: Quantisation, name: str) -> Iterator[None]:
    """Leaves all modules but one in floating point."""
    for other, quantiser in quantisation.quantisers.items():
        quantiser.active = other == name
    try:
        yield
    finally:
        for quantiser in quantisation.quantisers.values():
            quantiser.active = True


def _relative_error(weights: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Relative RMS difference of pairs of tensors, together."""
    difference = sum(float((exact - rounded).double().square().sum()) for exact, rounded in weights)
    total = sum(float(exact.double().square().sum()) for exact, _ in weights)
    return (difference / max(total, 1e-30)) ** 0.5
