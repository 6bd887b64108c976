"""The way from a file to training data as a whole: splits, scalers, leakage, causality."""

import dataclasses
import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from datasets import DAY, FIRST_DAY, ROLES, WINDOW, bars, panel, prepare, prepare_file, settings_of, write

from ds_tft.data.batches import BatchBuilder
from ds_tft.errors import ConfigError, DataError

PLAIN = {"reals": "none", "clip": None, "target": {"kind": "none", "transform": "none", "anchor": "none"}}


def changed(columns, **values):
    """The columns with arrays changed by functions: `sales=lambda v: v * 2`."""
    return columns | {name: change(np.array(columns[name], dtype=float)) for name, change in values.items()}


def assert_same_table(first, second, rows=slice(None)):
    """All arrays are equal; those with a value for each row of the data, in `rows`."""
    for field in dataclasses.fields(first.table):
        values, others = getattr(first.table, field.name), getattr(second.table, field.name)
        by_row = isinstance(values, np.ndarray) and len(values) == first.table.num_rows
        where = rows if by_row else slice(None)
        np.testing.assert_array_equal(values[where], others[where], err_msg=field.name)


def assert_same_windows(first, second):
    for split, index in first.windows.items():
        np.testing.assert_array_equal(index.origins, second.windows[split].origins, err_msg=split)
        np.testing.assert_array_equal(index.lengths, second.windows[split].lengths, err_msg=split)


def batch_of(data, split, position=0):
    builder = BatchBuilder(data.table, data.preprocessor.window, data.preprocessor.target_scaler)
    return builder.build(data.windows[split], np.array([position]))


def days_after(count):
    return FIRST_DAY + count * DAY


# Where the data comes from


def test_shards_in_any_order_give_the_same_data(tmp_path):
    columns = pa.table(panel())
    cuts = [(0, 50), (50, 90), (90, 180)]
    tables = []
    for order in ((0, 1, 2), (2, 0, 1)):
        folder = tmp_path / "".join(map(str, order))
        folder.mkdir()
        for place, shard in enumerate(order):
            start, stop = cuts[shard]
            part = columns.slice(start, stop - start)
            # Columns too come in any order, and each shard numbers its categories by itself.
            part = part.select(part.column_names[:: -1 if shard else 1])
            part = part.set_column(
                part.column_names.index("weather"), "weather", part["weather"].dictionary_encode()
            )
            write(folder / f"{place}.parquet", {name: part[name] for name in part.column_names})
        tables.append(prepare_file(str(folder), data=ROLES))
    whole = prepare(tmp_path, panel())
    for data in tables:
        assert_same_table(whole, data)
        assert_same_windows(whole, data)
        assert data.preprocessor == whole.preprocessor


def test_an_integer_target_is_regressed_like_its_float_copy(tmp_path):
    columns = panel()
    ticks = np.round(columns["sales"]).astype(np.int64)
    whole = prepare(tmp_path, columns | {"sales": ticks})
    real = prepare(tmp_path, columns | {"sales": ticks.astype(float)})
    assert_same_table(whole, real)
    assert whole.preprocessor == real.preprocessor


def test_a_decimal_column_is_its_float_copy(tmp_path):
    columns = panel()
    cents = [Decimal(f"{value:.2f}") for value in columns["sales"]]
    exact = prepare(tmp_path, columns | {"sales": pa.array(cents, pa.decimal128(18, 2))})
    assert_same_table(exact, prepare(tmp_path, columns | {"sales": [float(c) for c in cents]}))
    assert "decimals are read as float64 in: sales" in exact.lines


def test_roles_may_be_left_to_inference(tmp_path):
    columns = {name: values for name, values in panel().items() if name != "weight"}
    data = prepare(tmp_path, columns, data={"target": "sales"})
    roles = data.preprocessor.layout.roles
    assert roles.time == "day"
    assert roles.series == ("store",)
    assert roles.static_reals == ("area",)
    assert roles.static_categories == ("city",)
    assert set(roles.observed_reals) == {"price", "visits"}, "nothing is taken to be known for the horizon"
    assert set(roles.observed_categories) == {"holiday", "weather"}
    assert data.preprocessor.layout.calendar == ("day_of_week", "day_of_month", "month")


