import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import index_rows, micros

from ds_tft.data.frequency import BusinessDays, FixedStep, Frequency, IndexStep, Months
from ds_tft.data.gaps import append_future, close_gaps
from ds_tft.data.rows import resolve_duplicates, sort_rows
from ds_tft.data.schema import TimeKind
from ds_tft.data.times import DAY, HOUR, MINUTE
from ds_tft.errors import DataError

panels = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), min_size=1, max_size=40, unique=True)
policies = st.sampled_from(["fill", "tolerate", "split"])


def panel_rows(panel):
    return index_rows([t for _, t in panel], [s for s, _ in panel], categories={"c": range(len(panel))})


@settings(deadline=None)
@given(panels, policies, st.integers(0, 8))
def test_segments_stay_in_one_series_and_hold_no_larger_gap(panel, policy, limit):
    rows, counts = close_gaps(panel_rows(panel), policy, limit, IndexStep())
    allowed = {"fill": 1, "tolerate": limit + 1, "split": 1}[policy]
    covered = []
    for series, start, stop in rows.segments:
        assert (rows.series[start:stop] == series).all()
        assert (np.diff(rows.times[start:stop]) <= allowed).all()
        covered += range(start, stop)
    assert covered == list(range(rows.num_rows))
    assert counts.segments == len(rows.segments)


@settings(deadline=None)
@given(panels, policies, st.integers(0, 8))
def test_neighbouring_segments_of_a_series_are_really_apart(panel, policy, limit):
    rows, _ = close_gaps(panel_rows(panel), policy, limit, IndexStep())
    for before, after in zip(rows.segments[:-1], rows.segments[1:], strict=True):
        apart = rows.times[after[1]] - rows.times[before[2] - 1] - 1
        assert before[0] != after[0] or apart > (0 if policy == "split" else limit)


@settings(deadline=None)
@given(panels, st.integers(0, 8))
def test_filling_keeps_every_row_and_adds_empty_ones(panel, limit):
    before = panel_rows(panel)
    rows, counts = close_gaps(before, "fill", limit, IndexStep())
    old = ~rows.synthetic
    assert rows.reals["x"][old].tolist() == before.reals["x"].tolist()
    assert rows.categories["c"][old].tolist() == before.categories["c"].tolist()
    assert rows.times[old].tolist() == before.times.tolist()
    assert np.isnan(rows.reals["x"][~old]).all()
    assert (rows.categories["c"][~old] == -1).all()
    assert counts.filled_rows == (~old).sum()


def test_counts():
    rows, counts = close_gaps(index_rows([0, 1, 4, 14, 0, 2], [0, 0, 0, 0, 1, 1]), "fill", 5, IndexStep())
    assert rows.times.tolist() == [0, 1, 2, 3, 4, 14, 0, 1, 2]
    assert rows.segments.tolist() == [[0, 0, 5], [0, 5, 6], [1, 6, 9]]
    assert counts.gaps == {"A": 2, "B": 1}
    assert (counts.longest, counts.bridged, counts.filled_rows, counts.segments) == (9, 2, 3, 3)


def test_a_series_that_begins_later_has_no_gap_before_it():
    rows, counts = close_gaps(index_rows([0, 1, 4, 5], [0, 0, 1, 1]), "fill", 5, IndexStep())
    assert rows.segments.tolist() == [[0, 0, 2], [1, 2, 4]]
    assert counts.lines() == []


def test_tolerated_gaps_add_no_row():
    rows, counts = close_gaps(index_rows([0, 3, 30]), "tolerate", 2, IndexStep())
    assert rows.segments.tolist() == [[0, 0, 2], [0, 2, 3]]
    assert (rows.num_rows, counts.bridged, counts.filled_rows) == (3, 1, 0)


def test_a_complete_grid_passes_every_policy_untouched():
    rows = index_rows([3, 4, 5])
    for policy in ("fill", "tolerate", "split", "error"):
        after, counts = close_gaps(rows, policy, 0, IndexStep())
        assert after.times is rows.times
        assert counts.lines() == []


