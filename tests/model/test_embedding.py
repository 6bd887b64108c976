from __future__ import annotations

import torch

from ds_tft.model.embedding import VariableEmbedding


def test_each_variable_has_its_own_embedding() -> None:
    embedding = VariableEmbedding(2, (3, 5), hidden_size=4)
    torch.nn.init.normal_(embedding.bias)
    reals = torch.randn(6, 7, 2)
    categories = torch.stack([torch.randint(3, (6, 7)), torch.randint(5, (6, 7))], -1)
    embedded_reals, embedded_categories = embedding(reals, categories)

    tables = embedding.table.split([3, 5])
    for v in range(2):
        expected = reals[..., v : v + 1] * embedding.weight[v] + embedding.bias[v]
        torch.testing.assert_close(embedded_reals[:, :, v], expected)
        torch.testing.assert_close(embedded_categories[:, :, v], tables[v][categories[..., v]])


def test_unseen_categories_start_as_zeros_and_no_others() -> None:
    embedding = VariableEmbedding(0, (3, 2), hidden_size=4)
    is_zero = (embedding.table == 0).all(-1)
    assert is_zero.tolist() == [True, False, False, True, False]


def test_empty_kinds_have_no_parameters_and_empty_outputs() -> None:
    only_reals = VariableEmbedding(2, (), hidden_size=4)
    assert [name for name, _ in only_reals.named_parameters()] == ["weight", "bias"]
    _, categories = only_reals(torch.randn(3, 2), torch.zeros(3, 0, dtype=torch.int64))
    assert categories.shape == (3, 0, 4)
    assert categories.dtype == torch.float32

    only_categories = VariableEmbedding(0, (3,), hidden_size=4)
    assert [name for name, _ in only_categories.named_parameters()] == ["table"]
    reals, _ = only_categories(torch.randn(3, 5, 0), torch.zeros(3, 5, 1, dtype=torch.int64))
    assert reals.shape == (3, 5, 0, 4)


def test_state_holds_parameters_only() -> None:
    embedding = VariableEmbedding(1, (3,), hidden_size=4)
    assert set(embedding.state_dict()) == {"weight", "bias", "table"}


def test_an_input_at_its_mean_is_not_embedded_as_zeros() -> None:
    embedded, _ = VariableEmbedding(3, (), 8)(torch.zeros(1, 3), torch.zeros(1, 0, dtype=torch.int64))
    assert (embedded.norm(dim=-1) > 0.1).all()