def test_a_file_of_one_series_without_any_other_column(tmp_path):
    columns = {name: panel(1)[name] for name in ("day", "sales")}
    data = prepare(tmp_path, columns, data={"target": "sales", "calendar": "none"})
    names = data.preprocessor.variable_names()
    assert names == {"static": (), "history": ("sales", "relative_time"), "future": ("relative_time",)}
    assert data.table.static_categories.shape == (1, 0)


def test_an_integer_time_column(tmp_path):
    columns = panel()
    columns["day"] = np.tile(np.arange(60) * 10 + 7, 3)
    data = prepare(tmp_path, columns, split={"validation_start": 407, "test_start": 507})
    assert data.preprocessor.layout.frequency == "10index@7"
    assert data.bounds.train_end == 407
    with pytest.raises(ConfigError, match="an integer time column has no calendar"):
        prepare(tmp_path, columns, data=ROLES | {"calendar": ["month"]})


def test_several_targets(tmp_path):
    data = prepare(tmp_path, panel(), data=ROLES | {"target": ["visits", "sales"], "observed_reals": []})
    assert data.table.targets.shape == (180, 2)
    assert data.preprocessor.variable_names()["history"][:2] == ("visits", "sales")
    batch = batch_of(data, "train")
    assert batch.labels.shape == (1, 3, 2)
    np.testing.assert_array_equal(data.table.targets[:, 1], panel()["sales"])


# Splits


def test_no_label_of_a_split_lies_outside_its_period(tmp_path):
    data = prepare(tmp_path, panel(), split={"train": 0.6, "validation": 0.2, "embargo_steps": 2})
    times, horizon = data.table.times, WINDOW["horizon"]
    labels = {
        split: times[index.origins[:, None] + np.arange(1, horizon + 1)]
        for split, index in data.windows.items()
    }
    assert labels["train"].max() < data.bounds.train_end == days_after(34)
    assert labels["validation"].min() >= data.bounds.validation_start == days_after(36)
    assert labels["validation"].max() < days_after(46)
    assert labels["test"].min() >= days_after(48)
    first = data.windows["validation"]
    assert times[first.origins - first.lengths + 1].min() < data.bounds.train_end, "history may reach back"


def test_rows_put_in_for_gaps_do_not_move_the_cutoffs(tmp_path):
    columns = panel()
    keep = [row for row in range(180) if row % 60 not in (30, 31)]
    data = prepare(tmp_path, {name: [list(v)[r] for r in keep] for name, v in columns.items()})
    assert data.table.num_rows == 180
    present = np.unique(data.table.times[~data.table.synthetic])
    assert len(present) == 58
    assert data.bounds.train_end == present[round(0.7 * 58)]


def test_known_future_rows_do_not_move_the_cutoffs(tmp_path):
    columns = panel(3, 60)
    row = np.arange(180) % 60
    future = changed(columns, sales=lambda v: np.where(row >= 50, np.nan, v))
    data = prepare(tmp_path, future)
    assert data.bounds.last_time == days_after(49)
    assert data.bounds.train_end == days_after(35)
    assert not data.table.synthetic[row < 50].any()
    assert data.table.synthetic[row >= 50].all()
    origin_days = data.table.times[data.windows["test"].origins]
    assert origin_days.max() == days_after(46), "all labels lie before the end of the targets"


def test_windows_have_history_and_labels_from_the_rows_that_they_name(tmp_path):
    columns = panel(2, 40) | {"sales": np.arange(80.0), "visits": 1000 + np.arange(80.0)}
    data = prepare(tmp_path, columns, scaling=PLAIN)
    for split, index in data.windows.items():
        for position in range(len(index)):
            batch = batch_of(data, split, position)
            origin, length = int(index.origins[position]), int(index.lengths[position])
            assert batch.labels[0, :, 0].tolist() == [origin + 1, origin + 2, origin + 3]
            history = list(range(origin - length + 1, origin + 1))
            assert batch.inputs.observed_reals[0, :length, 0].tolist() == history
            assert batch.inputs.observed_reals[0, :length, 1].tolist() == [1000 + row for row in history]
            assert origin // 40 == (origin + 3) // 40 == (origin - length + 1) // 40, "one series"


