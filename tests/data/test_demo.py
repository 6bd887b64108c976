from __future__ import annotations

from datetime import date
from importlib.resources import files
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ds_tft.data.demo import adjusted_bars, main, read_source, write_demo
from ds_tft.errors import DataError


def make_source(**changes: list[object]) -> pa.Table:
    """Two days of B with a split of 2 in between and one day of A, out of order."""
    columns: dict[str, list[object]] = {
        "Ticker": ["B", "B", "A"],
        "Date": [date(2020, 1, 3), date(2020, 1, 2), date(2020, 1, 2)],
        "Open": [50.0, 98.0, 10.0],
        "High": [52.0, 104.0, 11.0],
        "Low": [49.0, 96.0, 9.0],
        "Close": [51.0, 100.0, 10.5],
        "Volume": [2000, 1000, 7],
        "Adj Close": [51.0, 50.0, 10.5],
    }
    return pa.table(columns | changes)


def test_prices_are_adjusted_and_rows_sorted() -> None:
    bars = adjusted_bars(make_source()).to_pydict()
    assert bars["ticker"] == ["A", "B", "B"]
    assert bars["date"] == [date(2020, 1, 2), date(2020, 1, 2), date(2020, 1, 3)]
    assert bars["open"] == [10, 49, 50]
    assert bars["high"] == [11, 52, 52]
    assert bars["low"] == [9, 48, 49]
    assert bars["close"] == [10.5, 50, 51]
    assert bars["volume"] == [7, 2000, 2000]


@pytest.mark.parametrize(
    "changes",
    [
        {"Low": [0.0, 96.0, 9.0]},
        {"High": [50.5, 104.0, 11.0]},
        {"Close": [None, 100.0, 10.5]},
        {"Adj Close": [float("nan"), 50.0, 10.5]},
        {"Volume": [-1, 1000, 7]},
    ],
)
def test_bad_rows_are_left_out(changes: dict[str, list[object]]) -> None:
    assert adjusted_bars(make_source(**changes)).equals(adjusted_bars(make_source().slice(1)))


def test_file_holds_five_sorted_series_without_splits(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "stocks.parquet"
    report = write_demo(path)
    table = pq.read_table(path)
    assert table.schema.names == ["ticker", "date", "open", "high", "low", "close", "volume"]
    assert pa.types.is_dictionary(table.schema.field("ticker").type)
    assert table.schema.field("date").type == pa.date32()
    assert (table.num_rows, report.rows, report.series, report.dropped_rows) == (12154, 12154, 5, 0)
    order = list(zip(table["ticker"].to_pylist(), table["date"].to_pylist(), strict=True))
    assert order == sorted(set(order))
    msft = table.filter(pc.equal(table["ticker"], "MSFT"))
    assert np.abs(np.diff(np.log(msft["close"].to_numpy()))).max() < 0.2  # a split of 2 would be 0.69


def test_bytes_are_the_same_each_time(tmp_path: Path) -> None:
    write_demo(tmp_path / "a.parquet")
    write_demo(tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_command_prints_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--output", str(tmp_path / "stocks.parquet")]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    for part in (str(tmp_path), "12154 daily bars", "5 stocks", "2000-03-01 to 2013-03-01", "public domain"):
        assert part in out
    assert "left out" not in out


def test_rows_left_out_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds_tft.data.demo.read_source", lambda _: make_source(Low=[0.0, 96.0, 9.0]))
    report = write_demo(tmp_path / "stocks.parquet")
    assert report.dropped_rows == 1
    assert "1 rows with bad prices or volume left out" in str(report)


def test_output_that_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for output in (tmp_path, tmp_path / "file" / "stocks.parquet"):
        with pytest.raises(DataError, match=r"--output: cannot write, got .*; name another file"):
            write_demo(output)
    assert main(["--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("--output: cannot write")


def test_other_releases_of_the_source_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file _data/stocks.csv.gz, .*'bokeh_sampledata>=2026.1'"):
        read_source(tmp_path)


def test_source_is_read_as_it_is() -> None:
    source = read_source(files("bokeh_sampledata"))
    assert source.slice(0, 1).to_pylist()[0]["Volume"] == 9616100
