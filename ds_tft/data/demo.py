"""Writes a small real data set: daily bars of five stocks, from the PyPI package bokeh_sampledata.

`python -m ds_tft.data.demo --output demo/stocks.parquet`
"""

from __future__ import annotations

import argparse
import gzip
import io
import sys
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ds_tft.errors import DataError, UserError

SOURCE = "_data/stocks.csv.gz"
LICENCE_NOTE = "Quandl WIKI prices, declared public domain, by way of bokeh_sampledata"
"""As the docstring of `bokeh_sampledata.stocks` has it."""

PRICES = ("Open", "High", "Low", "Close")


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoReport:
    """What was written, and what was left out."""

    rows: int
    series: int
    first_day: str
    last_day: str
    dropped_rows: int
    path: Path

    def __str__(self) -> str:
        dropped = (
            f", {self.dropped_rows} rows with bad prices or volume left out" if self.dropped_rows else ""
        )
        span = f"{self.first_day} to {self.last_day}"
        return (
            f"{self.path}: {self.rows} daily bars of {self.series} stocks, {span}{dropped} ({LICENCE_NOTE})"
        )


def write_demo(output: Path) -> DemoReport:
    """Writes the bars to a parquet file, whose folder is made where it does not exist.

    Raises:
        DataError: The installed bokeh_sampledata has no such file, or the output cannot be written.
    """
    source = read_source(files("bokeh_sampledata"))
    table = adjusted_bars(source)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, output, compression="zstd")
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"--output: cannot write, got {output} ({reason}); name another file") from error
    return DemoReport(
        rows=table.num_rows,
        series=len(pc.unique(table["ticker"])),
        first_day=str(pc.min(table["date"]).as_py()),
        last_day=str(pc.max(table["date"]).as_py()),
        dropped_rows=source.num_rows - table.num_rows,
        path=output,
    )


def read_source(package: Traversable) -> pa.Table:
    """Reads the stocks file of bokeh_sampledata, as it is.

    Args:
        package: Folder of the package.

    Raises:
        DataError: The file is not there: releases before 2026.1 hold other prices in other files.
    """
    path = package.joinpath(SOURCE)
    if not path.is_file():
        raise DataError(
            f"bokeh_sampledata: no file {SOURCE}, got {package}; pip install 'bokeh_sampledata>=2026.1'"
        )
    return pa.csv.read_csv(io.BytesIO(gzip.decompress(path.read_bytes())))


def adjusted_bars(source: pa.Table) -> pa.Table:
    """Adjusts bars for splits and dividends, so that a split does not look like a crash.

    Prices are multiplied by the adjusted close over the close of their day. Volumes are divided by it, to
    whole shares, so that the traded value stays what it was.

    Args:
        source: Columns Ticker, Date, Open, High, Low, Close, Volume and Adj Close.

    Returns:
        Columns ticker (dictionary), date, open, high, low, close and volume, by ticker and date. Rows with a
        price that is missing, not above 0 or outside the bar's range, or with a volume that is missing or
        negative, are left out.
    """
    source = source.sort_by([("Ticker", "ascending"), ("Date", "ascending")])
    columns = {name: _floats(source, name) for name in (*PRICES, "Volume", "Adj Close")}
    good = _good(columns)
    columns = {name: values[good] for name, values in columns.items()}
    factor = columns["Adj Close"] / columns["Close"]
    kept = source.filter(pa.array(good))
    bars = {
        "ticker": kept["Ticker"].dictionary_encode().combine_chunks(),
        "date": kept["Date"].combine_chunks(),
    }
    bars |= {name.lower(): pa.array(columns[name] * factor) for name in PRICES}
    bars["volume"] = pa.array(np.rint(columns["Volume"] / factor).astype(np.int64))
    return pa.table(bars)


def _floats(source: pa.Table, name: str) -> NDArray[np.float64]:
    """A column as numbers, NaN where there is none."""
    return source[name].cast(pa.float64()).to_numpy()


def _good(columns: dict[str, NDArray[np.float64]]) -> NDArray[np.bool_]:
    """True where the numbers of a row can be those of a bar."""
    open_, high, low, close = (columns[name] for name in PRICES)
    positive = (low > 0) & (columns["Adj Close"] > 0) & (columns["Volume"] >= 0)
    ordered = (low <= np.minimum(open_, close)) & (np.maximum(open_, close) <= high)
    return positive & ordered & np.isfinite(sum(columns.values()))


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m ds_tft.data.demo", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="parquet file to write")
    try:
        print(write_demo(parser.parse_args(arguments).output))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
