"""What of a folded model can be quantised."""

from __future__ import annotations

import pytest
import torch
from quantization_cases import EVERYTHING, KINDS, SIZES, build
from torch import nn

from ds_tft.quantization.sites import find_sites

FLOATING = (
    "bias",
    "norm_weight",  # one factor per value
    "norm.weight",
    "hidden_lines",  # one input per variable, as the next
    "_embedding.weight",
)
"""Endings of the names of what has no matrix product and no look-up."""


def matrices(model: nn.Module) -> set[str]:
    """Names of the weights of products, and of tables."""
    named = {name: tensor for name, tensor in model.named_parameters() if tensor.numel()}
    norms = {f"{name}.weight" for name, one in model.named_modules() if isinstance(one, nn.LayerNorm)}
    return {
        name for name in named if name not in norms and "bias" not in name and not name.endswith(FLOATING)
    }


@pytest.mark.parametrize("size", SIZES)
def test_every_matrix_and_table_is_found_once(size):
    model = build(SIZES[size])
    found = [f"{site.name}.{weight}" for site in find_sites(model) for weight in site.summed]
    assert sorted(found) == sorted(matrices(model))


def test_all_kinds_are_found():
    assert {site.kind for site in find_sites(build())} == KINDS


def test_each_site_says_what_is_summed_and_how_many_ranges_there_are():
    sites = {site.name: site for site in find_sites(build())}
    described = {
        "history_selection": ("category tables", {"hidden_table": 1}, 0, False),
        "history_selection.gate": ("variable networks", {"weight": 1}, 8, False),
        "history_selection.weights.hidden": ("selection weights", {"weight": 0, "table": 1}, 5, True),
        "history_selection.weights.gate": ("selection weights", {"weight": 1}, 1, False),
        "history_selection.weights.context": ("selection weights", {"weight": 1}, 1, False),
        "known_embedding": ("category tables", {"table": 1}, 0, False),
        "attention.value": ("attention projections", {"weight": 1}, 1, False),
        "attention_gate.gate": ("linear layers", {"weight": 1}, 1, False),
        "quantile_head": ("linear layers", {"weight": 1}, 1, False),
        "lstm_encoder.lstm": (
            "LSTM",
            {"weight_ih_l0": 1, "weight_hh_l0": 1, "weight_ih_l1": 1, "weight_hh_l1": 1},
            1,
            False,
        ),
    }
    for name, (kind, summed, num_steps, step_per_input) in described.items():
        site = sites[name]
        assert (site.kind, dict(site.summed), site.num_steps, site.step_per_input) == (
            kind,
            summed,
            num_steps,
            step_per_input,
        ), name


def test_what_is_summed_over_is_what_a_product_contracts():
    model = build()
    for site in find_sites(model):
        for name, dim in site.summed.items():
            weight = getattr(site.module, name)
            channels = weight.numel() // weight.shape[dim]
            if isinstance(site.module, nn.Linear):
                assert channels == site.module.out_features
            elif isinstance(site.module, nn.LSTM):
                assert channels == 4 * EVERYTHING.hidden_size


def test_weights_are_counted():
    model = build()
    total = sum(site.num_weights for site in find_sites(model))
    assert total == sum(model.get_parameter(name).numel() for name in matrices(model))
    assert total > 0.7 * sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("size", ["static categories only", "reals only"])
def test_a_layer_without_some_kind_of_variable_has_nothing_of_it(size):
    found = {site.name: site for site in find_sites(build(SIZES[size]))}
    if size == "reals only":
        assert "known_embedding" not in found
        assert dict(found["static_selection.weights.skip"].summed) == {"weight": 0}
    else:
        assert dict(found["static_selection.weights.skip"].summed) == {"table": 1}
        assert found["static_selection.weights.skip"].num_steps == 0
    assert all(torch.is_tensor(getattr(site.module, name)) for site in found.values() for name in site.summed)
