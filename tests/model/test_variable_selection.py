from __future__ import annotations

import copy

import pytest
import torch
from model_cases import copy_variable, randomise

from ds_tft.model.embedding import VariableEmbedding
from ds_tft.model.variable_selection import VariableSelection

HIDDEN = 6


def build(dropout: float = 0.0, with_context: bool = True) -> VariableSelection:
    """A selection over two groups: 3 reals and 1 category, then 2 reals and 2 categories."""
    torch.manual_seed(0)
    groups = (VariableEmbedding(3, (4,), HIDDEN).double(), VariableEmbedding(2, (3, 5), HIDDEN).double())
    selection = VariableSelection(groups, HIDDEN, dropout, with_context=with_context).double()
    for module in (*groups, selection):
        randomise(module)
    return selection


def draw(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    reals = torch.randn(*shape, 5).double()
    categories = torch.stack([torch.randint(n, shape) for n in (4, 3, 5)], -1)
    return reals, categories


def naive(
    selection: VariableSelection, reals: torch.Tensor, categories: torch.Tensor, context: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same variable by variable: (B, T, H) and (B, T, V)."""
    first, second = selection.embeddings
    embedded = []
    for v, (group, i) in enumerate([(first, 0), (first, 1), (first, 2), (second, 0), (second, 1)]):
        embedded.append(reals[..., v : v + 1] * group.weight[i] + group.bias[i])
    for v, (group, row) in enumerate([(first, 0), (second, 0), (second, 3)]):
        embedded.append(group.table[categories[..., v] + row])
    scores = selection.weight_grn(torch.cat(embedded, -1), context)
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    mixed = torch.zeros_like(embedded[0])
    for v, vector in enumerate(embedded):
        mixed = mixed + weights[..., v : v + 1] * copy_variable(selection.variable_grns, v)(vector)
    return mixed, weights


@pytest.mark.parametrize("with_context", [True, False])
def test_stacked_form_equals_a_loop_over_variables(with_context: bool) -> None:
    selection = build(with_context=with_context)
    reals, categories = draw(2, 4)
    context = torch.randn(2, HIDDEN).double() if with_context else None
    mixed, weights = selection(reals, categories, context)
    expected_mixed, expected_weights = naive(selection, reals, categories, context)
    torch.testing.assert_close(mixed, expected_mixed, rtol=0, atol=1e-12)
    torch.testing.assert_close(weights, expected_weights, rtol=0, atol=1e-12)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4).double(), rtol=0, atol=1e-12)


def test_context_moves_the_weights_of_its_own_sample_only() -> None:
    selection = build()
    reals, categories = draw(2, 4)
    context = torch.randn(2, HIDDEN).double()
    _, before = selection(reals, categories, context)
    context[1] += 1
    _, after = selection(reals, categories, context)
    torch.testing.assert_close(after[0], before[0], rtol=0, atol=1e-14)
    assert (after[1] - before[1]).abs().max() > 1e-4


def test_without_a_time_dimension() -> None:
    selection = build(with_context=False)
    reals, categories = draw(3, 1)
    mixed, weights = selection(reals[:, 0], categories[:, 0])
    with_time, weights_with_time = selection(reals, categories)
    torch.testing.assert_close(mixed, with_time[:, 0])
    torch.testing.assert_close(weights, weights_with_time[:, 0])


def test_a_single_variable_has_weight_one_and_no_weight_network() -> None:
    embedding = VariableEmbedding(1, (), HIDDEN)
    selection = VariableSelection((embedding,), HIDDEN, 0.0, with_context=True)
    mixed, weights = selection(
        torch.randn(2, 3, 1), torch.zeros(2, 3, 0, dtype=torch.int64), torch.randn(2, HIDDEN)
    )
    assert mixed.shape == (2, 3, HIDDEN)
    assert torch.equal(weights, torch.ones(2, 3, 1))
    assert not [name for name in selection.state_dict() if name.startswith("weight_grn")]


def test_embeddings_are_used_but_not_owned() -> None:
    selection = build()
    assert not [name for name in selection.state_dict() if "embedding" in name]
    twin = copy.deepcopy(selection)
    assert twin.embeddings[0] is not selection.embeddings[0]
    reals, categories = draw(2, 3)
    context = torch.randn(2, HIDDEN).double()
    torch.testing.assert_close(twin(reals, categories, context), selection(reals, categories, context))
