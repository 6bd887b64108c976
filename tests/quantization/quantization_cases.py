"""Small folded models with quantised modules, and the same quantisation written plainly with autograd."""

from __future__ import annotations

import copy
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence

from ds_tft.memory.chunks import StreamingSettings
from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.embedding import VariableEmbedding
from ds_tft.model.fold import build_folded
from ds_tft.model.folded import CollapsedLinear, FoldedSelection, StackedLinear
from ds_tft.model.inputs import ModelInputs, ModelSize
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.quantization.attach import Covered, Quantisation, attach_quantisation
from ds_tft.quantization.calibration import calibrate

EVERYTHING = ModelSize(
    static_reals=2,
    static_categories=(3, 4),
    observed_reals=3,
    observed_categories=(5,),
    known_reals=2,
    known_categories=(4, 2),
    encoder_length=6,
    horizon=3,
    num_targets=2,
    hidden_size=8,
    num_heads=2,
    lstm_layers=2,
    dropout=0.0,
)
SIZES = {
    "everything": EVERYTHING,
    "reals only": ModelSize(
        static_reals=2,
        observed_reals=3,
        known_reals=2,
        encoder_length=5,
        horizon=2,
        hidden_size=8,
        dropout=0.0,
    ),
    "static categories only": ModelSize(
        static_categories=(3, 4), observed_reals=3, encoder_length=5, horizon=2, hidden_size=8, dropout=0.0
    ),
    "no static variables": ModelSize(
        observed_reals=3, observed_categories=(4,), encoder_length=5, horizon=2, hidden_size=8, dropout=0.0
    ),
    "one static variable": ModelSize(
        static_reals=1, observed_reals=2, encoder_length=5, horizon=2, hidden_size=8, dropout=0.0
    ),
}
KINDS = {
    "variable networks",
    "selection weights",
    "linear layers",
    "attention projections",
    "LSTM",
    "category tables",
}
LENGTHS = {"whole": None, "padded": [6, 2, 4, 1]}


class Quantised(NamedTuple):
    """A model and its quantised modules."""

    model: TemporalFusionTransformer
    quantisation: Quantisation


def draw(
    size: ModelSize = EVERYTHING,
    batch: int = 4,
    *,
    seed: int = 1,
    lengths: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
) -> ModelInputs:
    """A batch; with `lengths`, histories are padded."""
    generator = torch.Generator().manual_seed(seed)
    length, steps = size.encoder_length, size.encoder_length + size.horizon

    def reals(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=generator, dtype=torch.float64).to(dtype)

    def categories(cardinalities: tuple[int, ...], *shape: int) -> Tensor:
        columns = [torch.randint(count, (batch, *shape), generator=generator) for count in cardinalities]
        return torch.stack(columns, -1) if columns else torch.zeros(batch, *shape, 0, dtype=torch.int64)

    return ModelInputs(
        reals(size.static_reals),
        categories(size.static_categories),
        reals(length, size.observed_reals),
        categories(size.observed_categories, length),
        reals(steps, size.known_reals),
        categories(size.known_categories, steps),
        torch.tensor(list(lengths or [length] * batch)),
    )


def build(size: ModelSize = EVERYTHING, dtype: torch.dtype = torch.float32) -> TemporalFusionTransformer:
    """A folded model, the same at each call, whose variables differ in scale: a range of all is a bad one."""
    torch.manual_seed(0)
    model = build_folded(size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        for module in model.modules():
            if isinstance(module, FoldedSelection) and module.hidden_lines is not None:
                sizes = 4.0 ** torch.arange(len(module.hidden_lines)).neg()
                module.hidden_lines.mul_(sizes.view(-1, 1, 1))
    return model.to(dtype)


def attach(
    model: TemporalFusionTransformer,
    covered: Covered | None = None,
    *,
    percentile: float = 99.0,
    settings: StreamingSettings | None = None,
) -> Quantised:
    """Makes a copy of a model stream, quantises and calibrates it, and switches all on."""
    model = copy.deepcopy(model)
    stream_variable_selection(model, settings)
    quantisation = attach_quantisation(model, covered or Covered.all_of(model))
    dtype = next(model.parameters()).dtype
    batches = [draw(model.size, seed=seed, dtype=dtype) for seed in (11, 12)]
    calibrate(model, quantisation, batches, "percentile", percentile)
    quantisation.turn(weights=True, inputs=True)
    return Quantised(model, quantisation)


def steps_of(quantisation: Quantisation) -> dict[str, Tensor]:
    """The steps of the inputs by name of the module."""
    return {name: one.input_step.clone() for name, one in quantisation.quantisers.items() if one.num_steps}


class Results(NamedTuple):
    """What a loss and its gradients are."""

    loss: Tensor
    gradients: dict[str, Tensor]


def results(model: nn.Module, inputs: ModelInputs) -> Results:
    """A loss, and its gradients for the parameters, named as without parametrisations."""
    prediction = model(inputs)
    generator = torch.Generator().manual_seed(2)
    directions = torch.randn(prediction.shape, generator=generator, dtype=torch.float64)
    loss = (prediction.double() * directions).sum()
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.numel()}
    gradients = torch.autograd.grad(loss, list(named.values()))
    names = (name.replace("parametrizations.", "").removesuffix(".original") for name in named)
    return Results(loss.detach(), dict(zip(names, gradients, strict=True)))


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest expected magnitude."""
    actual, expected = actual.detach().double(), expected.detach().double()
    return float((actual - expected).abs().max() / expected.abs().max().clamp_min(1e-30))


def assert_same(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Bit by bit."""
    assert actual.keys() == expected.keys()
    assert not [name for name in expected if not torch.equal(actual[name], expected[name])]


