"""Small models to recompute, and how to train them."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ds_tft.memory.checkpoint_path import CheckpointPath
from ds_tft.memory.recompute import attach_recompute
from ds_tft.memory.recompute_report import RecomputeReport
from ds_tft.memory.recompute_settings import RecomputeSettings
from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.inputs import ModelInputs, ModelSize
from ds_tft.model.tft import TemporalFusionTransformer

MODES = {
    "deepspeed": RecomputeSettings(),
    "own": RecomputeSettings(path=CheckpointPath.OWN),
    "offload": RecomputeSettings(offload=True, min_bytes=1),
    "deepspeed and offload": RecomputeSettings(path=CheckpointPath.DEEPSPEED, offload=True, min_bytes=1),
}
SIZE = ModelSize(
    static_reals=2,
    static_categories=(3,),
    observed_reals=5,
    observed_categories=(4,),
    known_reals=2,
    known_categories=(3, 5),
    encoder_length=6,
    horizon=3,
    hidden_size=16,
    num_heads=4,
    lstm_layers=2,
    dropout=0.3,
)
EVERY_BLOCK = (
    "static_selection",
    "static_encoder",
    "history_selection",
    "future_selection",
    "lstm_encoder",
    "lstm_decoder",
    "lstm_gate",
    "static_enrichment",
    "attention",
    "attention_gate",
    "position_wise",
    "output_gate",
)


def draw(
    size: ModelSize = SIZE, batch: int = 4, seed: int = 1, lengths: list[int] | None = None
) -> ModelInputs:
    """A batch; with `lengths`, histories are padded."""
    generator = torch.Generator().manual_seed(seed)
    length, steps = size.encoder_length, size.encoder_length + size.horizon

    def reals(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=generator)

    def categories(cardinalities: tuple[int, ...], *shape: int) -> Tensor:
        columns = [torch.randint(size, (batch, *shape), generator=generator) for size in cardinalities]
        return torch.stack(columns, -1) if columns else torch.zeros(batch, *shape, 0, dtype=torch.int64)

    return ModelInputs(
        reals(size.static_reals),
        categories(size.static_categories),
        reals(length, size.observed_reals),
        categories(size.observed_categories, length),
        reals(steps, size.known_reals),
        categories(size.known_categories, steps),
        torch.tensor(lengths or [length] * batch),
    )


def build(*, streams: bool = False, size: ModelSize = SIZE) -> TemporalFusionTransformer:
    """A model in training mode, the same at each call."""
    torch.manual_seed(0)
    model = TemporalFusionTransformer(size).train()
    if streams:
        stream_variable_selection(model)
    return model


class Training(NamedTuple):
    """What a few updates led to."""

    losses: list[float]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    random_numbers: Tensor
    report: RecomputeReport | None


def train(
    model: nn.Module, settings: RecomputeSettings | None, *, steps: int = 5, lengths: list[int] | None = None
) -> Training:
    """Trains a copy of a model, with dropout."""
    model = copy.deepcopy(model)
    report = None if settings is None else attach_recompute(model, settings)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(7)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(draw(seed=step, lengths=lengths)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    named = dict(model.named_parameters())
    return Training(
        losses,
        {name: parameter.grad for name, parameter in named.items()},
        {name: parameter.detach() for name, parameter in named.items()},
        torch.get_rng_state(),
        report,
    )


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Bit by bit."""
    assert actual.keys() == expected.keys()
    differing = [name for name in expected if not torch.equal(actual[name], expected[name])]
    assert not differing


class Block(nn.Module):
    """A block with dropout; `shape` says what it does with its result."""

    def __init__(self, shape: object = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 8))
        self.shape = shape or (lambda result: result)

    def forward(self, x: Tensor) -> object:
        return self.shape(self.layers(x))


class Owner(nn.Module):
    """Holds one module under the name `block`."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *args: object, **kwargs: object) -> object:
        return self.block(*args, **kwargs)


def attach_block(block: nn.Module, mode: str) -> tuple[Owner, RecomputeReport]:
    """Recomputes one module."""
    owner = Owner(block).train()
    settings = MODES[mode]
    report = attach_recompute(
        owner,
        RecomputeSettings(
            blocks=("block",),
            path=settings.path,
            offload=settings.offload,
            min_bytes=settings.min_bytes,
        ),
    )
    return owner, report
