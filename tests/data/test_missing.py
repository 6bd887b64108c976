import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import index_rows

from ds_tft.data.frequency import IndexStep
from ds_tft.data.gaps import append_future, close_gaps
from ds_tft.data.missing import fill_missing
from ds_tft.errors import DataError

NAN = float("nan")
values = st.lists(
    st.tuples(st.integers(0, 2), st.one_of(st.just(NAN), st.integers(0, 99))), min_size=1, max_size=30
)


def rows_of(file):
    return index_rows(range(len(file)), [s for s, _ in file], reals={"x": [v for _, v in file]})


@settings(deadline=None)
@given(values)
def test_the_last_known_value_of_the_series_is_carried(file):
    rows = rows_of(file)
    filled = fill_missing(rows, ["x"], "fill")
    last = {}
    for i in range(rows.num_rows):
        if not np.isnan(rows.reals["x"][i]):
            last[rows.series[i]] = rows.reals["x"][i]
        np.testing.assert_equal(filled.rows.reals["x"][i], last.get(rows.series[i], NAN))
    missing = np.isnan(rows.reals["x"])
    assert filled.counts.carried.get("x", 0) + filled.counts.without_past.get("x", 0) == missing.sum()
    assert filled.counts.without_past.get("x", 0) == np.isnan(filled.rows.reals["x"]).sum()
    assert filled.usable.all()
    if missing.any():
        assert filled.indicator_columns == ("x",)
        assert filled.indicators[:, 0].tolist() == missing.tolist()


@settings(deadline=None)
@given(values, st.data(), st.sampled_from(["fill", "drop"]))
def test_a_later_row_never_changes_an_earlier_one(file, data, policy):
    rows = rows_of(file)
    changed_row = data.draw(st.integers(0, rows.num_rows - 1))
    value = data.draw(st.one_of(st.just(NAN), st.just(-1.0)))
    changed = index_rows(rows.times, rows.series, reals={"x": rows.reals["x"].copy()})
    changed.reals["x"][changed_row] = value
    before, after = (
        fill_missing(close_gaps(r, "fill", 5, IndexStep())[0], ["x"], policy).rows for r in (rows, changed)
    )
    place = int(np.flatnonzero(~before.synthetic)[changed_row])
    other_series = before.series != before.series[place]
    untouched = other_series | (np.arange(before.num_rows) < place)
    np.testing.assert_array_equal(before.reals["x"][untouched], after.reals["x"][untouched])


def test_the_rows_given_are_not_changed():
    rows = index_rows([0, 1], reals={"x": [1, NAN]})
    fill_missing(rows, ["x"], "fill")
    assert np.isnan(rows.reals["x"][1])


def test_only_the_columns_asked_for_are_filled():
    rows = index_rows([0, 1], reals={"x": [1, NAN], "label": [1, NAN]})
    filled = fill_missing(rows, ["x"], "fill")
    assert np.isnan(filled.rows.reals["label"][1])
    assert filled.indicator_columns == ("x",)


@pytest.mark.parametrize("policy", ["error", "drop", "fill"])
def test_synthetic_rows_are_filled_and_not_counted(policy):
    rows = index_rows(
        [0, 3, 0], [0, 0, 1], reals={"x": [7, 8, 9]}, categories={"c": [4, -1 if policy == "fill" else 5, 6]}
    )
    rows, _ = close_gaps(rows, "fill", 5, IndexStep())
    rows = append_future(rows, 1, IndexStep())
    filled = fill_missing(rows, ["x", "c"], policy)
    assert filled.rows.reals["x"].tolist() == [7, 7, 7, 8, 8, 9, 9]
    last = filled.rows.categories["c"][3]
    assert filled.rows.categories["c"].tolist() == [4, 4, 4, last, last, 6, 6]
    assert filled.usable.all()
    assert not filled.counts.carried
    assert not filled.counts.dropped


def test_null_categories_of_the_file_stay_null():
    rows = index_rows([0, 1, 2], reals={}, categories={"holiday": [-1, 3, -1]})
    filled = fill_missing(rows, ["holiday"], "fill")
    assert filled.rows.categories["holiday"].tolist() == [-1, 3, -1]
    assert filled.indicators[:, 0].tolist() == [True, False, True]
    assert filled.counts.null_categories == {"holiday": 2}


def test_drop_marks_rows_and_invents_nothing():
    rows = index_rows(
        [0, 1, 2, 3], reals={"x": [1, NAN, 3, 4], "y": [1, NAN, 3, NAN]}, categories={"c": [-1, 0, 0, 0]}
    )
    filled = fill_missing(rows, ["x", "y", "c"], "drop")
    assert filled.usable.tolist() == [False, False, True, False]
    np.testing.assert_array_equal(filled.rows.reals["x"], rows.reals["x"])
    assert filled.counts.dropped == {"x": 1, "y": 2, "c": 1}
    assert filled.counts.unusable_rows == 3
    assert filled.indicators.shape == (4, 0)


def test_drop_leaves_synthetic_rows_usable():
    rows, _ = close_gaps(index_rows([0, 1, 4], reals={"x": [NAN, 5, 6]}), "fill", 5, IndexStep())
    filled = fill_missing(rows, ["x"], "drop")
    assert filled.usable.tolist() == [False, True, True, True, True]
    assert filled.rows.reals["x"][1:].tolist() == [5, 5, 5, 6]


def test_indicators_decided_at_training_are_kept_in_their_order():
    rows = index_rows([0, 1], reals={"x": [1, 2], "y": [1, NAN], "z": [NAN, 1]})
    filled = fill_missing(rows, ["x", "y", "z"], "fill", indicator_columns=["y", "x"])
    assert filled.indicator_columns == ("y", "x")
    assert filled.indicators.tolist() == [[False, False], [True, False]]


def test_missing_values_are_refused_with_column_and_place():
    rows = index_rows(
        [5, 6, 7], [1, 1, 1], reals={"x": [1, 2, 3], "price": [1, NAN, NAN]}, categories={"c": [0, -1, 0]}
    )
    with pytest.raises(
        DataError,
        match=r"^column 'price', series 'B' at 6: value is missing \(null, NaN or infinite\), got 2 such "
        r"values here and others in 1 more columns; set data.missing to 'fill' or 'drop'$",
    ):
        fill_missing(rows, ["x", "price", "c"], "error")


def test_complete_data_passes_every_policy():
    for policy in ("error", "drop", "fill"):
        filled = fill_missing(index_rows([0, 1]), ["x"], policy)
        assert filled.counts.lines() == []
        assert filled.indicator_columns == ()
        assert filled.usable.all()
