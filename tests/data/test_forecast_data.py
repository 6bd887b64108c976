from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ds_tft.config.run import RunSettings
from ds_tft.data.forecast_data import ForecastData, prepare_forecast
from ds_tft.data.infer import infer_roles
from ds_tft.data.parquet import open_source
from ds_tft.data.prepare import TrainingData, prepare_training
from ds_tft.data.preprocessor import Preprocessor
from ds_tft.data.table import Table
from ds_tft.errors import DataError

SETTINGS = """{
  "data": {"time": "t", "series": "s", "target": "y", "known_reals": "price", "known_categories": "day",
           "observed_reals": "rain", "weight": "w"},
  "window": {"encoder_length": 6, "horizon": 3},
  "scaling": {"target": {"transform": "log", "anchor": "last"}}
}"""


def rows(num_rows: int = 60, future: int = 0) -> pa.Table:
    """Two series with gaps, missing values and a category that is mostly null; then rows without a target."""
    rng = np.random.default_rng(0)
    parts = []
    for name in ("A", "B"):
        t = np.arange(num_rows + future)
        y: list[float | None] = [*np.exp(rng.normal(size=60))[:num_rows], *[None] * future]
        y[7] = None
        part = pa.table(
            {
                "t": t,
                "s": [name] * len(t),
                "y": pa.array(y, pa.float64()),
                "price": rng.normal(size=80)[: len(t)],
                "day": ["sale" if row % 5 == 0 else None for row in t],
                "rain": [None if row % 11 == 0 else float(row) for row in t],
                "w": rng.random(80)[: len(t)],
            }
        )
        parts.append(part.filter(pa.array(t != 20)))
    return pa.concat_tables(parts)


@pytest.fixture
def trained(tmp_path) -> TrainingData:
    settings = RunSettings.model_validate_json(SETTINGS)
    source = open_source(write(tmp_path / "train.parquet", rows()))
    return prepare_training(source, infer_roles(source, settings.data), settings)


def write(path, table: pa.Table) -> str:
    pq.write_table(table, path)
    return str(path)


def forecast_data(tmp_path, trained: TrainingData, table: pa.Table, future_steps: int = 3) -> ForecastData:
    # By way of JSON, as an export stores it.
    preprocessor = Preprocessor.model_validate_json(trained.preprocessor.model_dump_json())
    return prepare_forecast(open_source(write(tmp_path / "new.parquet", table)), preprocessor, future_steps)


def assert_same(first: Table, second: Table) -> None:
    for field in dataclasses.fields(Table):
        one, other = getattr(first, field.name), getattr(second, field.name)
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other, err_msg=field.name)
        else:
            assert one == other, field.name


def test_the_file_of_the_training_gives_its_table_to_the_last_bit(tmp_path, trained):
    assert_same(forecast_data(tmp_path, trained, rows(), future_steps=0).table, trained.table)


def test_rows_are_added_behind_each_series_only_where_the_file_lacks_them(tmp_path, trained):
    times = []
    for future in (0, 2, 3, 5):
        table = forecast_data(tmp_path, trained, rows(future=future)).table
        times.append([table.times[table.series_of_row == series].max() for series in (0, 1)])
        assert table.synthetic[table.times > 59].all()
    assert times == [[62, 62], [62, 62], [62, 62], [64, 64]]


def test_unknown_inputs_are_those_that_no_row_of_the_file_gives(tmp_path, trained):
    data = forecast_data(tmp_path, trained, rows(future=1))
    unknown = data.unknown
    assert unknown.columns == ("price", "day")
    behind = data.table.times > 60
    np.testing.assert_array_equal(unknown.first, np.where(behind, 0, -1))
    origins = np.flatnonzero(np.isin(data.table.times, [56, 57, 58]) & (data.table.series_of_row == 0))
    assert unknown.ahead(origins, 3).tolist() == [False, False, True]


def test_a_missing_number_is_unknown_a_null_category_is_not(tmp_path, trained):
    table = rows(future=3)
    price = table["price"].to_pylist()
    price = [None if t == 61 else value for t, value in zip(table["t"].to_pylist(), price, strict=True)]
    table = table.set_column(3, "price", pa.array(price, pa.float64()))
    data = forecast_data(tmp_path, trained, table)
    assert data.table.times[data.unknown.first >= 0].tolist() == [61, 61]


def test_known_categories_of_rows_without_a_target_are_kept(tmp_path, trained):
    data = forecast_data(tmp_path, trained, rows(future=3))
    codes = trained.preprocessor.categories["day"]
    sale, null = 1, codes.cardinality - 1
    assert codes.values == ("sale",)
    assert codes.has_null
    ahead = data.table.times > 59
    assert data.table.known_categories[ahead, 0].tolist() == [sale, null, null] * 2


def test_a_missing_value_of_the_past_is_filled_as_in_training(tmp_path, trained):
    table = rows(future=3)
    data = forecast_data(tmp_path, trained, table)
    same = data.table.times <= 59
    np.testing.assert_array_equal(data.table.observed_reals[same], trained.table.observed_reals)
    np.testing.assert_array_equal(data.table.known_reals[same], trained.table.known_reals)


def test_place_names_series_and_time(tmp_path, trained):
    data = forecast_data(tmp_path, trained, rows())
    assert data.place(3) == "series 'A' at 3"
    assert (data.num_rows, data.zone) == (118, None)


def test_a_column_that_is_not_there(tmp_path, trained):
    with pytest.raises(
        DataError,
        match="no column 'price', which the model was trained on as known_reals; did you mean 'prices'",
    ):
        forecast_data(tmp_path, trained, rows().rename_columns(["t", "s", "y", "prices", "day", "rain", "w"]))


def test_another_kind_of_time(tmp_path, trained):
    table = rows()
    table = table.set_column(0, "t", table["t"].cast(pa.timestamp("s")))
    with pytest.raises(
        DataError, match="time column 't' holds times without a zone, the model was trained on integers"
    ):
        forecast_data(tmp_path, trained, table)


def test_unseen_series_are_named(tmp_path, trained):
    table = rows()
    other = table.set_column(1, "s", pa.array([f"N{row % 7}" for row in range(table.num_rows)]))
    line = next(line for line in forecast_data(tmp_path, trained, other).lines if line.startswith("series:"))
    assert line == (
        "series: 7 of 7 were not in training; they take the statistics of all of its series: "
        "N0, N1, N2, N3, N4 and 2 more"
    )
