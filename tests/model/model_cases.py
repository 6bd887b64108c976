"""Model sizes, random inputs and parameter helpers shared by the model's tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ds_tft.model.grn import GatedResidualNetwork, StackedGRN
from ds_tft.model.inputs import ModelInputs, ModelSize
from ds_tft.model.tft import TemporalFusionTransformer

SMALL = ModelSize(
    static_reals=2,
    static_categories=(3, 4),
    observed_reals=3,
    observed_categories=(5,),
    known_reals=2,
    known_categories=(4, 2),
    encoder_length=5,
    horizon=3,
    num_targets=2,
    quantiles=(0.1, 0.5, 0.9),
    hidden_size=8,
    num_heads=2,
    lstm_layers=2,
    dropout=0.0,
)


def random_inputs(
    size: ModelSize,
    *,
    batch: int = 4,
    lengths: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> ModelInputs:
    """Draws a batch; histories are full unless `lengths` says otherwise."""
    generator = torch.Generator().manual_seed(seed)
    steps = size.encoder_length + size.horizon

    def reals(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    def categories(cardinalities: Sequence[int], *shape: int) -> torch.Tensor:
        columns = [torch.randint(n, shape, generator=generator) for n in cardinalities]
        return torch.stack(columns, -1) if columns else torch.zeros(*shape, 0, dtype=torch.int64)

    return ModelInputs(
        static_reals=reals(batch, size.static_reals),
        static_categories=categories(size.static_categories, batch),
        observed_reals=reals(batch, size.encoder_length, size.observed_reals),
        observed_categories=categories(size.observed_categories, batch, size.encoder_length),
        known_reals=reals(batch, steps, size.known_reals),
        known_categories=categories(size.known_categories, batch, steps),
        encoder_lengths=torch.tensor(lengths or [size.encoder_length] * batch),
    )


def copy_variable(stacked: StackedGRN, v: int) -> GatedResidualNetwork:
    """Puts one variable's parameters into a network of its own."""
    size = stacked.hidden_weight.shape[-1]
    single = GatedResidualNetwork(size, size, size, stacked.dropout.p).to(stacked.hidden_weight.dtype)
    pairs = [
        (single.hidden.weight, stacked.hidden_weight[v].T),
        (single.hidden.bias, stacked.hidden_bias[v]),
        (single.output.weight, stacked.output_weight[v].T),
        (single.output.bias, stacked.output_bias[v]),
        (single.gated_norm.gate.weight, stacked.gate_weight[v].T),
        (single.gated_norm.gate.bias, stacked.gate_bias[v]),
        (single.gated_norm.norm.weight, stacked.norm_weight[v]),
        (single.gated_norm.norm.bias, stacked.norm_bias[v]),
    ]
    with torch.no_grad():
        for target, source in pairs:
            target.copy_(source)
    return single


def randomise(module: torch.nn.Module) -> None:
    """Moves biases and norms off their initial zeros and ones."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)


def build(
    size: ModelSize = SMALL, dtype: torch.dtype = torch.float32, seed: int = 0
) -> TemporalFusionTransformer:
    """Builds a model from a seed."""
    torch.manual_seed(seed)
    return TemporalFusionTransformer(size).to(dtype)


def unused_parameters(model: nn.Module, inputs: ModelInputs) -> list[str]:
    """Names of parameters whose gradient is missing, not finite, or zero."""
    prediction = model(inputs)
    (prediction * torch.randn_like(prediction)).sum().backward()
    return [
        name
        for name, p in model.named_parameters()
        if p.grad is None or not torch.isfinite(p.grad).all() or not p.grad.any()
    ]
