"""Folding merges what is linear: the same forecasts from fewer and smaller matrices."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from model_cases import SMALL, build, random_inputs, randomise

from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.fold import build_folded, fold, is_folded
from ds_tft.model.folded import FoldedSelection
from ds_tft.model.inputs import ModelInputs, ModelSize
from ds_tft.model.tft import Interpretation, TemporalFusionTransformer

SHAPES = {"encoder_length": 5, "horizon": 2, "hidden_size": 8, "num_heads": 2, "dropout": 0.0}
SIZES = {
    "mixed": SMALL,
    "reals only": ModelSize(static_reals=2, observed_reals=3, known_reals=2, **SHAPES),
    "static categories only": ModelSize(static_categories=(3, 4), observed_reals=2, **SHAPES),
    "no static variables": ModelSize(observed_reals=3, observed_categories=(4,), known_reals=2, **SHAPES),
    "one static real": ModelSize(static_reals=1, observed_reals=2, **SHAPES),
    "one static category": ModelSize(static_categories=(4,), observed_reals=2, **SHAPES),
}
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-12}


def trained(size: ModelSize = SMALL, dtype: torch.dtype = torch.float64) -> TemporalFusionTransformer:
    """A plain model whose biases and norms are not at their initial zeros and ones."""
    model = build(size, torch.float64)
    randomise(model)
    return model.to(dtype).eval()


def results(model: TemporalFusionTransformer, inputs: ModelInputs) -> Interpretation:
    with torch.no_grad():
        return model.interpret(inputs)


def largest_error(actual: Interpretation, expected: Interpretation) -> float:
    """Largest difference of forecasts, weights and attention, each relative to its largest magnitude."""
    return max(
        float((one - other).abs().max() / other.abs().max())
        for one, other in zip(actual, expected, strict=True)
        if other.numel()
    )


@pytest.mark.parametrize("lengths", [None, [5, 2, 4, 1]], ids=["whole", "padded"])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_forecasts_and_weights_are_those_of_the_plain_model(size, dtype, lengths):
    model = trained(SIZES[size], dtype)
    inputs = random_inputs(SIZES[size], dtype=dtype, lengths=lengths)
    assert largest_error(results(fold(model), inputs), results(model, inputs)) < BOUNDS[dtype]


def test_the_comparison_would_notice_a_bias_that_is_left_out():
    model, inputs = trained(), random_inputs(SMALL, dtype=torch.float64)
    folded = fold(model)
    with torch.no_grad():
        folded.history_selection.weights.hidden.bias.zero_()
    assert largest_error(results(folded, inputs), results(model, inputs)) > 1e-4


@pytest.mark.parametrize("size", SIZES)
def test_gradients_of_the_inputs_are_those_of_the_plain_model(size):
    model = trained(SIZES[size])
    gradients = []
    for each in (model, fold(model)):
        inputs = random_inputs(SIZES[size], dtype=torch.float64)
        reals = [part.requires_grad_() for part in inputs if part.is_floating_point() and part.numel()]
        gradients.append(torch.autograd.grad(each(inputs).sin().sum(), reals))
    for actual, expected in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)


def test_hidden_size_one_where_the_weight_network_has_no_skip_projection():
    size = replace(SMALL, hidden_size=1, num_heads=1)
    model, inputs = trained(size), random_inputs(size, dtype=torch.float64)
    assert model.history_selection.weight_grn.skip is None
    assert largest_error(results(fold(model), inputs), results(model, inputs)) < 1e-12


@pytest.mark.parametrize("size", SIZES)
def test_there_are_fewer_parameters(size):
    def count(model: TemporalFusionTransformer) -> int:
        return sum(parameter.numel() for parameter in model.parameters())

    model = trained(SIZES[size])
    assert count(fold(model)) < 0.8 * count(model)


def test_at_the_size_of_tft_225_a_third_is_left():
    size = ModelSize(
        static_categories=(3,),
        observed_reals=210,
        known_reals=10,
        known_categories=(13, 32, 8, 25),
        hidden_size=128,
    )
    with torch.device("meta"):
        plain, folded = TemporalFusionTransformer(size), build_folded(size)
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (plain, folded)]
    assert counts[0] > 26_000_000
    assert counts[1] < counts[0] * 0.34


def test_the_plain_model_is_not_changed():
    model = trained().train()
    before = copy.deepcopy(model.state_dict())
    folded = fold(model)
    assert model.training
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        for parameter in folded.parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_dropout_is_left_out_and_the_result_is_ready_to_forecast():
    model = build(replace(SMALL, dropout=0.4)).train()
    folded, inputs = fold(model), random_inputs(SMALL)
    assert not folded.training
    assert folded.size == SMALL
    assert largest_error(results(folded, inputs), results(model.eval(), inputs)) < 1e-5
    assert torch.equal(folded.train()(inputs), folded.eval()(inputs))


@pytest.mark.parametrize("size", SIZES)
def test_a_folded_model_is_built_with_the_same_names_and_shapes(size):
    folded, built = fold(trained(SIZES[size], torch.float32)), build_folded(SIZES[size])
    shapes = {name: tensor.shape for name, tensor in folded.state_dict().items()}
    assert shapes == {name: tensor.shape for name, tensor in built.state_dict().items()}
    inputs = random_inputs(SIZES[size])
    built.load_state_dict(folded.state_dict())
    assert torch.equal(built.eval()(inputs), folded(inputs))


def test_every_parameter_of_the_folded_form_can_learn():
    folded = fold(trained())
    folded(random_inputs(SMALL, batch=8, dtype=torch.float64)).square().sum().backward()
    assert not [name for name, p in folded.named_parameters() if p.grad is None or not p.grad.any()]


def test_products_are_taken_in_double_precision_and_rounded_once():
    model = trained(dtype=torch.float32)
    folded, precise = fold(model), fold(copy.deepcopy(model).double())
    for name, tensor in folded.state_dict().items():
        assert torch.equal(tensor, precise.state_dict()[name].float()), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_type_is_kept(dtype):
    folded = fold(trained(dtype=dtype))
    assert {parameter.dtype for parameter in folded.parameters()} == {dtype}


def test_a_model_that_streams_is_folded_too_and_goes_on_streaming():
    model, inputs = trained(), random_inputs(SMALL, dtype=torch.float64)
    expected = results(model, inputs)
    stream_variable_selection(model)
    assert largest_error(results(fold(model), inputs), expected) < 1e-12
    assert "forward" in vars(model.history_selection)


def test_is_folded_tells_the_forms_apart():
    model = trained()
    assert is_folded(fold(model))
    assert is_folded(FoldedSelection((model.known_embedding,), 8, with_context=False))
    assert not is_folded(model)
