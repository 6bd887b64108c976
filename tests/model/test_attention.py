from __future__ import annotations

import math

import pytest
import torch

from ds_tft.model.attention import InterpretableAttention, masked_softmax, visible_keys


def test_equals_a_loop_over_heads() -> None:
    torch.manual_seed(0)
    attention = InterpretableAttention(8, 2).double()
    queries, keys = torch.randn(3, 2, 8).double(), torch.randn(3, 5, 8).double()
    visible = torch.rand(3, 2, 5) < 0.6
    visible[..., 0] = True
    mixed, weights = attention(queries, keys, visible)

    values = keys @ attention.value.weight.T
    heads = []
    for n, rows in enumerate((slice(0, 4), slice(4, 8))):
        query = queries @ attention.query.weight[rows].T
        key = keys @ attention.key.weight[rows].T
        scores = query @ key.transpose(1, 2) / math.sqrt(4)
        expected = scores.masked_fill(~visible, -math.inf).softmax(-1)
        torch.testing.assert_close(weights[:, n], expected, rtol=0, atol=1e-12)
        heads.append(expected @ values)
    torch.testing.assert_close(mixed, sum(heads) / 2 @ attention.output.weight.T, rtol=0, atol=1e-12)


def test_rows_sum_to_one_and_hidden_keys_get_exactly_zero() -> None:
    visible = torch.rand(4, 1, 3, 6) < 0.5
    visible[..., 2] = True
    weights = masked_softmax(torch.randn(4, 2, 3, 6) * 30, visible)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, 2, 3))
    assert not weights.masked_select(~visible).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_row_that_sees_nothing_is_zero_and_finite_in_every_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    attention = InterpretableAttention(8, 2).to(dtype)
    queries = (torch.randn(2, 3, 8) * 20).to(dtype).requires_grad_()
    keys = (torch.randn(2, 4, 8) * 20).to(dtype).requires_grad_()
    visible = torch.ones(2, 3, 4, dtype=torch.bool)
    visible[0, 1] = False
    mixed, weights = attention(queries, keys, visible)
    mixed.float().square().sum().backward()

    assert mixed.dtype == dtype
    assert weights.dtype == torch.float32
    assert not mixed[0, 1].any()
    assert not weights[0, :, 1].any()
    for tensor in (mixed, queries.grad, keys.grad, *(p.grad for p in attention.parameters())):
        assert torch.isfinite(tensor).all()
    assert not queries.grad[0, 1].any()


def test_scores_keep_float32_under_autocast() -> None:
    torch.manual_seed(0)
    attention = InterpretableAttention(8, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, weights = attention(
            torch.randn(2, 3, 8), torch.randn(2, 4, 8), torch.ones(2, 3, 4, dtype=torch.bool)
        )
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 3), rtol=0, atol=1e-6)


def test_visible_keys() -> None:
    present = torch.tensor([[True, True], [True, False]])
    visible = visible_keys(present, 3).int()
    assert visible[0].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert visible[1].tolist() == [[1, 0, 1, 0, 0], [1, 0, 1, 1, 0], [1, 0, 1, 1, 1]]