# Scaling


@pytest.mark.parametrize("per_series", [False, True])
@pytest.mark.parametrize("kind", ["standard", "robust"])
def test_scalers_and_categories_know_nothing_behind_the_cutoff(tmp_path, per_series, kind):
    target = {"kind": kind, "per_series": per_series, "anchor": "none"}
    scaling = {"reals": kind, "per_series": per_series, "target": target}
    columns = panel()
    later = np.arange(180) % 60 >= 42
    other = changed(
        columns,
        **{name: lambda v: np.where(later, 7 * v + 3, v) for name in ("sales", "price", "visits")},
    )
    other["weather"] = [
        "hail" if late else text for text, late in zip(columns["weather"], later, strict=True)
    ]
    first, second = (prepare(tmp_path, c, scaling=scaling) for c in (columns, other))
    assert first.preprocessor == second.preprocessor
    assert first.bounds == second.bounds
    assert_same_table(first, second, rows=~later)


@pytest.mark.parametrize("anchor", ["last", "mean"])
def test_the_scale_of_changes_knows_nothing_behind_the_cutoff(tmp_path, anchor):
    columns = panel()
    later = np.arange(180) % 60 >= 42
    other = changed(columns, sales=lambda v: np.where(later, 7 * v, v))
    scaling = {"target": {"anchor": anchor}}
    first, second = (prepare(tmp_path, c, scaling=scaling) for c in (columns, other))
    scales = [data.preprocessor.target_scaler.scale for data in (first, second)]
    # A running sum over all rows may round otherwise.
    np.testing.assert_allclose(scales[0], scales[1], rtol=1e-12)


def test_bar_features_and_statics_know_nothing_behind_the_cutoff(tmp_path):
    columns = bars(2, 300)
    row = np.arange(600) % 300
    later = row >= 250
    factor = {name: 1.5 for name in ("open", "high", "low", "close")} | {"volume": 3.0}
    other = changed(columns, **{name: lambda v, f=f: np.where(later, f * v, v) for name, f in factor.items()})
    data = {"features": "ohlcv", "series": "symbol"}
    first, second = (prepare(tmp_path, c, data=data) for c in (columns, other))
    assert first.bounds.train_end <= FIRST_DAY + 250 * DAY // 24
    assert first.preprocessor == second.preprocessor
    assert_same_table(first, second, rows=~later)
    assert not np.array_equal(first.table.observed_reals[later], second.table.observed_reals[later])


def test_rows_cut_off_the_end_change_nothing_before(tmp_path):
    """A file that ends earlier gives the same rows: nothing looks ahead."""
    dates = {"validation_start": "2024-02-10", "test_start": "2024-02-20"}
    row = np.arange(180) % 60
    gap = row != 20
    long_table = pa.table(panel()).filter(pa.array(gap))
    short_table = pa.table(panel()).filter(pa.array(gap & (row < 55)))
    sections = {"data": ROLES | {"calendar": ["day_of_week", "month"]}, "split": dates}
    long = prepare(tmp_path, {n: long_table[n] for n in long_table.column_names}, **sections)
    short = prepare(tmp_path, {n: short_table[n] for n in short_table.column_names}, **sections)
    assert short.preprocessor == long.preprocessor
    kept = np.isin(long.table.times, short.table.times)
    for name in ("times", "history", "observed_reals", "known_reals", "observed_categories", "usable"):
        np.testing.assert_array_equal(
            getattr(long.table, name)[kept], getattr(short.table, name), err_msg=name
        )


def test_train_rows_are_those_before_the_cutoff_that_the_file_has(tmp_path):
    table = pa.table(panel()).filter(pa.array(np.arange(180) % 60 != 20))
    data = prepare(tmp_path, {name: table[name] for name in table.column_names})
    assert not data.train_rows[data.table.synthetic].any()
    assert not data.train_rows[data.table.times >= data.bounds.train_end].any()
    assert data.train_rows.sum() == 3 * 41, "0.7 of 59 days"


