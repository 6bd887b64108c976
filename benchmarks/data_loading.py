"""How many windows per second are assembled, beside how many the model trains on, and what the data takes.

    python benchmarks/data_loading.py

The workload is TFT-225: bars with 5 static, 210 observed and 10 known inputs, encoder length 60, horizon 10,
batches of 32. Loading and training take turns, so that whatever else runs on the machine slows both. Prints
the speeds, their ratio and the bytes of the table; exit code 1 where the ratio is below `--least-ratio`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

from ds_tft.training.environment import prepare_environment

PLACE = prepare_environment()  # before torch is imported, as in a training run

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
import torch  # noqa: E402
from machine import machine_lines  # noqa: E402

from ds_tft.config.batch import BatchSizes, resolve_batch  # noqa: E402
from ds_tft.config.deepspeed import engine_config, read_deepspeed_settings  # noqa: E402
from ds_tft.config.run import RunSettings  # noqa: E402
from ds_tft.config.validation import validate  # noqa: E402
from ds_tft.data.batches import Batch, BatchBuilder, Loader  # noqa: E402
from ds_tft.data.infer import infer_roles  # noqa: E402
from ds_tft.data.parquet import open_source  # noqa: E402
from ds_tft.data.prepare import TrainingData, prepare_training  # noqa: E402
from ds_tft.data.sampler import EpochPlan  # noqa: E402
from ds_tft.formatting import format_bytes, format_number  # noqa: E402
from ds_tft.memory.chunks import StreamingSettings  # noqa: E402
from ds_tft.memory.streaming import stream_variable_selection  # noqa: E402
from ds_tft.model.loss import pinball_loss  # noqa: E402
from ds_tft.model.tft import TemporalFusionTransformer  # noqa: E402
from ds_tft.model_size import derive_size  # noqa: E402
from ds_tft.training.engine import build_engine, choose_device, start_process_group  # noqa: E402

BATCH = 32
SERIES, ROWS = 4, 5000
QUANTILES = (0.1, 0.5, 0.9)
LOADED_BATCHES, TRAINED_BATCHES = 100, 2
TRAINING = "training"

Turn = Callable[[], int]
"""Does one turn of work and returns the number of windows in it."""


def main() -> int:
    """Measures and prints; returns 1 where loading is too slow."""
    parser = argparse.ArgumentParser(description="Compare loading with training.")
    parser.add_argument("--rounds", type=int, default=9, help="turns of loading and training (default: 9)")
    parser.add_argument("--hidden-size", type=int, default=64, help="of the model (default: 64)")
    parser.add_argument("--least-ratio", type=float, default=10.0, help="loading over training (default: 10)")
    options = parser.parse_args()
    start_process_group(choose_device(PLACE))
    print(*machine_lines(), sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        path = write_bars(Path(folder) / "bars.parquet")
        data, settings = prepare(path, 60, options.hidden_size)
        turns: dict[str, Turn] = {
            "loading, in the process": loading(data, 0),
            "loading, 2 workers": loading(data, 2),
            TRAINING: training(data, settings),
        }
        speeds = take_turns(turns, options.rounds)
        sizes = {length: prepare(path, length, options.hidden_size)[0].table.nbytes for length in (60, 480)}
    ratio = speeds["loading, in the process"] / speeds[TRAINING]
    _print_results(speeds, ratio, sizes, options.hidden_size)
    return 0 if ratio >= options.least_ratio else 1


def write_bars(path: Path, series: int = SERIES, rows: int = ROWS) -> str:
    """Writes minute bars of some symbols, a random walk each, and returns the path."""
    rng = np.random.default_rng(0)
    total = series * rows
    close = 100 * np.exp(np.cumsum(rng.normal(0, 1e-3, (series, rows)), axis=1)).ravel()
    open_ = close * np.exp(rng.normal(0, 3e-4, total))
    columns = {
        "symbol": np.repeat([f"S{i}" for i in range(series)], rows).tolist(),
        "time": pa.array(np.tile(np.arange(rows) * 60_000_000, series), pa.timestamp("us")),
        "open": open_,
        "high": np.maximum(open_, close) * 1.0005,
        "low": np.minimum(open_, close) * 0.9995,
        "close": close,
        "volume": rng.integers(1, 1000, total).astype(np.float64),
    }
    pq.write_table(pa.table(columns), path)
    return str(path)


def prepare(path: str, encoder_length: int, hidden_size: int) -> tuple[TrainingData, RunSettings]:
    """Prepares the bars as a training run does."""
    raw = {
        "data": {"features": "ohlcv"},
        "window": {"encoder_length": encoder_length, "horizon": 10},
        "model": {"hidden_size": hidden_size},
    }
    settings = validate(RunSettings, raw, "benchmark")
    source = open_source(path)
    return prepare_training(source, infer_roles(source, settings.data), settings), settings


def loading(data: TrainingData, workers: int) -> Turn:
    """Assembles batches of shuffled windows, as in training."""
    batches = _batches(data, workers)

    def turn() -> int:
        for _ in range(LOADED_BATCHES):
            next(batches)
        return LOADED_BATCHES * BATCH

    return turn


def training(data: TrainingData, settings: RunSettings) -> Turn:
    """Trains on batches that are there already: forward, backward and update by the default engine."""
    torch.manual_seed(0)
    model = TemporalFusionTransformer(derive_size(data.preprocessor, settings))
    stream_variable_selection(model, StreamingSettings())
    count = sum(parameter.numel() for parameter in model.parameters())
    engine_settings, _ = read_deepspeed_settings(None)
    engine = build_engine(model, engine_config(engine_settings, _sizes(), 10_000, count))
    source = _batches(data, 0)
    batches = [next(source) for _ in range(TRAINED_BATCHES)]

    def turn() -> int:
        for batch in batches:
            prediction = engine(batch.inputs)  # (B, K, O, Q)
            total, weight = pinball_loss(prediction, batch.labels, batch.weights, QUANTILES)
            engine.backward(total / weight)
            engine.step()
        return TRAINED_BATCHES * BATCH

    return turn


def take_turns(turns: dict[str, Turn], rounds: int) -> dict[str, float]:
    """Returns the median windows per second of each kind of work; a round to warm up does not count."""
    found: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds + 1):
        for name, turn in turns.items():
            start = perf_counter()
            windows = turn()
            if number:
                found[name].append(windows / (perf_counter() - start))
    return {name: median(speeds) for name, speeds in found.items()}


def _sizes() -> BatchSizes:
    """Batches of one process."""
    return resolve_batch(read_deepspeed_settings(None)[0], 1, BATCH)


def _batches(data: TrainingData, workers: int) -> Iterator[Batch]:
    """Batches without end, a shuffled epoch after the other."""
    builder = BatchBuilder(data.table, data.preprocessor.window, data.preprocessor.target_scaler)
    windows = data.windows["train"]
    plan = EpochPlan(num_windows=len(windows), global_batch=BATCH)
    epochs = [plan.micro_batches(epoch, _sizes(), 0) for epoch in range(20)]
    return Loader(builder, windows, workers=workers).batches(np.concatenate(epochs))


def _print_results(speeds: dict[str, float], ratio: float, sizes: dict[int, int], hidden_size: int) -> None:
    """The table, the ratio and the bytes."""
    print(f"TFT-225: {SERIES * ROWS:,} bars, encoder 60, horizon 10, batch {BATCH}, hidden {hidden_size}\n")
    print("| work                    | windows/s |")
    print("|-------------------------|-----------|")
    for name, speed in speeds.items():
        print(f"| {name:23} | {format_number(speed):>9} |")
    print(f"\nloading in the process is {ratio:.0f} times as fast as training")
    for length, size in sizes.items():
        print(f"table with encoder length {length}: {format_bytes(size)} ({size:,} bytes)")


if __name__ == "__main__":
    sys.exit(main())
