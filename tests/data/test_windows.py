import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tables import make_table

from ds_tft.config.run import SplitSettings, WindowSettings
from ds_tft.data.schema import TimeKind
from ds_tft.data.split import SPLITS, split_bounds
from ds_tft.data.windows import (
    ACROSS,
    NO_HORIZON,
    NO_LABEL,
    NO_TARGET,
    OFF_STRIDE,
    TOO_SHORT,
    UNUSABLE,
    WindowIndex,
    find_windows,
    latest_windows,
    windows_between,
)
from ds_tft.errors import DataError


def bounds_of(table, **split):
    return split_bounds(np.unique(table.times), SplitSettings(**split), TimeKind.INDEX)


def brute_force(table, window, bounds):
    """The same windows row by row, and the reason of each window that is not used."""
    found = {split: [] for split in SPLITS}
    reasons = []
    shortest = window.shortest_history
    for _, first, end in table.segments.tolist():
        for t in range(first, end - window.horizon):
            labels = range(t + 1, t + window.horizon + 1)
            history = 0
            while (
                t - history >= first
                and table.usable[t - history]
                and np.isfinite(table.history[t - history]).all()
                and history < window.encoder_length
            ):
                history += 1
            splits = [
                s
                for s in SPLITS
                if all(bounds.period(s)[0] <= table.times[r] < bounds.period(s)[1] for r in labels)
            ]
            if t - first + 1 < shortest:
                reasons.append(TOO_SHORT)
            elif history < shortest or not table.usable[labels].all():
                reasons.append(UNUSABLE)
            elif not any(
                np.isfinite(table.targets[r]).any() and not table.synthetic[r] and table.weights[r] > 0
                for r in labels
            ):
                reasons.append(NO_LABEL)
            elif not splits:
                reasons.append(ACROSS)
            else:
                stride = window.stride if splits[0] == "train" else window.evaluation_stride
                start = bounds.period(splits[0])[0]
                base = first + shortest - 1
                while table.times[base + 1] < start:
                    base += 1
                if (t - base) % stride:
                    reasons.append(OFF_STRIDE)
                else:
                    found[splits[0]].append((t, history))
    return found, reasons