def test_a_constant_column_is_centred_named_and_bounded(tmp_path):
    columns = panel()
    jump = np.where(np.arange(180) % 60 >= 50, 1e9, 3.0)
    data = prepare(tmp_path, columns | {"visits": jump, "price": np.full(180, 2.0)})
    assert "scaling: constant in the training rows, only centred: visits, price" in data.lines
    assert data.table.observed_reals[:40, 0].tolist() == [0.0] * 40
    assert data.table.observed_reals[:, 0].max() == 10.0, "limited"
    assert not data.table.known_reals[:, 0].any()


def test_a_target_without_a_change_is_named(tmp_path):
    lines = prepare(tmp_path, panel() | {"sales": np.full(180, 5.0)}).lines
    assert "scaling: target without a change in the training rows, left in its own unit: sales" in lines
    assert not any("without a change" in line for line in prepare(tmp_path, panel()).lines)


@pytest.mark.parametrize(("name", "where"), [("sales", "target"), ("visits", "column"), ("price", "column")])
@pytest.mark.parametrize("per_series", [False, True])
def test_values_too_large_for_statistics_are_refused(tmp_path, name, where, per_series):
    columns = panel()
    columns[name] = columns[name].copy()
    columns[name][5] = -1e300
    with pytest.raises(
        DataError, match=rf"{where} '{name}': values of the training period are too large .* up to 1e\+300;"
    ):
        prepare(tmp_path, columns, scaling={"per_series": per_series, "target": {"per_series": per_series}})


def test_an_empty_column_is_named(tmp_path):
    visits = np.where(np.arange(180) % 60 >= 45, 5.0, np.nan)
    data = prepare(tmp_path, panel() | {"visits": visits})
    assert "scaling: without a value in the training rows: visits" in data.lines
    assert np.isfinite(data.table.observed_reals).all()


def test_statics_of_several_series_that_do_not_differ_are_named(tmp_path):
    data = prepare(tmp_path, panel() | {"area": np.full(180, 5.0)})
    assert "scaling: constant in the training rows, only centred: area" in data.lines
    assert not data.table.static_reals.any()


def test_per_series_scaling(tmp_path):
    data = prepare(tmp_path, panel(), scaling={"per_series": True, "target": {"anchor": "none"}})
    train = data.train_rows
    for s in range(3):
        rows = train & (data.table.series_of_row == s)
        scaled = (data.table.targets[rows, 0] - data.table.center[s, 0]) / data.table.scale[s, 0]
        assert scaled.mean() == pytest.approx(0, abs=1e-9)
        assert scaled.std() == pytest.approx(1)
        assert data.table.observed_reals[rows, 0].mean() == pytest.approx(0, abs=1e-6)
    together = prepare(tmp_path, panel(), scaling={"target": {"per_series": False}})
    assert len(np.unique(together.table.scale)) == 1


def test_bars_are_scaled_as_relative_changes(tmp_path):
    data = prepare(tmp_path, bars(1, 300), data={"features": "ohlcv"})
    scaler = data.preprocessor.target_scaler
    assert (scaler.transform, scaler.anchor) == ("log", "last")
    batch = batch_of(data, "train", 50)
    origin = data.windows["train"].origins[50]
    close = np.log(bars(1, 300)["close"])
    np.testing.assert_allclose(
        batch.labels[0, :, 0],
        (close[origin + 1 : origin + 4] - close[origin]) / scaler.scale[0][0],
        rtol=1e-5,
    )
    assert batch.inputs.observed_reals[0, -1, 0] == 0, "the last close is what is measured from"


# Missing values and gaps


def test_missing_drop_leaves_no_window_that_touches_the_row(tmp_path):
    columns = changed(panel(1, 60), visits=lambda v: np.where(np.arange(60) == 20, np.nan, v))
    data = prepare(tmp_path, columns, data=ROLES | {"missing": "drop"})
    for index in data.windows.values():
        first, last = index.origins - index.lengths + 1, index.origins + WINDOW["horizon"]
        assert not ((first <= 20) & (last >= 20)).any()
    kept = prepare(tmp_path, columns)
    assert len(kept.windows["train"]) > len(data.windows["train"])
    assert any("a row has missing inputs" in line for line in data.lines)


def test_missing_error_is_an_error(tmp_path):
    columns = changed(panel(), visits=lambda v: np.where(np.arange(180) == 20, np.nan, v))
    with pytest.raises(DataError, match=r"column 'visits'.*set data.missing to 'fill' or 'drop'"):
        prepare(tmp_path, columns, data=ROLES | {"missing": "error"})