class PlainWeight(nn.Module):
    """Rounds a weight to 127 steps of each output channel's largest magnitude; gradients pass."""

    def __init__(self, dim: int, input_steps: Tensor | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.input_steps = input_steps

    def forward(self, weight: Tensor) -> Tensor:
        if self.input_steps is None:
            return self._rounded(weight)
        scaled = weight * self.input_steps.unsqueeze(1)
        parts = torch.zeros_like(scaled)
        for group in plain_groups(self.input_steps.tolist()):
            parts = parts.index_copy(0, torch.tensor(group), self._rounded(scaled[group]))
        return parts / self.input_steps.unsqueeze(1)

    def _rounded(self, weight: Tensor) -> Tensor:
        scale = weight.detach().float().abs().amax(self.dim, keepdim=True) / 127
        return weight + ((weight / scale).round() * scale - weight).detach()


def plain_groups(steps: Sequence[float]) -> list[list[int]]:
    """Sorts inputs by how far their steps are below the widest one: to a half, a quarter .. a 128th, or further."""
    bounds = [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, float("inf")]
    groups: list[list[int]] = [[] for _ in bounds]
    for place, step in enumerate(steps):
        groups[next(number for number, bound in enumerate(bounds) if max(steps) / step <= bound)].append(
            place
        )
    return [group for group in groups if group]


def plain_inputs(values: Tensor, step: Tensor) -> Tensor:
    """Rounds inputs to steps and clips them at codes -128 and 127; gradients pass where nothing is clipped."""
    codes = values / step
    codes = codes + (codes.round() - codes).detach()
    return codes.clamp(-128, 127) * step


def plainly_quantised(
    folded: TemporalFusionTransformer, steps: Mapping[str, Tensor], weights: Container[str] | None = None
) -> nn.Module:
    """Quantises a copy of a folded model that does not stream, by torch's parametrisations and hooks.

    Args:
        folded: In floating point.
        steps: Of the inputs, by name of the module; others are left alone.
        weights: Names of the modules whose weights are rounded; all, if left out.
    """
    model = copy.deepcopy(folded)
    for name, module in list(model.named_modules()):
        step = steps.get(name)
        for weight, dim in _weights(module) if weights is None or name in weights else ():
            own = step if isinstance(module, CollapsedLinear) and weight == "weight" else None
            parametrize.register_parametrization(module, weight, PlainWeight(dim, own))
        if step is not None:
            module.register_forward_pre_hook(_quantise_first(step))
    return model


def _weights(module: nn.Module) -> Iterator[tuple[str, int]]:
    """Names the weights of a module, with the dimension that is summed over."""
    if isinstance(module, (nn.Linear, StackedLinear)):
        yield "weight", 1
    elif isinstance(module, nn.LSTM):
        yield from ((name, 1) for name, _ in list(module.named_parameters()) if name.startswith("weight"))
    elif isinstance(module, CollapsedLinear):
        if len(module.weight):
            yield "weight", 0
        if module.table is not None:
            yield "table", 1
    elif isinstance(module, VariableEmbedding) and module.table is not None:
        yield "table", 1
    elif isinstance(module, FoldedSelection) and module.hidden_table is not None:
        yield "hidden_table", 1


def _quantise_first(step: Tensor) -> Any:
    """Returns a hook that quantises a module's first argument."""

    def hook(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        first, *rest = arguments
        own = step.view(-1, 1) if isinstance(module, StackedLinear) else step
        if isinstance(first, PackedSequence):
            return first._replace(data=plain_inputs(first.data, own)), *rest
        return plain_inputs(first, own), *rest

    return hook