@st.composite
def cases(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    lengths = (draw(st.integers(20, 60)), *draw(st.lists(st.integers(1, 40), max_size=3)))
    segments, row = [], 0
    for series, length in enumerate(lengths):
        cut = draw(st.integers(0, length - 1))
        parts = [(row, row + cut), (row + cut, row + length)] if cut else [(row, row + length)]
        segments += [(series, *part) for part in parts]
        row += length
    targets = rng.normal(size=(row, draw(st.integers(1, 2))))
    targets[rng.random(targets.shape) < draw(st.sampled_from([0.0, 0.4, 0.9]))] = np.nan
    steps = np.concatenate([np.cumsum(rng.integers(1, 3, n)) + rng.integers(0, 20) for n in lengths])
    table = make_table(
        lengths,
        segments=segments,
        targets=targets,
        times=steps,
        usable=rng.random(row) > draw(st.sampled_from([0.0, 0.05])),
        synthetic=rng.random(row) < draw(st.sampled_from([0.0, 0.3])),
        weights=(rng.random(row) > draw(st.sampled_from([0.0, 0.3]))).astype(np.float32),
    )
    encoder = draw(st.integers(1, 8))
    window = WindowSettings(
        encoder_length=encoder,
        min_encoder_length=draw(st.one_of(st.none(), st.integers(1, encoder))),
        horizon=draw(st.integers(1, 4)),
        stride=draw(st.integers(1, 3)),
        evaluation_stride=draw(st.integers(1, 4)),
    )
    return table, window, draw(st.integers(0, 3))


@settings(max_examples=300, deadline=None)
@given(cases())
def test_equals_brute_force(case):
    table, window, embargo = case
    try:
        bounds = bounds_of(table, train=0.5, validation=0.25, embargo_steps=embargo)
    except DataError:
        return
    expected, reasons = brute_force(table, window, bounds)
    if not all(expected.values()):
        with pytest.raises(DataError, match="no window has its"):
            find_windows(table, window, bounds)
        return
    index, report = find_windows(table, window, bounds)
    for split in SPLITS:
        found = list(zip(index[split].origins.tolist(), index[split].lengths.tolist(), strict=True))
        assert found == expected[split]
    assert report.kept == {split: len(windows) for split, windows in expected.items()}
    assert report.dropped == {
        reason: reasons.count(reason) for reason in (TOO_SHORT, UNUSABLE, NO_LABEL, ACROSS, OFF_STRIDE)
    }


@pytest.mark.parametrize("embargo", [0, 7])
def test_no_training_label_at_or_after_the_cutoff(embargo):
    table = make_table((300, 200))
    window = WindowSettings(encoder_length=20, horizon=5)
    bounds = bounds_of(table, validation_start=120, test_start=160, embargo_steps=embargo)
    index, report = find_windows(table, window, bounds)
    labels = {s: index[s].origins[:, None] + np.arange(1, 6) for s in SPLITS}
    times = {s: table.times[rows] for s, rows in labels.items()}
    assert times["train"].max() == 119 - embargo
    assert times["validation"].min() == 120
    assert times["validation"].max() == 159 - embargo
    assert times["test"].min() == 160
    context = index["validation"].origins - index["validation"].lengths + 1
    assert table.times[context].min() == 100  # history may come from before the cutoff
    # Two series, two cutoffs: four windows straddle each, and `embargo` more lie in the embargo.
    assert report.dropped[ACROSS] == 2 * 2 * (4 + embargo)
    assert report.lines()[
        0
    ] == f"windows: {len(index['train'])} train, {len(index['validation'])} validation, " + (
        f"{len(index['test'])} test"
    )


def test_labels_never_leave_the_segment():
    table = make_table((60,), segments=[(0, 0, 30), (0, 30, 36), (0, 36, 60)])
    window = WindowSettings(encoder_length=4, min_encoder_length=4, horizon=3)
    index, report = find_windows(table, window, bounds_of(table, train=1.0, validation=0.0))
    segment = np.repeat([0, 1, 2], [30, 6, 24])
    first = index["train"].origins - index["train"].lengths + 1
    last = index["train"].origins + 3
    assert (segment[first] == segment[last]).all()
    assert len(index["train"]) == (30 - 6) + (24 - 6)
    assert report.short_segments == 1
    assert "segments too short for a window: 1" in report.lines()


def test_series_without_windows_are_counted():
    table = make_table((50, 5, 50))
    _, report = find_windows(table, WindowSettings(encoder_length=10, horizon=3), bounds_of(table))
    assert report.series_without_windows == 1
    assert "series without a window: 1" in report.lines()


def test_index_does_not_grow_with_the_encoder():
    table = make_table((2000,))
    bounds = bounds_of(table)
    sizes = []
    for length in (50, 100):
        window = WindowSettings(encoder_length=length, min_encoder_length=10, horizon=5)
        index, _ = find_windows(table, window, bounds)
        sizes.append(sum(index[s].origins.nbytes + index[s].lengths.nbytes for s in SPLITS))
    assert sizes[0] == sizes[1] <= 12 * 2000


def test_split_without_a_window():
    table = make_table((100,))
    window = WindowSettings(encoder_length=10, horizon=12)
    with pytest.raises(
        DataError,
        match=r"^split.validation: no window has its 12 labels in the period from 80, got .*"
        r"x labels across a cutoff.*; move the cutoffs .* \(it ends 99\), or lower window.horizon",
    ):
        find_windows(table, window, bounds_of(table, validation_start=80, test_start=85))
    with pytest.raises(
        DataError, match=r"split.train: no window .* got 1 x a run of rows .* too short for a"
    ):
        find_windows(make_table((10,)), window, bounds_of(make_table((10,))))


def test_spaced_windows():
    index = WindowIndex(np.arange(100), np.full(100, 5, dtype=np.int32))
    assert index.spaced(4).origins.tolist() == [0, 25, 50, 75]
    assert index.spaced(100) is index.spaced(None) is index
    assert len(np.unique(index.spaced(99).origins)) == 99


def future_table():
    """Three series that end at different rows, each with 4 rows to forecast; the last has no target."""
    targets = np.arange(60.0)[:, None]
    targets[[16, 17, 18, 19]] = np.nan
    targets[36:40] = np.nan
    targets[40:] = np.nan
    return make_table((20, 20, 20), targets=targets, synthetic=np.arange(60) % 20 >= 16)


def test_latest_windows_end_with_the_last_target():
    window = WindowSettings(encoder_length=8, horizon=4)
    index, report = latest_windows(future_table(), window)
    assert index.origins.tolist() == [15, 35]
    assert index.lengths.tolist() == [8, 8]
    assert report.kept == {"forecast": 2}
    assert report.dropped[NO_TARGET] == report.series_without_windows == 1
    index, report = latest_windows(make_table((20,), targets=future_table().targets[:20]), window)
    assert index.origins.tolist() == [15]


def test_latest_windows_need_a_horizon_and_a_history():
    window = WindowSettings(encoder_length=8, horizon=5)
    table = future_table()
    with pytest.raises(
        DataError, match=rf"forecast: no window in 3 series, got 1 x {NO_TARGET}, 2 x {NO_HORIZON};"
    ):
        latest_windows(table, window)
    window = WindowSettings(encoder_length=60, horizon=4)
    with pytest.raises(DataError, match=r"2 x history shorter .*; give at least 30 rows with a target"):
        latest_windows(table, window)
    unusable = make_table((20,), targets=table.targets[:20], usable=np.arange(20) != 14)
    with pytest.raises(DataError, match=r"1 x a row has missing inputs"):
        latest_windows(unusable, WindowSettings(encoder_length=8, horizon=4))


def test_windows_between_two_times():
    window = WindowSettings(encoder_length=8, horizon=4)
    index, report = windows_between(future_table(), window, first=2, last=17, stride=3)
    assert index.origins.tolist() == [5, 8, 11, 14, 25, 28, 31, 34]
    assert index.lengths.tolist() == [6, 8, 8, 8] * 2
    assert report.dropped[TOO_SHORT] == 2
    with pytest.raises(DataError, match="no window"):
        windows_between(future_table(), window, first=100, last=200)