def test_a_filled_target_is_never_a_label(tmp_path):
    columns = changed(panel(1, 60), sales=lambda v: np.where(np.arange(60) == 20, np.nan, v))
    data = prepare(tmp_path, columns, scaling=PLAIN)
    position = data.windows["train"].origins.tolist().index(18)
    batch = batch_of(data, "train", position)
    assert batch.weights[0, :, 0].tolist() == [1, 0, 1]
    assert batch.labels[0, 1, 0] == 0
    after = batch_of(data, "train", data.windows["train"].origins.tolist().index(21))
    names = data.preprocessor.variable_names()["history"]
    flag = after.inputs.observed_reals[0, :, names.index("sales_missing")]
    length = int(after.inputs.encoder_lengths[0])
    assert flag[:length].tolist() == [float(row == 20) for row in range(21 - length + 1, 22)]


def test_gaps_tolerated_filled_and_split(tmp_path):
    table = pa.table(panel(1, 60)).filter(pa.array(np.arange(60) != 25))
    columns = {name: table[name] for name in table.column_names}
    across = {}
    for gaps in ("tolerate", "fill", "split"):
        data = prepare(tmp_path, columns, data=ROLES | {"gaps": gaps})
        times, index = data.table.times, data.windows["train"]
        first, last = times[index.origins - index.lengths + 1], times[index.origins + WINDOW["horizon"]]
        across[gaps] = int(((first < days_after(25)) & (days_after(25) < last)).sum())
    # A full window has 11 rows; a row that is put in takes the place of one of them.
    assert across == {"tolerate": 10, "fill": 9, "split": 0}


def test_duplicates_are_refused_unless_told(tmp_path):
    table = pa.table(panel(2, 60))
    doubled = pa.concat_tables([table, table.slice(70, 2)])
    columns = {name: doubled[name] for name in doubled.column_names}
    with pytest.raises(DataError, match=r"series 'store 1' at 2024-01-11.*data.duplicates"):
        prepare(tmp_path, columns)
    kept = prepare(tmp_path, columns, data=ROLES | {"duplicates": "first"})
    assert_same_table(kept, prepare(tmp_path, panel(2, 60)))
    assert any("duplicates: 2 rows dropped" in line for line in kept.lines)


# What cannot be done


def test_a_cutoff_outside_the_data_names_its_range(tmp_path):
    split = {"validation_start": "2099-01-01", "test_start": "2099-06-01"}
    with pytest.raises(DataError, match=r"got 2099-01-01.*from 2024-01-01.* to 2024-02-29"):
        prepare(tmp_path, panel(), split=split)


def test_a_split_without_windows_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"split.validation: no window has its 20 labels.*window.horizon"):
        prepare(tmp_path, panel(), window={"encoder_length": 8, "horizon": 20})


def test_a_target_without_a_value_in_training_is_refused(tmp_path):
    columns = changed(panel(), sales=lambda v: np.where(np.arange(180) % 60 < 45, np.nan, v))
    with pytest.raises(DataError, match=r"target 'sales': no value in the training period"):
        prepare(tmp_path, columns)


def test_only_what_is_left_to_learn_is_said(tmp_path):
    lines = prepare(tmp_path, panel()).lines
    assert lines[0] == "rows: 180 in 1 file, 3 series, step 1D"
    assert not any("gaps" in line or "missing:" in line or "duplicates" in line for line in lines)


def test_the_table_takes_no_more_memory_for_longer_windows(tmp_path):
    columns = bars(1, 700)
    short, long = (
        prepare(tmp_path, columns, data={"features": "ohlcv"}, window={"encoder_length": n, "horizon": 5})
        for n in (30, 60)
    )
    assert short.table.nbytes == long.table.nbytes


def test_settings_reach_the_preprocessor(tmp_path):
    data = prepare(tmp_path, panel(), scaling={"clip": 3.5})
    assert data.preprocessor.clip == 3.5
    assert data.preprocessor.window == settings_of().window
    assert json.loads(data.preprocessor.model_dump_json())["data"]["target"] == ["sales"]
