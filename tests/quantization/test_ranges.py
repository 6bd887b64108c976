"""Ranges and steps: as asked for, safe whatever was seen, and each group its own."""

import re
from typing import get_args

import numpy as np
import pytest
import torch
from histogram_cases import CPU, histogram_of
from hypothesis import given
from hypothesis import strategies as st

from ds_tft.quantization.codes import input_codes
from ds_tft.quantization.histogram import MagnitudeHistogram
from ds_tft.quantization.ranges import CalibrationMethod, activation_scale, clip_values, unreached

METHODS = get_args(CalibrationMethod)
LARGEST = torch.finfo(torch.float32).max
TINY = torch.finfo(torch.float32).tiny


def heavy_tailed(num_groups: int = 4, count: int = 20_000) -> torch.Tensor:
    """Groups of different size and shape, (G, N): a normal one to one with far outliers."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(num_groups, count, generator=generator)
    powers = torch.linspace(1.0, 3.0, num_groups).unsqueeze(1)
    sizes = 10.0 ** torch.linspace(-5, 4, num_groups).unsqueeze(1)
    return values.sign() * values.abs() ** powers * sizes


def clips_of(values: torch.Tensor, method: CalibrationMethod, percentile: float = 99.9) -> torch.Tensor:
    return clip_values(histogram_of(values), method, percentile)


def squared_error(values: torch.Tensor, clip: torch.Tensor) -> torch.Tensor:
    """Of rounding magnitudes (N,) to codes 0 .. 127, for each of many clips (C, 1), in float64."""
    step = clip / 127
    codes = (values / step).round().clamp(max=127)
    return (codes * step - values).square().mean(-1)


@pytest.mark.parametrize("percentile", [0.001, 50.0, 99.0, 99.9, 99.99, 100.0])
def test_a_percentile_is_the_upper_edge_of_its_bin(percentile):
    values = heavy_tailed(count=20_011)  # a prime: NumPy rounds a share that is a whole number of values up
    histogram = histogram_of(values)
    clips = clip_values(histogram, "percentile", percentile).double()
    exact = np.percentile(values.abs().double(), percentile, axis=1, method="inverted_cdf")
    edges = (torch.from_numpy(exact) / histogram.width).floor().add(1) * histogram.width
    assert torch.equal(clips, torch.minimum(edges, histogram.largest.double()))


@given(
    numbers=st.lists(st.floats(-1000, 1000, width=32), min_size=1, max_size=50),
    percentile=st.floats(0, 100, exclude_min=True),
)
def test_at_least_the_percentile_lies_within(numbers, percentile):
    values = torch.tensor([numbers])
    histogram = histogram_of(values, 16)
    clip = clip_values(histogram, "percentile", percentile)
    assert (values.abs() <= clip).double().mean() >= percentile / 100 - 1e-12
    assert clip <= values.abs().max() or (clip == 1 and values.abs().max() < 1e-29)
    assert int(histogram.count_above(clip)) <= (1 - percentile / 100) * len(numbers) + 1e-9


def test_min_max_is_the_largest_magnitude_to_the_bit():
    values = heavy_tailed()
    assert torch.equal(clips_of(values, "min_max"), values.abs().amax(1))


@pytest.mark.parametrize("shape", ["normal", "uniform", "heavy", "bounded below"])
def test_mse_is_as_good_as_the_best_range(shape):
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(20_000, generator=generator, dtype=torch.float64)
    values = {
        "normal": values,
        "uniform": torch.rand(20_000, generator=generator, dtype=torch.float64),
        "heavy": values**3,
        "bounded below": torch.nn.functional.elu(values),
    }[shape].float()
    histogram = histogram_of(values.unsqueeze(0))
    magnitudes = values.abs().double()
    edges = torch.arange(1, 4097, 8).unsqueeze(1) * histogram.width
    errors = torch.cat(
        [squared_error(magnitudes, some) for some in edges[edges <= magnitudes.max()].view(-1, 1).split(64)]
    )
    chosen = squared_error(magnitudes, clip_values(histogram, "mse", 0).double())
    assert chosen <= 1.005 * errors.min()
    assert errors.min() < errors[-1] or shape == "uniform"


def test_mse_chooses_as_the_expected_error_says():
    """Values spread evenly over each of few bins: then the best of all edges is no matter of chance."""
    counts = torch.tensor([4_000_000, 3_000_000, 500_000, 90, 20, 8, 50, 1, 0, 3, 0, 0, 0, 0, 0, 1])
    within = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    histogram = MagnitudeHistogram(1, CPU, 16)
    histogram.counts += counts
    histogram.exponents.zero_()
    histogram.largest.fill_(1 - 2.0**-20)
    places = (torch.arange(16).unsqueeze(1) + within) / 16  # (16, values of a bin)
    errors = [
        float(counts.double() @ squared_error(places, torch.tensor((end + 1) / 16))) for end in range(16)
    ]
    best = int(np.argmin(errors)) + 1
    assert 1 < best < 16
    assert clip_values(histogram, "mse", 0).item() == best / 16


def test_the_largest_code_stands_for_the_end_of_the_range():
    clip = torch.tensor([1.27, 127.0, 3e-20])
    step = activation_scale(clip)
    assert torch.equal(step, clip / 127)
    assert step[1] == 1
    assert input_codes(clip, step).tolist() == [127.0] * 3
    assert input_codes(-clip, step).tolist() == [-127.0] * 3


@pytest.mark.parametrize("method", METHODS)
def test_dead_groups_have_a_range_of_1(method):
    values = torch.zeros(5, 100)
    values[1] = torch.nan
    values[2, ::2] = 1e-31
    values[3] = 2.0**-140
    values[4] = torch.randn(100)
    clips = clips_of(values, method)
    assert clips[:4].tolist() == [1.0] * 4
    assert clips[4] != 1
    assert clip_values(MagnitudeHistogram(2, CPU), method, 99.0).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("constant", [1.0, -0.75, 1e-9, 3.3e33, 2.0**-99, 2.0**127])
def test_a_constant_keeps_its_value(method, constant):
    values = torch.full((1, 100), constant)
    clip = clips_of(values, method)
    step = activation_scale(clip)
    kept = input_codes(values, step).mul_(step)
    assert clip <= abs(constant)
    assert torch.allclose(kept, values, rtol=1e-3, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_the_largest_numbers_stay_finite(method):
    values = torch.full((1, 100), LARGEST)
    step = activation_scale(clips_of(values, method))
    for sign in (1, -1):
        codes = input_codes(values * sign, step)
        assert codes.mul(step).isfinite().all()
    assert codes[0, 0] == -128


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("outlier", [1e6, 1e30, LARGEST, torch.inf])
def test_one_huge_value_leaves_usable_steps(method, outlier):
    values = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    values[0, 17] = outlier
    steps = activation_scale(clips_of(values, method))
    assert steps.isfinite().all()
    assert (steps > TINY).all()
    assert torch.equal(steps[1:], activation_scale(clips_of(values[1:], method)))
    assert input_codes(values.nan_to_num(posinf=0.0), steps.unsqueeze(1)).isfinite().all()


@pytest.mark.parametrize("method", METHODS)
def test_a_larger_group_changes_no_step_but_its_own(method):
    values = heavy_tailed()
    larger = values.clone()
    larger[2] *= 1000
    before, after = clips_of(values, method), clips_of(larger, method)
    assert (before != after).tolist() == [False, False, True, False]
    assert after[2] / before[2] == pytest.approx(1000, rel=0.02)


def test_methods_differ_on_heavy_tails():
    values = heavy_tailed()[-1:]
    percentile, min_max, mse = (clips_of(values, method).item() for method in METHODS)
    assert percentile < min_max
    assert mse < min_max


def test_nothing_added_is_told_from_nothing_finite():
    histogram = MagnitudeHistogram(2, CPU)
    assert unreached(histogram)
    for values in (torch.zeros(1, 1), torch.full((1, 1), torch.nan), torch.ones(1, 1)):
        reached = MagnitudeHistogram(2, CPU)
        reached.add(values, 1)
        assert not unreached(reached)


@pytest.mark.parametrize("percentile", [0.0, -1.0, 100.5, float("nan")])
def test_what_is_no_percentile_is_refused(percentile):
    message = f"percentile: must be above 0 and at most 100, got {percentile:g}; 99.99 is usual"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        clips_of(torch.ones(1, 3), "percentile", percentile)
