"""Calibration of whole small models: what is measured, that order does not matter, and that it stays."""

import re
from collections.abc import Iterable, Iterator
from itertools import permutations
from typing import Any, get_args

import pytest
import torch
from histogram_cases import run_processes
from quantization_cases import SIZES, assert_same, build, draw, steps_of
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ds_tft.errors import ConfigError
from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.folded import CollapsedLinear, StackedLinear
from ds_tft.model.inputs import ModelInputs
from ds_tft.quantization.attach import Covered, Quantisation, attach_quantisation
from ds_tft.quantization.calibration import CalibrationReport, calibrate
from ds_tft.quantization.ranges import CalibrationMethod

METHODS = get_args(CalibrationMethod)
BATCHES = [draw(seed=seed, lengths=[6, 2, 4, 1]) for seed in range(4)]


def attached(model: nn.Module) -> Quantisation:
    """Quantises everything of a model, which streams from then on; nothing is calibrated."""
    stream_variable_selection(model)
    return attach_quantisation(model, Covered.all_of(model))


def calibrated(
    batches: Iterable[ModelInputs], method: CalibrationMethod = "percentile", percentile: float = 99.0
) -> dict[str, Tensor]:
    """The steps of the model of these tests."""
    model = build()
    quantisation = attached(model)
    calibrate(model, quantisation, batches, method, percentile)
    return steps_of(quantisation)


def report_on(
    batches: Iterable[ModelInputs], method: CalibrationMethod, percentile: float
) -> CalibrationReport:
    model = build()
    return calibrate(model, attached(model), batches, method, percentile)


def largest_inputs(batches: Iterable[ModelInputs]) -> dict[str, Tensor]:
    """Largest magnitudes that the modules of the plain folded model are given, by hooks: (1,), or one per variable."""
    model, largest = build().eval(), {}

    def watch(name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            values = arguments[0].data if isinstance(arguments[0], PackedSequence) else arguments[0]
            kept = {StackedLinear: -2, CollapsedLinear: -1}.get(type(module))  # dimension of the variables
            by_group = (
                values.abs().reshape(1, -1) if kept is None else values.abs().movedim(kept, 0).flatten(1)
            )
            found = by_group.amax(1)
            largest[name] = torch.maximum(largest.get(name, found), found)

        return hook

    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.LSTM, StackedLinear, CollapsedLinear)):
            module.register_forward_pre_hook(watch(name))
    with torch.no_grad():
        for batch in batches:
            model(batch)
    return largest


def test_ranges_are_those_of_the_inputs_of_the_plain_model():
    steps, expected = calibrated(BATCHES, "min_max"), largest_inputs(BATCHES)
    assert steps.keys() == expected.keys()
    assert len(steps) > 30
    for name, step in steps.items():
        assert step.shape == expected[name].shape, name
        assert torch.allclose(step, expected[name] / 127, rtol=1e-4, atol=0), name
    gate = steps["history_selection.gate"]
    assert len(gate) == 8
    assert gate.max() > 4 * gate.min()


@pytest.mark.parametrize("method", ["percentile", "min_max"])
def test_the_order_of_batches_does_not_matter(method):
    expected = calibrated(BATCHES, method)
    for order in list(permutations(BATCHES))[5::9]:
        assert_same(calibrated(order, method), expected)


def test_more_batches_may_widen_ranges_and_never_narrow_them():
    few, all_of_them = calibrated(BATCHES[:1], "min_max"), calibrated(BATCHES, "min_max")
    assert all((all_of_them[name] >= few[name]).all() for name in few)
    assert any((all_of_them[name] > few[name]).any() for name in few)


def test_ranges_stay_as_they_are_afterwards():
    model = build()
    quantisation = attached(model)
    calibrate(model, quantisation, BATCHES[:2], "percentile", 99.0)
    before = steps_of(quantisation)
    larger = BATCHES[2]._replace(observed_reals=BATCHES[2].observed_reals * 100)
    for on in (False, True):
        quantisation.turn(weights=on, inputs=on)
        model.train()(larger).square().mean().backward()
        with torch.no_grad():
            model.eval()(larger)
    assert_same(steps_of(quantisation), before)
    calibrate(model, quantisation, [larger], "min_max", 100.0)
    assert (
        steps_of(quantisation)["history_selection.weights.skip"] > before["history_selection.weights.skip"]
    ).any()


