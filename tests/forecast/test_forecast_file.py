from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from ds_tft.errors import ConfigError
from ds_tft.forecast.forecast_file import ROWS_PER_GROUP, ForecastFile

SCHEMA = pa.schema([("step", pa.int64()), ("p50", pa.float64())])


def batch(rows: int, first: int = 0) -> pa.RecordBatch:
    numbers = pa.array(np.arange(first, first + rows))
    # The cast gives memory that Arrow counts.
    return pa.RecordBatch.from_arrays([numbers, numbers.cast(pa.float64())], schema=SCHEMA)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_batches_come_out_in_order(tmp_path, suffix):
    path = tmp_path / f"f{suffix}"
    with ForecastFile(path, SCHEMA) as file:
        for first in range(0, 100, 10):
            file.write(batch(10, first))
        assert not path.exists()
    assert file.num_rows == 100
    table = pq.read_table(path) if suffix == ".parquet" else pacsv.read_csv(path)
    assert table["step"].to_pylist() == list(range(100))
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_memory_does_not_grow_with_the_number_of_batches(tmp_path):
    rows, batches, most = ROWS_PER_GROUP // 8, 400, 0
    before = pa.total_allocated_bytes()
    with ForecastFile(tmp_path / "f.parquet", SCHEMA) as file:
        for number in range(batches):
            file.write(batch(rows, number * rows))
            most = max(most, pa.total_allocated_bytes() - before)
    assert most < batches * rows * 8 / 2, "half of what all rows would take"
    found = pq.ParquetFile(tmp_path / "f.parquet").metadata
    assert (found.num_rows, found.num_row_groups) == (batches * rows, batches // 8)


def test_an_error_leaves_no_half_file_and_keeps_the_older_one(tmp_path):
    path = tmp_path / "f.parquet"
    path.write_text("older")

    def fail() -> None:
        with ForecastFile(path, SCHEMA) as file:
            file.write(batch(3))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [file.name for file in tmp_path.iterdir()] == ["f.parquet"]
    assert path.read_text() == "older"


@pytest.mark.parametrize("name", ["f.parquet", "f.csv"])
def test_what_the_system_refuses_is_one_line(tmp_path, name):
    with pytest.raises(ConfigError, match=f"--output: cannot write '.*{name}', got .*; give another path"):
        ForecastFile(tmp_path / "missing" / name, SCHEMA)


def test_a_full_disk_is_one_line(tmp_path):
    def fill() -> None:
        with ForecastFile(tmp_path / "f.csv", SCHEMA) as file:
            file._writer = _Full()
            file.write(batch(ROWS_PER_GROUP))

    with pytest.raises(ConfigError, match="cannot write '.*f.csv', got No space left on device"):
        fill()
    assert list(tmp_path.iterdir()) == []


class _Full:
    """A writer on a full disk."""

    def write_table(self, table: pa.Table) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        raise OSError(28, "No space left on device")
