"""Gradients of quantised training are those of plain rounding with clipped straight-through gradients.

Whole models are compared in float64: in float32, a last digit that differs before something is rounded turns into a
whole step, in either of the two.
"""

from __future__ import annotations

import pytest
import torch
from quantization_cases import (
    EVERYTHING,
    KINDS,
    LENGTHS,
    SIZES,
    attach,
    build,
    draw,
    plainly_quantised,
    relative_error,
    results,
    steps_of,
)
from torch import Tensor, nn

from ds_tft.memory.chunks import StreamingSettings
from ds_tft.quantization.attach import Covered
from ds_tft.quantization.sites import find_sites

BOUND = 1e-5
DOUBLE = torch.float64
CLIPPED = 90.0
"""Percentile: a tenth of the inputs lies beyond the range."""
CHUNKS = {
    "one variable": StreamingSettings(variables_per_chunk=1),
    "rows": StreamingSettings(buffer_bytes=5 * 8 * 8),
    "all": StreamingSettings(variables_per_chunk=100),
}


def assert_close(model: nn.Module, plain: nn.Module, inputs) -> None:
    """Loss and all gradients."""
    actual, expected = results(model.train(), inputs), results(plain.train(), inputs)
    assert actual.gradients.keys() == expected.gradients.keys()
    assert relative_error(actual.loss, expected.loss) < BOUND
    errors = {name: relative_error(actual.gradients[name], each) for name, each in expected.gradients.items()}
    assert {name: error for name, error in errors.items() if error > BOUND} == {}


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("size", SIZES)
def test_they_are_those_of_plain_rounding(size, lengths):
    folded = build(SIZES[size], DOUBLE)
    model, quantisation = attach(folded, percentile=CLIPPED)
    inputs = draw(SIZES[size], lengths=LENGTHS[lengths] and [5, 2, 4, 1], dtype=DOUBLE)
    assert_close(model, plainly_quantised(folded, steps_of(quantisation)), inputs)


@pytest.mark.parametrize("chunks", CHUNKS)
def test_so_they_are_in_chunks_of_any_size(chunks):
    folded = build(dtype=DOUBLE)
    model, quantisation = attach(folded, percentile=CLIPPED, settings=CHUNKS[chunks])
    assert_close(model, plainly_quantised(folded, steps_of(quantisation)), draw(dtype=DOUBLE))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_of_module_alone(kind):
    folded = build(dtype=DOUBLE)
    names = frozenset(site.name for site in find_sites(folded) if site.kind == kind)
    assert names
    model, quantisation = attach(folded, Covered(weights=names, inputs=names), percentile=CLIPPED)
    plain = plainly_quantised(folded, steps_of(quantisation), names)
    assert_close(model, plain, draw(dtype=DOUBLE))


@pytest.mark.parametrize(("weights", "inputs"), [(True, False), (False, True)])
def test_weights_or_inputs_alone(weights, inputs):
    folded = build(dtype=DOUBLE)
    model, quantisation = attach(folded, percentile=CLIPPED)
    quantisation.turn(weights=weights, inputs=inputs)
    steps = steps_of(quantisation) if inputs else {}
    assert_close(model, plainly_quantised(folded, steps, None if weights else ()), draw(dtype=DOUBLE))


def test_inputs_of_some_modules_only():
    folded = build(dtype=DOUBLE)
    covered = Covered.all_of(folded)
    some = frozenset(sorted(covered.weights)[::2])
    assert "history_selection.weights.hidden" not in some
    assert "history_selection.weights.skip" in some
    model, quantisation = attach(folded, Covered(weights=covered.weights, inputs=some), percentile=CLIPPED)
    assert steps_of(quantisation).keys() <= some
    assert_close(model, plainly_quantised(folded, steps_of(quantisation)), draw(dtype=DOUBLE))


@pytest.mark.parametrize(
    "name", ["history_selection.gate", "lstm_encoder.lstm", "attention.key", "quantile_head"]
)
def test_the_comparison_would_notice_a_step_that_is_shared_or_another(name):
    folded = build(dtype=DOUBLE)
    model, quantisation = attach(folded, percentile=CLIPPED)
    steps = steps_of(quantisation)
    quantisation.quantisers[name].input_step.fill_(float(steps[name].max()) * 1.01)
    with pytest.raises(AssertionError):
        assert_close(model, plainly_quantised(folded, steps), draw(dtype=DOUBLE))


def test_variables_of_one_layer_have_steps_that_differ():
    _, quantisation = attach(build())
    for name in ("history_selection.gate", "history_selection.weights.hidden"):
        steps = quantisation.quantisers[name].input_step
        assert len(steps.unique()) == len(steps)
        assert steps.max() > 1.5 * steps.min()


def test_a_tenth_of_the_inputs_is_clipped_and_stops_gradients():
    folded = build(dtype=DOUBLE)
    gradients = []
    for percentile in (100.0, CLIPPED):
        model, _ = attach(folded, percentile=percentile)
        gradients.append(results(model.train(), draw(dtype=DOUBLE)).gradients)
    for name in ("history_selection.hidden_lines", "history_selection.hidden_table", "lstm_gate.gate.weight"):
        assert relative_error(gradients[1][name], gradients[0][name]) > 1e-2


def test_single_precision_gives_them_too_where_no_code_is_another():
    """Of the modules before which nothing is rounded differently, and of no code turned over in the rest."""
    folded = build(SIZES["no static variables"])
    model, quantisation = attach(folded, percentile=CLIPPED)
    inputs = draw(SIZES["no static variables"])
    exact = folded.double()
    plain = plainly_quantised(exact, steps_of(quantisation))
    actual = results(model.train(), inputs)
    expected = results(plain.train(), inputs.to(torch.device("cpu"), DOUBLE))
    errors = sorted(rms_error(actual.gradients[name], each) for name, each in expected.gradients.items())
    assert errors[len(errors) // 2] < 1e-2
    assert errors[-1] < 0.1


def rms_error(actual: Tensor, expected: Tensor) -> float:
    """Root of the mean squared difference, relative to that of what is expected."""
    difference = (actual.double() - expected.double()).square().mean()
    return float((difference / expected.double().square().mean().clamp_min(1e-30)).sqrt())


def test_reals_get_gradients_as_in_floating_point():
    """Asked for by explanations: they pass through the layers of raw variables as well."""
    folded = build(dtype=DOUBLE)
    model, quantisation = attach(folded, percentile=CLIPPED)
    plain = plainly_quantised(folded, steps_of(quantisation))
    found = []
    for each in (model, plain):
        inputs = draw(EVERYTHING, dtype=DOUBLE)
        reals = [part.requires_grad_() for part in inputs if part.is_floating_point()]
        found.append(torch.autograd.grad(each.train()(inputs).sin().sum(), reals))
    for actual, expected in zip(*found, strict=True):
        assert relative_error(actual, expected) < BOUND