def test_another_calibration_forgets_the_first():
    model = build()
    quantisation = attached(model)
    for batches in (BATCHES[:2], BATCHES[2:]):
        calibrate(model, quantisation, batches, "min_max", 100.0)
        quantisation.turn(weights=True, inputs=True)  # measured in floating point all the same
    assert_same(steps_of(quantisation), calibrated(BATCHES[2:], "min_max"))


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_the_model_itself_is_left_as_it_was(size):
    model, batch = build(size), draw(size)
    quantisation = attached(model)
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items() if "input_step" not in name}
    with torch.no_grad():
        expected = model(batch)
        report = calibrate(model, quantisation, [batch], "percentile", 99.9)
        assert torch.equal(model(batch), expected)
    after = {name: tensor for name, tensor in model.state_dict().items() if "input_step" not in name}
    assert_same(after, before)
    assert not model.training
    assert report.ranges == sum(len(step) for step in steps_of(quantisation).values())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("method", METHODS)
def test_dead_and_constant_variables_are_safe(method):
    dead = [
        batch._replace(
            observed_reals=batch.observed_reals * torch.tensor([1.0, 0.0, 0.0])
            + torch.tensor([0.0, 0.0, 3.0])
        )
        for batch in BATCHES
    ]
    model = build()
    quantisation = attached(model)
    calibrate(model, quantisation, dead, method, 99.9)
    steps = steps_of(quantisation)
    assert all(step.isfinite().all() and (step > 0).all() for step in steps.values())
    observed = steps["history_selection.weights.skip"][:3]
    assert observed[1] == 1 / torch.tensor(127.0)
    assert observed[2] == pytest.approx(3 / 127, rel=1e-3)
    quantisation.turn(weights=True, inputs=True)
    model.train()(dead[0]).square().mean().backward()
    assert all(
        parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None
    )


def test_the_report_counts_what_lies_beyond_the_ranges():
    within = report_on(BATCHES, "min_max", 100.0)
    assert (within.clipped, within.not_finite) == (0.0, 0)
    assert report_on(BATCHES, "percentile", 75.0).clipped == pytest.approx(0.25, abs=0.02)
    steps = calibrated(BATCHES)
    assert (within.modules, within.ranges) == (len(steps), sum(len(step) for step in steps.values()))
    assert within.lines() == [
        f"calibration: {within.ranges} ranges of {within.modules} modules, 0.0000% of values beyond them"
    ]


def test_what_is_not_finite_is_left_out_and_said():
    broken = draw(seed=9)
    broken.observed_reals[0, 2, 1] = torch.nan
    model = build()
    quantisation = attached(model)
    report = calibrate(model, quantisation, [*BATCHES, broken], "min_max", 100.0)
    assert all(step.isfinite().all() and (step > 0).all() for step in steps_of(quantisation).values())
    assert report.not_finite > 2
    assert report.lines()[1:] == [
        f"calibration: {report.not_finite:,} values are not finite and were left out"
    ]


def test_a_module_that_is_never_called_is_refused():
    model = build()
    model.spare = nn.Linear(3, 3)
    quantisation = attached(model)
    message = (
        "calibration: 'spare' saw no input, got TemporalFusionTransformer that does not call it; "
        "leave it out of the modules to quantise"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        calibrate(model, quantisation, BATCHES, "percentile", 99.0)


def test_no_batches_are_refused():
    with pytest.raises(ConfigError, match="^calibration: 'static_selection.gate' saw no input, got "):
        calibrated([])


def calibrate_share(rank: int) -> dict[str, Tensor]:
    """The steps of a process that has every other batch."""
    return calibrated(BATCHES[rank::2])


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As in the processes: the last bits of sums depend on how they are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_two_processes_agree_on_what_one_would_measure(one_thread, tmp_path):
    expected = calibrated(BATCHES)
    for found in run_processes(2, calibrate_share, tmp_path):
        assert_same(found, expected)
