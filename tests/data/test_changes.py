import numpy as np
import pytest

from ds_tft.config.run import WindowSettings
from ds_tft.data.changes import Anchored, change_statistics, running_mean, segment_of_rows
from ds_tft.data.statistics import group_statistics

WINDOW = WindowSettings(encoder_length=8, horizon=3, min_encoder_length=4)
SEGMENTS = np.array([[0, 0, 40], [0, 40, 70], [1, 72, 120]])  # rows 70 and 71 lie in none


def walk(seed=0, level=1e6):
    """Row by row: a random walk, and the series of each row."""
    rng = np.random.default_rng(seed)
    series = np.repeat([0, 1], [72, 48])
    return level + np.cumsum(rng.standard_normal(120)) * np.where(series == 0, 1.0, 50.0), series


def labels_of(values, anchors, horizon=3):
    """Every label minus its anchor, by brute force, with the series of each."""
    found = []
    for series, first, end in SEGMENTS:
        for t in range(first, end):
            found += [(series, values[t + k] - anchors[t]) for k in range(1, horizon + 1) if t + k < end]
    series, changes = np.array(found).T
    known = np.isfinite(changes)
    return series[known].astype(int), changes[known]


def rms(values):
    return np.sqrt(np.mean(np.square(values)))


def test_segment_of_rows_leaves_holes():
    segment = segment_of_rows(SEGMENTS, 121)
    assert segment[[0, 39, 40, 69, 70, 71, 72, 119, 120]].tolist() == [0, 0, 1, 1, -1, -1, 2, 2, -1]


def test_running_mean_is_that_of_the_window():
    history, _ = walk()
    history[72:74] = np.nan
    mean = running_mean(history, SEGMENTS, WINDOW)
    for _, first, end in SEGMENTS:
        for t in range(first, end):
            rows = history[max(first, t - 7) : t + 1]
            expected = np.nanmean(rows) if len(rows) >= 4 else np.nan
            assert mean[t] == pytest.approx(expected, rel=1e-14, nan_ok=True)
    assert np.isnan(mean[70:72]).all()


def test_series_at_0_until_after_training_is_constant():
    values, series = walk()
    values[72:] = np.where(np.arange(48) < 40, 0.0, 0.27)
    labels = np.where(np.arange(120) < 112, values, np.nan)
    anchors = running_mean(values, SEGMENTS, WINDOW)
    level = group_statistics(labels, series, 2, "standard")
    fitted = change_statistics(
        level, Anchored(labels, anchors, segment_of_rows(SEGMENTS, 120), series), 3, "standard"
    )
    assert anchors[75:112].tolist() == [0.0] * 37
    assert fitted.scale[1] == fitted.scale[0]


@pytest.mark.parametrize("anchor", ["last", "mean"])
@pytest.mark.parametrize("per_series", [True, False])
def test_scale_is_the_size_of_labels(anchor, per_series):
    values, series = walk()
    anchors = values if anchor == "last" else running_mean(values, SEGMENTS, WINDOW)
    level = group_statistics(values, series, 2 if per_series else 0, "standard")
    target = Anchored(values, anchors, segment_of_rows(SEGMENTS, 120), series)
    fitted = change_statistics(level, target, 3, "standard")
    which, changes = labels_of(values, anchors)
    if per_series:
        expected = [rms(changes[which == s]) for s in (0, 1)]
        assert fitted.scale == pytest.approx([*expected, np.median(expected)], rel=1e-9)
    else:
        assert fitted.scale == pytest.approx([rms(changes)], rel=1e-9)
    assert fitted.center.tolist() == level.center.tolist()


def test_robust_scale_ignores_jumps():
    values, series = walk()
    values[50:] += 1e5
    level = group_statistics(values, series, 0, "robust")
    target = Anchored(values, values, segment_of_rows(SEGMENTS, 120), series)
    scales = [change_statistics(level, target, 3, kind).scale[0] for kind in ("standard", "robust")]
    assert scales[1] < 0.05 * scales[0]
    steps = [np.median(np.abs(labels_of(values, values, 1)[1])) * 1.4826]
    one_step = change_statistics(level, target, 1, "robust").scale
    assert one_step == pytest.approx(steps, rel=1e-9)


def test_series_without_change_or_labels_take_the_median_of_the_others():
    values, series = walk()
    values[72:] = 5.0
    level = group_statistics(values, series, 3, "standard")
    target = Anchored(values, values, segment_of_rows(SEGMENTS, 120), series)
    fitted = change_statistics(level, target, 3, "standard")
    assert fitted.scale[1] == fitted.scale[2] == fitted.scale[3] == fitted.scale[0]
    assert fitted.fell_back.tolist() == [False, False, True]
    assert not fitted.constant


def test_one_wild_series_does_not_set_the_scale_of_unseen_ones():
    series = np.repeat([0, 1, 2], 50)
    values = np.cumsum(np.array([1.0, 2.0, 1000.0])[series])
    segments = np.array([[0, 0, 50], [1, 50, 100], [2, 100, 150]])
    level = group_statistics(values, series, 3, "standard")
    target = Anchored(values, values, segment_of_rows(segments, 150), series)
    assert change_statistics(level, target, 1, "standard").scale == pytest.approx([1, 2, 1000, 2])


def test_nothing_ever_changes():
    values = np.full(120, 5.0)
    level = group_statistics(values, np.zeros(120, dtype=int), 1, "standard")
    target = Anchored(values, values, segment_of_rows(SEGMENTS, 120), np.zeros(120, dtype=int))
    fitted = change_statistics(level, target, 3, "robust")
    assert fitted.constant
    assert fitted.scale.tolist() == [1, 1]
