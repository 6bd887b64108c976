"""The loss of the model on held-out windows, over all processes.

Letters: O targets, Q quantiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import nn

from ds_tft.data.batches import BatchBuilder
from ds_tft.data.sampler import evaluation_batches
from ds_tft.data.windows import WindowIndex
from ds_tft.model.loss import pinball_per_quantile
from ds_tft.training.environment import ProcessPlace


@dataclass(frozen=True, slots=True)
class ValidationLoss:
    """Pinball losses in scaled units."""

    mean: float
    """Mean over quantiles."""
    per_quantile: tuple[float, ...]


@torch.no_grad()
def validation_loss(
    model: nn.Module,
    builder: BatchBuilder,
    windows: WindowIndex,
    quantiles: tuple[float, ...],
    batch_size: int,
    place: ProcessPlace,
) -> ValidationLoss:
    """Evaluates every window once, spread over the processes.

    Args:
        model: The model; it is put in evaluation mode and back.
        builder: Makes batches of windows.
        windows: The windows to evaluate.
        quantiles: The model's levels.
        batch_size: Windows per forward of this process.
        place: This process's share.

    Returns:
        The same losses on every process.
    """
    parameter = next(model.parameters())
    sums = torch.zeros(len(quantiles) + 1, dtype=torch.float64)  # Q sums, then the sum of weights
    was_training = model.training
    model.eval()
    for indices in evaluation_batches(len(windows), batch_size, place.rank, place.world_size):
        batch = builder.build(windows, indices)
        batch = batch.to(parameter.device, parameter.dtype)
        prediction = model(batch.inputs)
        sums[:-1] += pinball_per_quantile(prediction, batch.labels, batch.weights, quantiles).double().cpu()
        sums[-1] += batch.weights.double().sum().cpu()
    model.train(was_training)
    sums = _sum_over_processes(sums, parameter.device)
    losses = (sums[:-1] / sums[-1]).tolist()
    return ValidationLoss(mean=sum(losses) / len(losses), per_quantile=tuple(losses))


def _sum_over_processes(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Adds up over all processes; the backend decides where the numbers must be."""
    summed: Any = values.to(device)
    torch.distributed.all_reduce(summed)
    return summed.cpu()
