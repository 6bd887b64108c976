from __future__ import annotations

import copy
from dataclasses import replace
from itertools import product

import pytest
import torch
from model_cases import SMALL, build, random_inputs, unused_parameters
from torch import nn
from torch.utils.checkpoint import checkpoint

from ds_tft.model.inputs import ModelSize
from ds_tft.model.loss import pinball_loss
from ds_tft.model.tft import parameter_table

BLOCKS = [
    "static_embedding",
    "static_selection",
    "static_encoder",
    "observed_embedding",
    "known_embedding",
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
    "quantile_head",
]
STATIC = [(0, ()), (1, ()), (0, (3,)), (3, (2, 4))]
OBSERVED = [(1, ()), (4, (3,))]
KNOWN = [(1, ()), (1, (5,)), (3, (2, 2))]
SIZES = [
    replace(
        SMALL,
        static_reals=static[0],
        static_categories=static[1],
        observed_reals=observed[0],
        observed_categories=observed[1],
        known_reals=known[0],
        known_categories=known[1],
    )
    for static, observed, known in product(STATIC, OBSERVED, KNOWN)
]


def name_of(size: ModelSize) -> str:
    """Counts of real and categorical variables: static, observed, known."""
    reals = (size.static_reals, size.observed_reals, size.known_reals)
    categories = (size.static_categories, size.observed_categories, size.known_categories)
    return "-".join(f"{r}r{len(c)}c" for r, c in zip(reals, categories, strict=True))


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_every_combination_of_groups_predicts_and_trains_whole(size: ModelSize) -> None:
    model = build(size, torch.float64)
    inputs = random_inputs(size, lengths=[5, 2, 1, 4], dtype=torch.float64)
    assert unused_parameters(model, inputs) == []
    result = model.interpret(inputs)
    assert result.prediction.shape == (4, 3, 2, 3)
    assert result.static_weights.shape == (4, size.num_static)
    assert result.history_weights.shape == (4, 5, size.num_observed + size.num_known)
    assert result.future_weights.shape == (4, 3, size.num_known)
    assert result.attention.shape == (4, 2, 3, 8)


@pytest.mark.parametrize(
    "change",
    [
        {"encoder_length": 1, "horizon": 1},
        {"encoder_length": 7, "horizon": 13, "lstm_layers": 3},
        {"num_targets": 1, "quantiles": (0.5,), "hidden_size": 6, "num_heads": 3},
        {"dropout": 0.2, "hidden_size": 10, "num_heads": 1},
    ],
)
def test_odd_sizes(change: dict) -> None:
    size = replace(SMALL, **change)
    model = build(size, torch.float64)
    inputs = random_inputs(size, batch=3, dtype=torch.float64)
    assert model(inputs).shape == (3, size.horizon, size.num_targets, len(size.quantiles))
    assert unused_parameters(model, inputs) == []


def test_without_static_variables_nothing_is_built_for_them() -> None:
    model = build(replace(SMALL, static_reals=0, static_categories=()))
    assert [name for name, _ in model.named_children()] == BLOCKS[3:]
    assert not [name for name, _ in model.named_parameters() if ".context." in name]


def test_names_of_blocks_and_their_parameters() -> None:
    model = build()
    table = parameter_table(model)
    assert [name for name, _ in table] == BLOCKS
    assert sum(count for _, count in table) == sum(p.numel() for p in model.parameters())
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}
    assert dict(table)["quantile_head"] == 8 * 6 + 6


def test_each_block_runs_once_and_through_its_own_forward() -> None:
    model, calls = build(), []
    for name, block in model.named_children():
        block.register_forward_hook(lambda *_, name=name: calls.append(name))
    model(random_inputs(SMALL))
    assert sorted(calls) == sorted([*BLOCKS, "known_embedding"])  # once for the history, once for the horizon


def test_wiring() -> None:
    model, seen = build(), {}
    for name, block in model.named_children():
        block.register_forward_hook(lambda _, args, out, name=name: seen.update({name: (args, out)}))
    prediction = model(random_inputs(SMALL))
    inputs, outputs = ({name: pair[i] for name, pair in seen.items()} for i in (0, 1))
    history, future = outputs["history_selection"][0], outputs["future_selection"][0]
    selection, enrichment, hidden, cell = outputs["static_encoder"]
    encoded, last_hidden, last_cell = outputs["lstm_encoder"]
    temporal, enriched = outputs["lstm_gate"], outputs["static_enrichment"]
    expected = {
        "static_encoder": [outputs["static_selection"][0]],
        "lstm_encoder": [history, hidden.expand(2, 4, 8), cell.expand(2, 4, 8)],
        "lstm_decoder": [future, last_hidden, last_cell],
        "lstm_gate": [torch.cat([encoded, outputs["lstm_decoder"][0]], 1), torch.cat([history, future], 1)],
        "static_enrichment": [temporal, enrichment],
        "attention": [enriched[:, 5:], enriched],
        "attention_gate": [outputs["attention"][0], enriched[:, 5:]],
        "position_wise": [outputs["attention_gate"]],
        "output_gate": [outputs["position_wise"], temporal[:, 5:]],
        "quantile_head": [outputs["output_gate"]],
    }
    for name, tensors in expected.items():
        for actual, tensor in zip(inputs[name], tensors, strict=False):
            assert torch.equal(actual, tensor), name
    assert inputs["history_selection"][2] is selection
    assert inputs["future_selection"][2] is selection
    assert torch.equal(prediction.flatten(2), outputs["quantile_head"])