def test_gaps_are_refused_with_both_times():
    times = micros("2024-01-01T05:00", "2024-01-01T09:00", "2024-01-01T11:00")
    rows, _ = sort_rows(
        times=times,
        kind=TimeKind.NAIVE,
        series=np.zeros(3, dtype=np.int32),
        series_names=["A"],
        reals={},
        categories={},
    )
    with pytest.raises(
        DataError,
        match=r"^series 'A' at 2024-01-01T05:00:00: 3 steps of 1h are missing before the next row at "
        r"2024-01-01T09:00:00, got 2 such gaps in all; set data.gaps to 'fill', 'tolerate' or 'split'$",
    ):
        close_gaps(rows, "error", 5, FixedStep(count=HOUR))


def test_rows_off_the_grid_and_in_one_step_are_counted_and_kept():
    minutes = np.array([0, 60, 65, 119, 120, 250, 360]) * MINUTE
    rows, counts = close_gaps(index_rows(minutes), "fill", 5, FixedStep(count=HOUR))
    assert (counts.off_grid, counts.shared_steps, counts.filled_rows) == (3, 2, 2)
    assert (rows.times // MINUTE).tolist() == [0, 60, 65, 119, 120, 180, 250, 310, 360]
    assert rows.segments.tolist() == [[0, 0, 9]]


@pytest.mark.parametrize(
    ("frequency", "before", "after", "between"),
    [
        (BusinessDays(), "2024-03-01T16:00", "2024-03-06T16:00", ["2024-03-04T16:00", "2024-03-05T16:00"]),
        (Months(day=31), "2024-01-31", "2024-04-30", ["2024-02-29", "2024-03-31"]),
        (
            FixedStep(count=DAY, zone="Europe/Berlin"),
            "2024-03-29T23:00",
            "2024-04-01T22:00",
            ["2024-03-30T23:00", "2024-03-31T22:00"],
        ),
    ],
)
def test_filled_times_lie_on_the_grid(frequency, before, after, between):
    rows, _ = close_gaps(index_rows(micros(before, after)), "fill", 5, frequency)
    assert rows.times[rows.synthetic].tolist() == micros(*between).tolist()


@settings(deadline=None)
@given(panels, st.integers(1, 5), policies)
def test_future_rows_extend_the_last_segment_of_each_series(panel, steps, policy):
    rows, _ = close_gaps(panel_rows(panel), policy, 3, IndexStep())
    longer = append_future(rows, steps, IndexStep())
    assert longer.num_rows == rows.num_rows + steps * len(np.unique(rows.series))
    assert (longer.segments[:, 2] - longer.segments[:, 1]).sum() == longer.num_rows
    assert len(longer.segments) == len(rows.segments)
    for code in np.unique(rows.series):
        times = longer.times[longer.series == code]
        assert times[:-steps].tolist() == rows.times[rows.series == code].tolist()
        assert times[-steps:].tolist() == list(range(times[-steps - 1] + 1, times[-steps - 1] + steps + 1))
        assert longer.synthetic[longer.series == code][-steps:].all()
        last = longer.segments[longer.segments[:, 0] == code][-1]
        assert longer.series[last[2] - 1] == code
        assert last[2] - last[1] > steps


def test_no_rows():
    rows = index_rows([])
    for policy in ("fill", "tolerate", "split", "error"):
        after, counts = close_gaps(rows, policy, 5, Frequency.parse("1h"))
        assert after.segments.shape == (0, 3)
        assert counts.segments == 0
    assert append_future(rows, 3, IndexStep()).num_rows == 0


def test_many_rows_take_little_time():
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.choice([1, 1, 1, 3, 50], 200_000)) * MINUTE
    started = time.perf_counter()
    rows = index_rows(times, np.arange(200_000) // 100, names=tuple(map(str, range(2000))))
    rows, _ = resolve_duplicates(rows, "last")
    rows, counts = close_gaps(rows, "fill", 5, FixedStep(count=MINUTE))
    append_future(rows, 10, FixedStep(count=MINUTE))
    assert time.perf_counter() - started < 5  # well under one on an idle machine
    assert counts.filled_rows > 50_000
