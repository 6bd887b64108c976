from __future__ import annotations

import math

import pytest
import torch

from ds_tft.model.loss import pinball_loss, pinball_per_quantile

QUANTILES = (0.1, 0.5, 0.9)


def draw() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 3, 2, 3), torch.randn(4, 3, 2), torch.rand(4, 3, 2)


def test_equals_a_loop_over_labels() -> None:
    prediction, labels, weights = draw()
    sums = [0.0, 0.0, 0.0]
    for index in torch.cartesian_prod(torch.arange(4), torch.arange(3), torch.arange(2)).tolist():
        at = tuple(index)
        for q, level in enumerate(QUANTILES):
            error = labels[at].item() - prediction[at][q].item()
            sums[q] += weights[at].item() * (level * error if error >= 0 else (level - 1) * error)
    torch.testing.assert_close(
        pinball_per_quantile(prediction, labels, weights, QUANTILES), torch.tensor(sums)
    )
    total, weight = pinball_loss(prediction, labels, weights, QUANTILES)
    torch.testing.assert_close(total, torch.tensor(math.fsum(sums) / 3))
    torch.testing.assert_close(weight, weights.sum())


def test_least_at_the_quantile() -> None:
    labels = torch.linspace(0, 1, 1001).view(-1, 1, 1)
    guesses = torch.linspace(0, 1, 101)
    losses = [
        pinball_per_quantile(guess.expand(1001, 1, 1, 3), labels, torch.ones_like(labels), QUANTILES)
        for guess in guesses
    ]
    best = guesses[torch.stack(losses).argmin(0)]
    torch.testing.assert_close(best, torch.tensor(QUANTILES), rtol=0, atol=0.011)


@pytest.mark.parametrize("missing", [math.nan, math.inf])
def test_missing_labels_leave_no_trace(missing: float) -> None:
    prediction, labels, weights = draw()
    weights[0, 1, 1] = 0
    prediction.requires_grad_()
    expected, _ = pinball_loss(prediction, labels, weights, QUANTILES)
    (expected_gradient,) = torch.autograd.grad(expected, prediction)
    labels[0, 1, 1] = missing
    loss, weight = pinball_loss(prediction, labels, weights, QUANTILES)
    (gradient,) = torch.autograd.grad(loss, prediction)
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, expected_gradient)
    assert not gradient[0, 1, 1].any()
    torch.testing.assert_close(weight, weights.sum())


def test_a_missing_label_with_weight_is_not_hidden() -> None:
    prediction, labels, weights = draw()
    labels[0, 0, 0] = math.nan
    loss, _ = pinball_loss(prediction, labels, weights, QUANTILES)
    assert torch.isnan(loss)


def test_half_precision_sums_in_float32() -> None:
    prediction = torch.full((1024, 8, 1, 1), 1.0, dtype=torch.bfloat16)
    labels = torch.zeros(1024, 8, 1)
    loss, weight = pinball_loss(prediction, labels, torch.ones_like(labels, dtype=torch.bfloat16), (0.25,))
    assert loss.dtype == weight.dtype == torch.float32
    assert loss.item() == 0.75 * 8192
    assert weight.item() == 8192


def test_sums_of_batches_add_up() -> None:
    prediction, labels, weights = draw()
    whole = torch.stack(pinball_loss(prediction, labels, weights, QUANTILES))
    parts = [
        torch.stack(pinball_loss(prediction[part], labels[part], weights[part], QUANTILES))
        for part in (slice(0, 3), slice(3, 4))
    ]
    torch.testing.assert_close(parts[0] + parts[1], whole)


def test_number_of_quantiles_must_match() -> None:
    prediction, labels, weights = draw()
    with pytest.raises(ValueError, match="longer"):
        pinball_loss(prediction, labels, weights, (0.1, 0.9))