def test_blocks_can_be_recomputed_from_outside() -> None:
    size = replace(SMALL, dropout=0.3)
    plain, inputs = build(size), random_inputs(size, lengths=[5, 3, 2, 5])
    recomputed = copy.deepcopy(plain)
    for block in recomputed.children():
        forward = block.forward
        block.forward = lambda *args, forward=forward: checkpoint(forward, *args, use_reentrant=False)
    for model in (plain, recomputed):
        torch.manual_seed(1)
        model(inputs).square().sum().backward()
    for expected, actual in zip(plain.parameters(), recomputed.parameters(), strict=True):
        assert torch.equal(expected.grad, actual.grad)


def test_a_copy_shares_nothing_with_the_original() -> None:
    model = build()
    twin = copy.deepcopy(model)
    assert twin.history_selection.embeddings == (twin.observed_embedding, twin.known_embedding)
    with torch.no_grad():
        twin.known_embedding.weight.zero_()
    assert model.known_embedding.weight.all()


def test_weights_of_variables_and_attention_sum_to_one() -> None:
    result = build().interpret(random_inputs(SMALL, lengths=[5, 1, 3, 5]))
    present = torch.arange(5) < torch.tensor([5, 1, 3, 5]).unsqueeze(1)
    torch.testing.assert_close(result.static_weights.sum(-1), torch.ones(4))
    torch.testing.assert_close(result.history_weights.sum(-1), present.float())
    torch.testing.assert_close(result.future_weights.sum(-1), torch.ones(4, 3))
    torch.testing.assert_close(result.attention.sum(-1), torch.ones(4, 2, 3))
    hidden = ~present.unsqueeze(1).unsqueeze(1).expand(4, 2, 3, 5)
    assert not result.attention[..., :5].masked_select(hidden).any()
    assert not result.attention[..., 5:].triu(diagonal=1).any()


def test_one_seed_fixes_parameters_and_dropout() -> None:
    size = replace(SMALL, dropout=0.2)
    inputs = random_inputs(size)
    first, again, other = build(size, seed=7), build(size, seed=7), build(size, seed=8)
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name))
    assert not torch.equal(first.quantile_head.weight, other.quantile_head.weight)
    torch.manual_seed(3)
    expected = first(inputs)
    torch.manual_seed(3)
    assert torch.equal(first(inputs), expected)
    assert not torch.equal(first(inputs), expected)


def test_bfloat16_model_trains_on_the_cpu() -> None:
    model = build(dtype=torch.bfloat16)
    inputs = random_inputs(SMALL, lengths=[5, 2, 1, 4])
    half = model(inputs.to(torch.device("cpu"), torch.bfloat16))
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), build()(inputs), rtol=0.1, atol=0.1)
    half.float().square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_gradients_equal_finite_differences() -> None:
    size = replace(
        SMALL,
        static_categories=(3,),
        observed_reals=2,
        observed_categories=(),
        known_categories=(2,),
        encoder_length=3,
        horizon=2,
        hidden_size=4,
        lstm_layers=1,
    )
    model = build(size, torch.float64)
    inputs = random_inputs(size, batch=2, lengths=[3, 2], dtype=torch.float64)
    names = [name for name, _ in model.named_parameters()]

    def predict(observed: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        state = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(model, state, (inputs._replace(observed_reals=observed),))

    arguments = (inputs.observed_reals.requires_grad_(), *model.parameters())
    assert torch.autograd.gradcheck(predict, arguments, fast_mode=True)


def test_no_dropout_after_the_last_gate() -> None:
    model = build(replace(SMALL, dropout=0.3))
    shares = {name: m.p for name, m in model.named_modules() if isinstance(m, nn.Dropout)}
    assert shares.pop("output_gate.dropout") == 0
    assert set(shares.values()) == {0.3}
    assert len(shares) == 3 * 2 + 4 + 4  # selections, static encoder, the rest


def test_learns_what_the_inputs_tell() -> None:
    size = ModelSize(
        static_categories=(3,), encoder_length=4, horizon=2, known_reals=2, hidden_size=8, num_heads=2
    )
    model = build(size)
    inputs = random_inputs(size, batch=32)
    slope = inputs.static_categories.float() - 1  # (B, 1)
    labels = (inputs.observed_reals[:, -1] + slope * inputs.known_reals[:, 4:, 1]).unsqueeze(-1)  # (B, K, 1)

    def mean_loss(prediction: torch.Tensor) -> torch.Tensor:
        total, weight = pinball_loss(prediction, labels, torch.ones_like(labels), size.quantiles)
        return total / weight

    best_constant = labels.quantile(torch.tensor(size.quantiles)).expand(32, 2, 1, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(80):
        optimizer.zero_grad()
        mean_loss(model(inputs)).backward()
        optimizer.step()
    assert mean_loss(model.eval()(inputs)) < 0.5 * mean_loss(best_constant)
