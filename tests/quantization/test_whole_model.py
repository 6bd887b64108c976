"""The quantised model as a whole: its training form, its stored form, and what must not move."""

import copy
import subprocess
import sys

import pytest
import torch
from quantization_cases import SIZES, build, draw

from ds_tft.memory.meter import kept_for_backward
from ds_tft.memory.recompute import attach_recompute
from ds_tft.memory.recompute_settings import RecomputeSettings
from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.quantization.attach import Covered, attach_quantisation
from ds_tft.quantization.calibration import calibrate
from ds_tft.quantization.codes import fake_quantised_inputs, weight_scale
from ds_tft.quantization.stored import build_stored

FLOATING = ("bias", "norm", "hidden_lines", "_scale", "input_step", "embedding")


def quantised(size, *, recompute=False):
    model = build(size)
    stream_variable_selection(model)
    quantisation = attach_quantisation(model, Covered.all_of(model))
    calibrate(model, quantisation, [draw(size, 16, seed=seed) for seed in range(3)], "percentile", 99.9)
    if recompute:
        attach_recompute(model, RecomputeSettings())
    quantisation.turn(weights=True, inputs=True)
    return model, quantisation


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_stored_forecasts_are_those_of_training(size):
    model, quantisation = quantised(size)
    inputs = draw(size, 5, seed=9)
    with torch.no_grad():
        trained, evaluated = model.train()(inputs), model.eval()(inputs)
        stored = build_stored(size, Covered.all_of(model), model.state_dict())(inputs)
        quantisation.turn(weights=False, inputs=False)
        floating = model(inputs)
    assert torch.equal(trained, evaluated)
    assert torch.equal(stored, trained)
    assert not torch.equal(floating, trained)
    assert torch.allclose(floating, trained, atol=0.3 * float(floating.std()))


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_no_matrix_of_a_product_stays_in_floating_point(size):
    model, _ = quantised(size)
    stored = build_stored(size, Covered.all_of(model), model.state_dict())
    matrices = 0
    for name, tensor in stored.state_dict().items():
        if tensor.is_floating_point() and tensor.dim() > 1 and tensor.numel():
            assert any(part in name for part in FLOATING), name
        matrices += tensor.dtype == torch.int8
    lstm = [
        name for name, tensor in stored.state_dict().items() if "lstm" in name and tensor.dtype == torch.int8
    ]
    assert len(lstm) >= 4  # input and recurrent weights of encoder and decoder
    assert matrices >= len(lstm) + 10


def test_scales_are_the_largest_magnitude_over_127():
    weight = torch.tensor([[1.27, -0.5], [0.0, 0.0], [-2.54, 1.0]])
    assert torch.allclose(weight_scale(weight, 1).flatten(), torch.tensor([0.01, 1.0, 0.02]))


def test_gradients_stop_where_inputs_are_clipped():
    values = torch.tensor([-1.30, -1.28, 0.004, 1.27, 1.29], requires_grad=True)
    fake_quantised_inputs(values, torch.tensor([0.01])).sum().backward()
    assert values.grad.tolist() == [0, 1, 1, 1, 0]


def test_a_larger_variable_changes_no_range_but_its_own():
    size = SIZES["reals only"]
    batches = [draw(size, 16, seed=seed) for seed in range(3)]
    found = []
    for factor in (1.0, 1000.0):
        model = build(size)
        stream_variable_selection(model)
        quantisation = attach_quantisation(model, Covered.all_of(model))
        larger = [
            one._replace(observed_reals=one.observed_reals * torch.tensor([1.0, factor, 1.0]))
            for one in batches
        ]
        calibrate(model, quantisation, larger, "min_max", 100.0)
        found.append({name: one.input_step.clone() for name, one in quantisation.quantisers.items()})
    for name in ("history_selection.gate", "history_selection.weights.skip"):
        changed = found[0][name] != found[1][name]
        assert changed.tolist() == [place == 1 for place in range(len(changed))]


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_nothing_moves_in_training(recompute):
    size = SIZES["everything"]
    model, _ = quantised(size, recompute=recompute)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.train()(draw(size, 4, seed=5)).square().mean().backward()
    model.eval()(draw(size, 4, seed=6))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_recomputation_changes_no_bit():
    size = SIZES["everything"]
    inputs, found = draw(size, 4, seed=5), []
    for recompute in (False, True):
        model, _ = quantised(size, recompute=recompute)
        loss = model.train()(inputs).square().mean()
        loss.backward()
        found.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_quantised_training_keeps_no_more():
    size = SIZES["everything"]
    model, quantisation = quantised(size)
    inputs, kept = draw(size, 64, seed=5), []
    for on in (False, True):
        quantisation.turn(weights=on, inputs=on)
        kept.append(
            kept_for_backward(lambda: model.train()(inputs).square().mean(), [*model.parameters(), *inputs])
        )
    assert kept[1] <= 1.05 * kept[0]


def test_attaching_renames_nothing_and_copies_work():
    size = SIZES["everything"]
    names = set(dict(build(size).named_parameters()))
    model, _ = quantised(size)
    assert set(dict(model.named_parameters())) == names
    inputs = draw(size, 3, seed=2)
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(model)(inputs), model(inputs))


def test_a_stored_model_needs_no_deepspeed():
    code = (
        "import sys, ds_tft.quantization.stored, ds_tft.export, ds_tft.forecast.predict;"
        "sys.exit(any(name.split('.')[0] == 'deepspeed' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
