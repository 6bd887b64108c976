"""Tiny parquet files, and what becomes of them: for tests of the way from a file to a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ds_tft.config.run import RunSettings
from ds_tft.config.validation import validate
from ds_tft.data.infer import infer_roles
from ds_tft.data.parquet import open_source
from ds_tft.data.prepare import TrainingData, prepare_training

DAY = 86_400_000_000
FIRST_DAY = np.datetime64("2024-01-01", "us").astype(np.int64)
ROLES = {
    "time": "day",
    "series": ["store"],
    "target": ["sales"],
    "static_reals": ["area"],
    "static_categories": ["city"],
    "known_reals": ["price"],
    "known_categories": ["holiday"],
    "observed_reals": ["visits"],
    "observed_categories": ["weather"],
    "other_columns": "ignore",
}
WINDOW = {"encoder_length": 8, "horizon": 3}


def write(path: Path, columns: dict[str, Any]) -> str:
    """Writes columns to a parquet file and returns its path as text."""
    pq.write_table(pa.table(columns), path)
    return str(path)


def days(count: int, first: int = 0) -> pa.Array:
    """Timestamps of `count` days without a zone."""
    return pa.array(FIRST_DAY + (first + np.arange(count)) * DAY, pa.timestamp("us"))


def panel(num_series: int = 3, rows: int = 60, seed: int = 0) -> dict[str, Any]:
    """Daily sales of some stores, a column for every role; sales follow the price and yesterday's visits."""
    rng = np.random.default_rng(seed)
    total = num_series * rows
    store = np.repeat(np.arange(num_series), rows)
    price = rng.uniform(1, 3, total)
    visits = rng.uniform(0, 10, total)
    sales = 50.0 * (store + 1) - 20 * price + 0.5 * np.roll(visits, 1) + rng.normal(0, 0.1, total)
    return {
        "store": np.array([f"store {s}" for s in range(num_series)])[store].tolist(),
        "day": pa.chunked_array([days(rows)] * num_series).combine_chunks(),
        "sales": sales,
        "area": 100.0 * (store + 1),
        "city": np.where(store % 2 == 0, "Ulm", "Bonn").tolist(),
        "price": price,
        "holiday": np.where(np.arange(total) % rows % 7 == 6, "yes", "no").tolist(),
        "visits": visits,
        "weather": np.array(["sun", "rain", "snow"])[rng.integers(0, 3, total)].tolist(),
        "weight": rng.uniform(0.5, 1.5, total),
    }


def bars(num_series: int = 1, rows: int = 200, seed: int = 0) -> dict[str, Any]:
    """Hourly bars of some symbols: a random walk with a range around it."""
    rng = np.random.default_rng(seed)
    total = num_series * rows
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, (num_series, rows)), axis=1)).ravel()
    open_ = close * np.exp(rng.normal(0, 0.003, total))
    times = FIRST_DAY + np.tile(np.arange(rows), num_series) * (DAY // 24)
    return {
        "symbol": np.repeat([f"S{s}" for s in range(num_series)], rows).tolist(),
        "time": pa.array(times, pa.timestamp("us")),
        "open": open_,
        "high": np.maximum(open_, close) * 1.002,
        "low": np.minimum(open_, close) * 0.998,
        "close": close,
        "volume": rng.integers(100, 1000, total).astype(float),
    }


def settings_of(**sections: dict[str, Any]) -> RunSettings:
    """Run settings with a short window, from sections as a JSON has them."""
    return validate(RunSettings, {"window": WINDOW} | sections, "test")


def prepare_file(path: str, **sections: dict[str, Any]) -> TrainingData:
    """A file as training sees it."""
    source, settings = open_source(path), settings_of(**sections)
    return prepare_training(source, infer_roles(source, settings.data), settings)


def prepare(folder: Path, columns: dict[str, Any], **sections: dict[str, Any]) -> TrainingData:
    """Columns as training sees them, by way of a file; `data` is `ROLES` unless given."""
    return prepare_file(write(folder / "data.parquet", columns), **({"data": ROLES} | sections))
