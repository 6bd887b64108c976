import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_tft.data.statistics import MIN_COUNT, group_medians, group_statistics


def test_large_offset_keeps_its_spread():
    noise = np.random.default_rng(0).standard_normal(200_000)
    values = (1e6 + 0.5 * noise).astype(np.float32).astype(np.float64)
    fitted = group_statistics(values, np.zeros(len(values), dtype=int), 1, "standard")
    assert fitted.scale == pytest.approx(np.std(values), rel=1e-9)
    assert fitted.center == pytest.approx(np.mean(values), rel=1e-15)
    assert not fitted.constant


def test_the_mean_of_many_large_numbers_is_exact():
    values = 1e12 + np.random.default_rng(0).standard_normal(200_000)
    fitted = group_statistics(values, np.zeros(len(values), dtype=int), 1, "standard")
    assert fitted.center == pytest.approx(math.fsum(values) / len(values), rel=0, abs=3e-4)
    assert fitted.scale == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize("kind", ["standard", "robust"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_equals_numpy_group_by_group(kind, seed):
    rng = np.random.default_rng(seed)
    values, groups = rng.normal(5, 3, 200), rng.integers(0, 4, 200)
    values[rng.random(200) < 0.2] = np.nan
    fitted = group_statistics(values, groups, 4, kind)
    for group, part in enumerate([values[groups == g] for g in range(4)] + [values]):
        low, median, high = np.nanpercentile(part, [25, 50, 75])
        center, scale = (
            (np.nanmean(part), np.nanstd(part)) if kind == "standard" else (median, (high - low) * 0.7413)
        )
        assert (fitted.center[group], fitted.scale[group]) == pytest.approx((center, scale), rel=1e-12)


def test_few_numbers_take_the_statistics_of_all():
    values = np.concatenate([np.arange(40.0), [1000.0] * (MIN_COUNT - 1)])
    groups = np.repeat([0, 2], [40, MIN_COUNT - 1])
    fitted = group_statistics(values, groups, 3, "standard")
    assert fitted.fell_back.tolist() == [False, True, True]
    assert fitted.center[1] == fitted.center[2] == fitted.center[3] == pytest.approx(values.mean())
    assert fitted.center[0] == pytest.approx(19.5)


def test_constant_group_keeps_its_centre_and_takes_the_common_scale():
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.normal(0, 2, 50), np.full(50, 7.0)])
    fitted = group_statistics(values, np.repeat([0, 1], 50), 2, "standard")
    assert fitted.center[1] == 7
    assert fitted.scale[1] == fitted.scale[2] == pytest.approx(values.std())


@pytest.mark.parametrize("kind", ["standard", "robust"])
@pytest.mark.parametrize("level", [0.0, 3.3, -1e20])
def test_constants_get_scale_one(kind, level):
    noise = np.random.default_rng(2).standard_normal(100) * abs(level) * 1e-15
    fitted = group_statistics(level + noise, np.zeros(100, dtype=int), 1, kind)
    assert fitted.constant
    assert fitted.scale.tolist() == [1, 1]


def test_robust_falls_back_to_standard_deviation():
    values = np.zeros(100)
    values[:10] = 5.0
    values[10:] += np.random.default_rng(3).standard_normal(90) * 1e-17
    fitted = group_statistics(values, np.zeros(100, dtype=int), 0, "robust")
    assert fitted.scale[0] == pytest.approx(values.std())


def test_nothing_known():
    fitted = group_statistics(np.full(5, np.nan), np.zeros(5, dtype=int), 1, "robust")
    assert (fitted.count, fitted.center.tolist(), fitted.scale.tolist()) == (0, [0, 0], [1, 1])


def test_medians_of_groups_without_numbers_are_zero():
    medians = group_medians(np.array([3.0, 1.0, 2.0, 9.0]), np.array([1, 1, 1, 3]), 5)
    assert medians.tolist() == [0, 2, 0, 9, 0]
