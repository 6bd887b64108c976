from __future__ import annotations

import pickle
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_tft.forecast.metrics import ForecastErrors, level_name, median_index, pinball_loss, sort_quantiles

LEVELS = (0.1, 0.5, 0.9)


def batch(windows: int = 7, horizon: int = 4, targets: int = 2, seed: int = 0):
    """Labels with holes, and forecasts whose levels cross here and there."""
    rng = np.random.default_rng(seed)
    labels = rng.normal(size=(windows, horizon, targets))
    labels[rng.random(labels.shape) < 0.2] = np.nan
    return labels, rng.normal(size=(windows, horizon, targets, len(LEVELS)))


def report(labels, forecasts, quantiles=LEVELS):
    errors = ForecastErrors(quantiles, labels.shape[2])
    errors.add(labels, forecasts)
    return errors.result()


def test_hand_computed_errors():
    labels = np.array([10.0, 20.0, np.nan]).reshape(3, 1, 1)
    forecasts = np.array([[8.0, 9.0, 12.0], [18.0, 22.0, 25.0], [1.0, 2.0, 3.0]]).reshape(3, 1, 1, 3)
    overall = report(labels, forecasts).overall
    # Level 0.1: 0.1*2 and 0.1*2; level 0.5: 0.5*1 and 0.5*2; level 0.9: 0.1*2 and 0.1*5.
    assert overall.pinball == pytest.approx((0.2, 0.75, 0.35))
    assert overall.mean_pinball == pytest.approx(1.3 / 3)
    assert overall.q_risk == pytest.approx((2 * 0.4 / 30, 2 * 1.5 / 30, 2 * 0.7 / 30))
    assert overall.wql == pytest.approx(2 * 2.6 / 30 / 3)
    assert overall.mae == pytest.approx(1.5)
    assert overall.rmse == pytest.approx(np.sqrt(2.5))
    assert overall.coverage == (0.0, 0.5, 1.0)
    assert overall.interval_coverage == (1.0,)
    assert (overall.labels, overall.unknown_labels, overall.crossings) == (2, 1, 0)


def test_targets_are_kept_apart_and_overall_counts_each_label_once():
    labels, forecasts = batch()
    result = report(labels, forecasts)
    for target in range(2):
        alone = report(labels[:, :, target : target + 1], forecasts[:, :, target : target + 1])
        assert asdict(result.targets[target]) == {
            name: pytest.approx(value) for name, value in asdict(alone.overall).items()
        }
    counts = [errors.labels for errors in result.targets]
    assert counts[0] != counts[1]
    weighted = np.average([errors.mae for errors in result.targets], weights=counts)
    assert result.overall.mae == pytest.approx(weighted)
    assert sum(errors.crossings for errors in result.targets) == result.overall.crossings


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 9), max_size=4), seed=st.integers(0, 99))
def test_result_does_not_depend_on_batches_or_merging(cuts, seed):
    labels, forecasts = batch(windows=9, seed=seed)
    whole = report(labels, forecasts)
    merged = ForecastErrors(LEVELS, 2)
    bounds = [0, *sorted(cuts), 9]
    for first, end in zip(bounds[:-1], bounds[1:], strict=True):
        part = ForecastErrors(LEVELS, 2)
        part.add(labels[first:end], forecasts[first:end])
        merged.merge(pickle.loads(pickle.dumps(part)))
    result = merged.result()
    assert result.overall.pinball == pytest.approx(whole.overall.pinball, rel=1e-12)
    assert result.overall.coverage == pytest.approx(whole.overall.coverage)
    assert result.overall.crossings == whole.overall.crossings
    assert result.notes == whole.notes


def test_unknown_labels_never_count():
    labels, forecasts = batch()
    known = report(labels, forecasts).overall
    changed = np.where(np.isnan(labels)[..., None], 1e9, forecasts)
    assert report(labels, changed).overall.pinball == known.pinball
    assert report(labels, changed).overall.coverage == known.coverage


def test_errors_are_taken_from_sorted_levels_and_crossings_are_said():
    labels = np.zeros((1, 1, 1))
    result = report(labels, np.array([3.0, 1.0, 2.0]).reshape(1, 1, 1, 3))
    assert result.overall.crossings == 1
    assert result.overall.mae == 2.0
    assert any("1 neighbouring levels out of order" in note for note in result.notes)
    ordered, crossings = sort_quantiles(np.array([[3.0, 2.0, 1.0], [1.0, 1.0, 2.0]]))
    assert ordered.tolist() == [[1.0, 2.0, 3.0], [1.0, 1.0, 2.0]]
    assert crossings == 2


def test_nothing_known_gives_nan_and_a_note():
    result = report(np.full((2, 1, 1), np.nan), np.zeros((2, 1, 1, 3)))
    assert result.overall.labels == 0
    assert np.isnan(result.overall.mean_pinball)
    assert np.isnan(result.overall.coverage).all()
    assert result.notes == ("labels: 2 of 2 are unknown and not counted",)
    assert np.isnan(report(np.zeros((1, 1, 1)), np.ones((1, 1, 1, 3))).overall.wql)  # sum of |y| is 0
    assert np.isnan(ForecastErrors(LEVELS, 1).result().overall.mae)


def test_nonfinite_forecasts_show():
    labels, forecasts = np.ones((2, 1, 1)), np.ones((2, 1, 1, 3))
    forecasts[0, 0, 0, 1] = np.nan
    result = report(labels, forecasts)
    assert np.isnan(result.overall.mean_pinball)
    assert any("1 values are not finite" in note for note in result.notes)


def test_float32_input_is_summed_in_float64():
    labels = np.full((1000, 10, 1), 16_777_217.0)  # not a float32
    forecasts = np.full((1000, 10, 1, 3), 16_777_216, dtype=np.float32)
    assert report(labels, forecasts).overall.mae == 1.0


def test_median_is_the_nearest_level_and_is_named():
    assert report(np.zeros((1, 1, 1)), np.zeros((1, 1, 1, 2)), (0.2, 0.6)).median_level == 0.6
    assert median_index((0.4, 0.6)) == 0
    assert median_index((0.1, 0.5, 0.9)) == 1


def test_intervals_are_the_symmetric_pairs():
    levels = (0.025, 0.1, 0.3, 0.5, 0.9, 0.975)
    labels = np.array([[[0.0]], [[5.5]]])
    forecasts = np.tile(np.arange(6.0), (2, 1, 1, 1))
    result = report(labels, forecasts, levels)
    assert result.intervals == ((0.025, 0.975), (0.1, 0.9))
    assert result.overall.interval_coverage == (0.5, 0.0)


def test_pinball_at_its_best_is_the_quantile():
    labels = np.random.default_rng(0).normal(size=(4001, 1, 1))
    candidates = np.quantile(labels, [0.05, 0.1, 0.15])
    forecasts = np.broadcast_to(candidates, (4001, 1, 1, 3))
    loss = pinball_loss(labels, forecasts, (0.1, 0.1, 0.1)).mean((0, 1, 2))
    assert loss.argmin() == 1


def test_level_names():
    assert [level_name(q) for q in (0.1, 0.5, 0.025, 0.999, 0.07)] == ["p10", "p50", "p2.5", "p99.9", "p7"]
