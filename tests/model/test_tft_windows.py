"""What a forecast may depend on: the past, the present, and nothing of its neighbours."""

from __future__ import annotations

import copy

import torch
from model_cases import SMALL, build, random_inputs, unused_parameters

from ds_tft.model.inputs import ModelInputs


def test_horizon_steps_do_not_see_later_known_inputs() -> None:
    model = build(dtype=torch.float64)
    inputs = random_inputs(SMALL, dtype=torch.float64)
    known = inputs.known_reals.requires_grad_()
    prediction = model(inputs._replace(known_reals=known))
    for k in range(3):
        (gradient,) = torch.autograd.grad(prediction[:, k].sum(), known, retain_graph=True)
        seen = gradient.abs().sum((0, 2)) > 0
        assert seen.tolist() == [True] * (5 + k + 1) + [False] * (2 - k)


def test_changing_later_known_inputs_leaves_earlier_steps_as_they_are() -> None:
    model, inputs = build(), random_inputs(SMALL, lengths=[5, 2, 4, 5])
    before = model(inputs)
    reals, categories = inputs.known_reals.clone(), inputs.known_categories.clone()
    reals[:, 5 + 1 :] += 3
    categories[:, 5 + 1 :] = 1 - categories[:, 5 + 1 :].clamp(max=1)
    after = model(inputs._replace(known_reals=reals, known_categories=categories))
    assert torch.equal(after[:, 0], before[:, 0])
    assert (after[:, 1:] != before[:, 1:]).any(-1).all()


def test_padding_has_no_influence_whatever_it_holds() -> None:
    model = build()
    inputs = random_inputs(SMALL, lengths=[5, 2, 1, 4])
    padding = torch.arange(5) >= inputs.encoder_lengths.unsqueeze(1)
    garbage = copy.deepcopy(inputs)
    garbage.observed_reals[padding] = torch.nan
    garbage.observed_categories[padding] = 10**6
    garbage.known_reals[:, :5][padding] = 1e30
    garbage.known_categories[:, :5][padding] = -7
    observed = garbage.observed_reals.requires_grad_()
    for expected, actual in zip(model.interpret(inputs), model.interpret(garbage), strict=True):
        assert torch.equal(expected, actual)
    assert unused_parameters(model, garbage) == []
    assert not observed.grad[padding].any()
    assert observed.grad[~padding].all()


def test_a_window_alone_equals_itself_in_a_mixed_batch() -> None:
    model = build(dtype=torch.float64).eval()
    inputs = random_inputs(SMALL, lengths=[3, 5, 1, 5], dtype=torch.float64)
    together = model(inputs)
    assert torch.equal(together, model(inputs))
    for b, length in enumerate(inputs.encoder_lengths.tolist()):
        alone = ModelInputs(*(tensor[b : b + 1] for tensor in inputs))
        torch.testing.assert_close(model(alone), together[b : b + 1], rtol=0, atol=1e-12)
        cut = alone._replace(
            observed_reals=alone.observed_reals[:, :length],
            observed_categories=alone.observed_categories[:, :length],
            known_reals=torch.cat([alone.known_reals[:, :length], alone.known_reals[:, 5:]], 1),
            known_categories=torch.cat(
                [alone.known_categories[:, :length], alone.known_categories[:, 5:]], 1
            ),
        )
        torch.testing.assert_close(model(cut), together[b : b + 1], rtol=0, atol=1e-12)


def test_every_input_counts() -> None:
    model = build(dtype=torch.float64)
    inputs = random_inputs(SMALL, dtype=torch.float64)
    reals = [inputs.static_reals, inputs.observed_reals, inputs.known_reals]
    for tensor in reals:
        tensor.requires_grad_()
    for gradient in torch.autograd.grad(model(inputs)[..., -1, :, :].sum(), reals):
        assert gradient.all()
    before = model(inputs)
    for field in ("static_categories", "observed_categories", "known_categories"):
        changed = (getattr(inputs, field) == 0).long()
        assert (model(inputs._replace(**{field: changed})) != before).any((1, 2, 3)).all()
