"""Quantisation attaches from outside, can be switched, copied and stored, and refuses what it cannot do."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from quantization_cases import EVERYTHING, SIZES, assert_same, attach, build, draw, results, steps_of

from ds_tft.errors import ConfigError
from ds_tft.memory.recompute import attach_recompute
from ds_tft.memory.recompute_settings import RecomputeSettings
from ds_tft.memory.streaming import is_streamed, stream_variable_selection
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.quantization.attach import Covered, attach_quantisation
from ds_tft.quantization.stored import build_stored

CPU = torch.device("cpu")


def streaming() -> TemporalFusionTransformer:
    model = build()
    stream_variable_selection(model)
    return model


def test_no_parameter_is_renamed_and_only_steps_are_added():
    plain, (model, quantisation) = build(), attach(build())
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert_same(dict(model.named_parameters()), dict(plain.named_parameters()))
    added = model.state_dict().keys() - plain.state_dict().keys()
    assert added == {f"{name}.int8.input_step" for name in quantisation.quantisers}
    assert is_streamed(model.history_selection)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_switched_off_it_is_the_model_without_quantisation_bit_for_bit(size, training):
    model, quantisation = attach(build(SIZES[size]))
    without = build(SIZES[size])
    stream_variable_selection(without)
    quantisation.turn(weights=False, inputs=False)
    inputs = draw(SIZES[size], lengths=[2, 5, 5, 1])
    actual, expected = (results(each.train(training), inputs) for each in (model, without))
    assert torch.equal(actual.loss, expected.loss)
    assert_same(actual.gradients, expected.gradients)


def test_nothing_is_quantised_until_it_is_switched_on():
    model, without = streaming(), streaming()
    attach_quantisation(model, Covered.all_of(model))
    assert torch.equal(model(draw()), without(draw()))


def test_weights_and_inputs_are_switched_apart():
    model, quantisation = attach(build())
    forecasts = []
    for weights, inputs in ((False, False), (True, False), (False, True), (True, True)):
        quantisation.turn(weights=weights, inputs=inputs)
        forecasts.append(model.eval()(draw()))
    for place, forecast in enumerate(forecasts):
        assert not any(torch.equal(forecast, other) for other in forecasts[:place])


@pytest.mark.parametrize("make", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_a_copy_is_a_model_of_its_own(make):
    both = attach(build())
    twin = make(both)
    inputs = draw()
    expected = both.model(inputs).detach()
    assert torch.equal(twin.model(inputs), expected)
    twin.quantisation.turn(weights=False, inputs=False)
    assert not torch.equal(twin.model(inputs), expected)
    assert torch.equal(both.model(inputs), expected)
    with torch.no_grad():
        for parameter in both.model.parameters():
            parameter.zero_()
    twin.quantisation.turn(weights=True, inputs=True)
    assert torch.equal(twin.model(inputs), expected)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_stored_model_forecasts_the_same(make):
    model, quantisation = attach(build())
    quantisation.store()
    twin = make(model)
    expected = model.eval()(draw())
    assert torch.equal(twin.eval()(draw()), expected)
    assert_same(twin.state_dict(), model.state_dict())
    for buffer in model.buffers():
        buffer.zero_()
    assert torch.equal(twin(draw()), expected)


def test_a_state_dict_carries_weights_and_steps():
    model, quantisation = attach(build())
    torch.manual_seed(5)
    other = streaming()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_()
    attached = attach_quantisation(other, Covered.all_of(other))
    attached.turn(weights=True, inputs=True)
    other.load_state_dict(model.state_dict(), strict=True)
    assert_same(steps_of(attached), steps_of(quantisation))
    assert torch.equal(other.eval()(draw()), model.eval()(draw()))


def test_a_stored_state_dict_loads_into_a_model_that_is_built_for_it():
    model, quantisation = attach(build())
    fake = model.eval()(draw())
    covered = Covered.all_of(model)
    quantisation.store()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    built = build_stored(EVERYTHING, covered)
    assert {name: tensor.dtype for name, tensor in built.state_dict().items()} == {
        name: tensor.dtype for name, tensor in state.items()
    }
    built.load_state_dict(state, strict=True)
    assert not built.training
    assert torch.equal(built(draw()), fake)
    assert torch.equal(model(draw()), fake)


def test_steps_and_scales_stay_in_single_precision():
    model, quantisation = attach(build())
    before = steps_of(quantisation)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        model.to(dtype)
        assert next(model.parameters()).dtype == dtype
        assert_same(steps_of(quantisation), before)
    model.float()
    quantisation.store()
    scales = {name: tensor for name, tensor in model.state_dict().items() if name.endswith("_scale")}
    codes = {name: tensor for name, tensor in model.state_dict().items() if tensor.dtype == torch.int8}
    before = {name: tensor.clone() for name, tensor in {**scales, **codes}.items()}
    model.half()
    after = model.state_dict()
    assert_same({name: after[name] for name in before}, before)


def test_attaching_twice_is_refused():
    model = streaming()
    attach_quantisation(model, Covered.all_of(model))
    with pytest.raises(ConfigError) as error:
        attach_quantisation(model, Covered.all_of(model))
    assert str(error.value) == (
        "int8: the model is quantised already, got a TemporalFusionTransformer with 'int8' modules; attach once"
    )


def test_a_model_that_does_not_stream_is_refused():
    model = build()
    with pytest.raises(ConfigError) as error:
        attach_quantisation(model, Covered.all_of(model))
    assert str(error.value) == (
        "int8: runs in the streaming form, got 'static_selection' that does not stream; stream it first"
    )
    assert not any("int8" in name for name in model.state_dict())


def test_a_plain_model_is_refused():
    model = TemporalFusionTransformer(EVERYTHING)
    stream_variable_selection(model)
    with pytest.raises(ConfigError) as error:
        attach_quantisation(model, Covered.all_of(model))
    assert str(error.value) == (
        "int8: runs in the folded form, got a TemporalFusionTransformer that is not in it; fold it first"
    )


@pytest.mark.parametrize("which", ["weights", "inputs"])
def test_a_module_that_is_not_there_is_refused(which):
    model = streaming()
    covered = Covered.all_of(model)
    names = {"weights": covered.weights, "inputs": covered.inputs}
    names[which] |= {"lstm_encoder.lstn"}
    with pytest.raises(ConfigError) as error:
        attach_quantisation(model, Covered(**names))
    assert str(error.value) == (
        "int8: the model has no such module to quantise, got 'lstm_encoder.lstn'; "
        "did you mean 'lstm_encoder.lstm'?"
    )


def test_inputs_without_weights_are_refused():
    model = streaming()
    covered = Covered(weights=frozenset({"attention.query"}), inputs=frozenset({"attention.key"}))
    with pytest.raises(ConfigError) as error:
        attach_quantisation(model, covered)
    assert str(error.value) == (
        "int8: inputs are quantised where weights are, got 'attention.key' for its inputs alone; "
        "quantise its weights too"
    )


@pytest.mark.parametrize("again", ["store", "turn"])
def test_a_stored_model_stays_stored(again):
    model, quantisation = attach(build())
    quantisation.store()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ConfigError) as error:
        quantisation.store() if again == "store" else quantisation.turn(weights=False, inputs=False)
    assert str(error.value) == (
        f"int8: the weights are stored for good, got {len(quantisation.quantisers)} modules of codes; "
        "build the folded model again to switch or store it"
    )
    assert_same(model.state_dict(), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_storing_from_another_type_is_refused_and_changes_nothing(dtype):
    model, quantisation = attach(build())
    model.to(dtype)
    names = list(model.state_dict())
    with pytest.raises(ConfigError) as error:
        quantisation.store()
    assert str(error.value) == (
        f"int8: weights are stored from float32, got 'static_embedding.table' in {dtype}; "
        "convert the model with .float() first"
    )
    assert list(model.state_dict()) == names


def test_attaching_after_recomputation_is_refused():
    model = streaming()
    attach_recompute(model, RecomputeSettings(blocks=("history_selection",)))
    with pytest.raises(ConfigError, match="got 'history_selection' that does not stream; stream it first"):
        attach_quantisation(model, Covered.all_of(model))


def test_a_stored_model_forecasts_after_it_was_moved_and_its_gradients_are_off():
    model, quantisation = attach(build())
    quantisation.store()
    expected = model.eval()(draw())
    model.to(CPU).requires_grad_(False)
    assert torch.equal(model(draw()), expected)
    assert not model(draw()).requires_grad
