"""Plain and streaming variable selections with equal parameters, and how to compare what they give."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ds_tft.memory.chunks import StreamingSettings
from ds_tft.memory.dropout_mask import SeededDropout, draw_seed
from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.embedding import VariableEmbedding
from ds_tft.model.variable_selection import VariableSelection

GROUPS = {
    "reals": ((4, ()), (3, ())),
    "categories": ((0, (4, 3)), (0, (5,))),
    "both": ((3, (4,)), (2, (3, 5))),
    "reals then categories": ((3, ()), (0, (4, 2))),
    "categories then reals": ((0, (4, 2)), (3, ())),
    "one group": ((5, (3, 4)),),
    "one real": ((1, ()),),
    "one category": ((0, (4,)),),
}


class Owner(nn.Module):
    """A selection and its embeddings, as a model would own them."""

    def __init__(self, kind: str, hidden: int, dropout: float, with_context: bool) -> None:
        super().__init__()
        self.groups = nn.ModuleList(VariableEmbedding(*group, hidden) for group in GROUPS[kind])
        self.selection = VariableSelection(tuple(self.groups), hidden, dropout, with_context=with_context)

    def forward(
        self, reals: Tensor, categories: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return self.selection(reals, categories, context)


class Inputs(NamedTuple):
    reals: Tensor
    categories: Tensor
    context: Tensor | None


class FixedDropout(nn.Module):
    """Multiplies by a mask that is given."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask


def build(
    kind: str = "both",
    *,
    hidden: int = 8,
    dropout: float = 0.0,
    with_context: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Owner:
    """A plain selection whose biases and norms are not at their initial zeros and ones."""
    torch.manual_seed(0)
    owner = Owner(kind, hidden, dropout, with_context).to(torch.float64)
    with torch.no_grad():
        for parameter in owner.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return owner.to(dtype)


def draw_inputs(
    owner: Owner, *shape: int, with_context: bool = False, dtype: torch.dtype = torch.float64
) -> Inputs:
    """Random inputs, of shape (B, T, V) or (B, V); reals and context require gradients."""
    generator = torch.Generator().manual_seed(1)
    num_reals = sum(group.num_reals for group in owner.groups)
    cardinalities = [size for group in owner.groups for size in group.cardinalities]
    columns = [torch.randint(size, shape, generator=generator) for size in cardinalities]
    reals = torch.randn(*shape, num_reals, generator=generator, dtype=torch.float64).to(dtype)
    context = torch.randn(shape[0], owner.groups[0].hidden_size, generator=generator, dtype=torch.float64)
    return Inputs(
        reals.requires_grad_(),
        torch.stack(columns, -1) if columns else torch.zeros(*shape, 0, dtype=torch.int64),
        context.to(dtype).requires_grad_() if with_context else None,
    )


def streamed(owner: Owner, settings: StreamingSettings | None = None) -> Owner:
    """A streaming copy."""
    twin = copy.deepcopy(owner)
    stream_variable_selection(twin, settings)
    return twin


def share_masks(plain: Owner, streaming: Owner, inputs: Inputs, seed: int) -> None:
    """Gives the plain selection the masks that the streaming one draws after `torch.manual_seed(seed)`."""
    grns = plain.selection.variable_grns
    shape, (num_variables, hidden) = inputs.reals.shape[:-1], grns.norm_weight.shape
    torch.manual_seed(seed)
    dropout = SeededDropout(grns.dropout.p, draw_seed(), torch.device("cpu"))
    masks = dropout.draw(0, torch.empty(num_variables, shape.numel(), hidden, dtype=inputs.reals.dtype))
    grns.dropout = FixedDropout(masks.transpose(0, 1).reshape(*shape, num_variables, hidden) * dropout.scale)
    if plain.selection.weight_grn is None:
        return
    mask = (torch.rand(*shape, hidden) > 0.3).to(inputs.reals.dtype) * 1.4
    for owner in (plain, streaming):
        owner.selection.weight_grn.gated_norm.dropout = FixedDropout(mask)


def results(owner: Owner, inputs: Inputs, seed: int = 0) -> dict[str, Tensor]:
    """Mix, weights, and every gradient of a loss that depends on both."""
    torch.manual_seed(seed)
    mixed, weights = owner(*inputs)
    generator = torch.Generator().manual_seed(2)
    loss = sum(
        (part * torch.randn(part.shape, generator=generator, dtype=torch.float64)).sum()
        for part in (mixed, weights)
    )
    named = dict(owner.named_parameters())
    wanted = {name: tensor for name, tensor in {**inputs._asdict(), **named}.items() if tensor is not None}
    wanted = {name: tensor for name, tensor in wanted.items() if tensor.requires_grad and tensor.numel()}
    grads = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    return {
        "mixed": mixed.detach(),
        "weights": weights.detach(),
        **{f"gradient of {name}": grad for name, grad in zip(wanted, grads, strict=True)},
    }


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest expected magnitude."""
    actual, expected = actual.detach().double(), expected.detach().double()
    return float((actual - expected).abs().max() / expected.abs().max().clamp_min(1e-30))


def largest_error(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Largest relative error; what has no gradient in one must have none in the other."""
    assert actual.keys() == expected.keys()
    unused = {name for name, tensor in expected.items() if tensor is None}
    assert unused == {name for name, tensor in actual.items() if tensor is None}
    return max(relative_error(actual[name], expected[name]) for name in expected.keys() - unused)
