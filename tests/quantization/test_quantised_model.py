"""One arithmetic in training, in recomputation and in the stored model: that of whole numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from quantization_cases import (
    EVERYTHING,
    KINDS,
    LENGTHS,
    SIZES,
    Quantised,
    assert_same,
    attach,
    build,
    draw,
    relative_error,
    steps_of,
)
from test_sites import FLOATING
from torch import Tensor, nn

from ds_tft.memory import variable_networks
from ds_tft.memory.checkpoint_path import CheckpointPath
from ds_tft.memory.chunks import StreamingSettings
from ds_tft.memory.recompute import attach_recompute
from ds_tft.memory.recompute_settings import RecomputeSettings
from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.folded import StackedLinear
from ds_tft.quantization import integer_linear
from ds_tft.quantization.attach import Covered, attach_quantisation
from ds_tft.quantization.calibration import calibrate
from ds_tft.quantization.sites import find_sites
from ds_tft.quantization.stored import build_stored

CPU = torch.device("cpu")
MODES = {
    "through DeepSpeed": RecomputeSettings(path=CheckpointPath.DEEPSPEED),
    "own": RecomputeSettings(path=CheckpointPath.OWN),
    "offload": RecomputeSettings(offload=True, min_bytes=1),
}
NEW_NAMES = ("_scale", ".int8.input_step")


def covered_by(model: nn.Module, chosen: Callable[[str, str], bool]) -> Covered:
    """Covers the modules of which `chosen(name, kind)` says so, weights and inputs."""
    names = frozenset(site.name for site in find_sites(model) if chosen(site.name, site.kind))
    return Covered(weights=names, inputs=names)


SUBSETS: dict[str, Callable[[nn.Module], Covered]] = {
    **{kind: lambda model, kind=kind: covered_by(model, lambda _, found: found == kind) for kind in KINDS},
    "all but the LSTM": lambda model: covered_by(model, lambda _, kind: kind != "LSTM"),
    "weights only": lambda model: Covered(weights=Covered.all_of(model).weights, inputs=frozenset()),
    "every other input": lambda model: Covered(
        weights=Covered.all_of(model).weights, inputs=frozenset(sorted(Covered.all_of(model).inputs)[::2])
    ),
    "the history": lambda model: covered_by(model, lambda name, _: name.startswith("history")),
    "nothing": lambda _: Covered(weights=frozenset(), inputs=frozenset()),
}


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("size", SIZES)
def test_products_are_those_of_64_bit_whole_numbers(size, lengths, monkeypatch):
    model, _ = attach(build(SIZES[size]))
    inputs = draw(SIZES[size], lengths=LENGTHS[lengths] and [5, 2, 4, 1])
    expected = model.eval()(inputs)
    calls = {"mm": 0, "bmm": 0}

    def whole(codes: Tensor, smallest: int) -> Tensor:
        assert torch.equal(codes, codes.round())
        assert smallest <= codes.min()
        assert codes.max() <= 127
        return codes.long()

    def mm(codes: Tensor, weights: Tensor) -> Tensor:
        calls["mm"] += 1
        return (whole(codes, -128) @ whole(weights, -127).t()).float()

    def bmm(codes: Tensor, weights: Tensor, out: Tensor) -> None:
        calls["bmm"] += 1
        out.copy_(torch.bmm(whole(codes, -128), whole(weights, -127)))

    monkeypatch.setattr(integer_linear, "exact_mm", mm)
    monkeypatch.setattr(variable_networks, "exact_bmm", bmm)
    assert torch.equal(model(inputs), expected)
    linear = [site for site in find_sites(model) if isinstance(site.module, nn.Linear)]
    assert calls["mm"] >= len(linear)
    assert calls["bmm"] >= sum(isinstance(site.module, StackedLinear) for site in find_sites(model))


@pytest.mark.parametrize("subset", SUBSETS)
def test_the_stored_model_gives_the_bits_of_training(subset):
    folded = build()
    covered = SUBSETS[subset](folded)
    model, _ = attach(folded, covered)
    inputs = draw(batch=9, lengths=[6, 2, 4, 1, 6, 6, 3, 5, 6])
    stored = build_stored(EVERYTHING, covered, model.state_dict())
    streaming = copy.deepcopy(folded)
    stream_variable_selection(streaming)
    for learns in (True, False):  # torch's LSTM takes another way without gradients: a last digit of its own
        with torch.set_grad_enabled(learns):
            trained = model.train(learns)(inputs)
            assert torch.equal(stored(inputs), trained)
            assert torch.equal(streaming(inputs), trained) == (subset == "nothing")
    codes = {name for name, tensor in stored.state_dict().items() if tensor.dtype == torch.int8}
    sites = [site for site in find_sites(folded) if site.name in covered.weights]
    assert codes == {f"{site.name}.{weight}" for site in sites for weight in site.summed}


@pytest.mark.parametrize("size", SIZES)
def test_what_stays_in_floating_point_is_on_a_list(size):
    stored = build_stored(SIZES[size], Covered.all_of(build(SIZES[size])))
    norms = {f"{name}.weight" for name, one in stored.named_modules() if isinstance(one, nn.LayerNorm)}
    for name, tensor in stored.state_dict().items():
        if tensor.dtype != torch.int8 and tensor.numel():
            in_list = name.endswith((*FLOATING, *NEW_NAMES)) or name in norms or ".bias_" in name
            assert in_list, name
    lstm = {name for name in stored.state_dict() if "lstm_encoder.lstm.weight_" in name}
    assert any("hh" in name for name in lstm)
    assert any("ih" in name for name in lstm)


@pytest.mark.parametrize("chunks", [{"variables_per_chunk": 2}, {"buffer_bytes": 5 * 8 * 4}], ids=str)
def test_storing_in_place_keeps_the_bits_for_any_size_of_chunks(chunks):
    settings = StreamingSettings(**chunks)
    model, quantisation = attach(build(), settings=settings)
    inputs = draw(lengths=LENGTHS["padded"])
    expected = model.train()(inputs).detach()
    quantisation.store()
    assert torch.equal(model.eval()(inputs), expected)


def test_a_window_forecasts_the_same_alone():
    model, _ = attach(build())
    inputs = draw(batch=6)
    together = model.eval()(inputs)
    for place in range(6):
        alone = model(type(inputs)(*(part[place : place + 1] for part in inputs)))
        assert relative_error(alone, together[place : place + 1]) < 1e-4


class Training(NamedTuple):
    losses: list[float]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    steps: dict[str, Tensor]


def train(quantised: Quantised, settings: RecomputeSettings | None, dtype: torch.dtype) -> Training:
    """A few updates of a copy."""
    model, quantisation = copy.deepcopy(quantised)
    model.to(dtype).train()
    if settings is not None:
        attach_recompute(model, settings)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for seed in range(3):
        optimizer.zero_grad()
        inputs = draw(seed=seed, lengths=LENGTHS["padded" if seed == 1 else "whole"], dtype=dtype)
        loss = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        model.eval()(draw(seed=20, dtype=dtype))  # validation
        model.train()
    named = dict(model.named_parameters())
    return Training(
        losses,
        {name: parameter.grad for name, parameter in named.items()},
        {name: parameter.detach() for name, parameter in named.items()},
        steps_of(quantisation),
    )


@pytest.mark.parametrize("subset", ["all", "weights only"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_recomputation_changes_no_bit_and_steps_never_move(dtype, subset):
    folded = build()
    quantised = attach(folded, None if subset == "all" else SUBSETS[subset](folded))
    expected = train(quantised, None, dtype)
    assert expected.losses[-1] < expected.losses[0]
    assert_same(expected.steps, steps_of(quantised.quantisation))
    for settings in MODES.values():
        actual = train(quantised, settings, dtype)
        assert actual.losses == expected.losses
        assert_same(actual.gradients, expected.gradients)
        assert_same(actual.weights, expected.weights)
        assert_same(actual.steps, expected.steps)


def test_nothing_is_observed_any_more_after_calibration():
    _, quantisation = attach(build())
    assert all(one.observed is None for one in quantisation.quantisers.values())


def rms_error(actual: Tensor, expected: Tensor) -> float:
    """Root of the mean squared difference, relative to the spread of the forecasts."""
    expected = expected.double()
    spread = (expected - expected.mean(0)).square().mean().sqrt()
    return float((actual.double() - expected).square().mean().sqrt() / spread)


@torch.no_grad()
@pytest.mark.parametrize("size", SIZES)
def test_half_precision_moves_forecasts_by_three_times_what_it_does_without_quantisation(size):
    model, quantisation = attach(build(SIZES[size]))
    half, half_quantisation = copy.deepcopy(Quantised(model, quantisation))
    half.bfloat16().eval()
    inputs = draw(SIZES[size], batch=64)
    half_inputs = inputs.to(CPU, torch.bfloat16)
    quantised, half_quantised = model.eval()(inputs), half(half_inputs)
    for each in (quantisation, half_quantisation):
        each.turn(weights=False, inputs=False)
    bound = 3 * rms_error(half(half_inputs), model(inputs))
    assert half_quantised.dtype == torch.bfloat16
    assert rms_error(half_quantised, quantised) < bound
    # What is stored of a model that was trained in half precision are its own weights, in single precision.
    weights = {name: tensor.float() for name, tensor in half.state_dict().items()}
    stored = build_stored(SIZES[size], Covered.all_of(model), weights)
    assert rms_error(half_quantised, stored(inputs)) < bound


def test_a_layer_without_reals_still_reaches_all_its_parameters():
    """An engine waits for the gradient of each, even of a matrix without rows."""
    size = SIZES["static categories only"]
    model, _ = attach(build(size))
    model.train()(draw(size)).sum().backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]


@pytest.mark.parametrize("size", SIZES)
def test_a_dead_or_constant_variable_is_safe(size):
    folded = build(SIZES[size])
    with torch.no_grad():
        folded.history_selection.gate.weight[0] = 0
        folded.history_selection.weights.skip.weight[0] = 0
        folded.lstm_encoder.lstm.weight_ih_l0[3] = 0
    stream_variable_selection(folded)
    quantisation = attach_quantisation(folded, Covered.all_of(folded))
    inputs = draw(SIZES[size])
    dead = inputs._replace(
        observed_reals=torch.zeros_like(inputs.observed_reals),
        known_reals=torch.ones_like(inputs.known_reals),
    )
    calibrate(folded, quantisation, [dead], "percentile", 99.9)
    quantisation.turn(weights=True, inputs=True)
    assert all((steps > 0).all() and steps.isfinite().all() for steps in steps_of(quantisation).values())
    loss = folded.train()(inputs).square().sum()
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in folded.parameters())
