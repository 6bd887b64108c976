from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_model import HOUR, SHOP, Made, make_model, replaced, settings_of, shop_table
from rich.console import Console

from ds_tft.data.split import SplitBounds
from ds_tft.errors import ConfigError, DataError
from ds_tft.forecast.baselines import make_baselines
from ds_tft.forecast.evaluate import Evaluation, evaluate, write_evaluation
from ds_tft.forecast.evaluate_file import EvaluateArguments, evaluate_file
from ds_tft.forecast.scaled_errors import seasonal_scale
from ds_tft.forecast.time_range import TimeRange

LEVELS = (0.1, 0.5, 0.9)


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Made:
    return make_model(tmp_path_factory.mktemp("shop"), shop_table(), settings_of(SHOP))


def run(shop: Made, file: pa.Table | Path | None = None, **arguments) -> tuple[Evaluation, str]:
    """Evaluation and the words about it, blanks squeezed."""
    if isinstance(file, pa.Table):
        path = shop.folder.parent / "given.parquet"
        pq.write_table(file, path)
        file = path
    stream = io.StringIO()
    evaluation = evaluate_file(
        EvaluateArguments(model=str(shop.folder), parquet=str(file or shop.file), **arguments),
        Console(file=stream, width=100),
    )
    return evaluation, " ".join(stream.getvalue().split())


def at(row: int) -> str:
    return str(np.datetime64("2024-01-01T00:00:00") + row * HOUR)


def in_process(shop: Made) -> Evaluation:
    """What the training run itself reports."""
    data = shop.data
    return evaluate(
        shop.model,
        shop.builder,
        data.windows["test"],
        LEVELS,
        make_baselines(data.table, data.train_rows, horizon=4, quantiles=LEVELS, season=24),
        batch_size=shop.description.batch_size,
        scale=seasonal_scale(data.table, data.preprocessor.target_scaler, data.train_rows, 24),
    )


def test_the_same_file_gives_the_same_figures_to_the_last_bit(shop, tmp_path):
    write_evaluation(tmp_path / "run.json", in_process(shop))
    _, words = run(shop, output=str(tmp_path / "new" / "again.json"))
    assert (tmp_path / "new" / "again.json").read_bytes() == (tmp_path / "run.json").read_bytes()
    assert words.endswith(f"written: {tmp_path}/new/again.json")


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_splits_are_those_of_training(shop, split):
    evaluation, words = run(shop, split=split)
    assert evaluation.windows == len(shop.data.windows[split])
    assert evaluation.period == split
    assert f"{split.capitalize()}: sales, in original units" in words


def test_a_range_takes_origins_and_their_known_labels(shop):
    evaluation, words = run(shop, origins=TimeRange(at(110)))
    assert evaluation.windows == 3 * 6
    assert evaluation.model.overall.labels == 3 * 6 * 4
    assert evaluation.period == "origins from 2024-01-05T14:00:00 to 2024-01-05T23:00:00"
    assert "Origins from 2024-01-05T14:00:00 to 2024-01-05T23:00:00: sales, in original units" in words
    assert "windows not used: 12, the segment ends within the horizon" in words


def test_rows_in_another_order_and_more_columns_change_nothing(shop):
    table = shop_table()
    order = np.random.default_rng(0).permutation(table.num_rows)
    mixed = table.select(table.column_names[::-1]).append_column("more", pa.array(range(table.num_rows)))
    assert run(shop, mixed.take(order))[0].model == run(shop)[0].model


def test_without_training_rows_the_learned_baselines_are_left_out(shop):
    table = shop_table()
    later = table.filter(pa.array(table["when"].to_numpy() >= np.datetime64(at(90))))
    evaluation, words = run(shop, later)
    assert [name for name, _ in evaluation.baselines] == ["last value", "seasonal naive"]
    assert evaluation.scaled is None
    assert "no row of the file is before 2024-01-04T12:00:00, the end of the training period" in words
    assert evaluation.windows == 45
    assert evaluation.model.overall.mae == pytest.approx(run(shop)[0].model.overall.mae, rel=1e-6)


def test_fewer_training_rows_are_said(shop):
    table = shop_table()
    later = table.filter(pa.array(table["when"].to_numpy() >= np.datetime64(at(30))))
    assert "they learn from 2024-01-02T06:00:00 to before 2024-01-04T12:00:00" in run(shop, later)[1]
    assert "they learn from" not in run(shop)[1]


def test_later_rows_belong_to_no_split(shop):
    evaluation, words = run(shop, shop_table(rows=130))
    assert evaluation.windows == 45
    assert "30 rows are later than 2024-01-05T23:00:00" in words


def test_the_report_has_tables_coverage_and_crossings(shop):
    evaluation, words = run(shop)
    errors = evaluation.model.targets[0]
    for part in (
        "| loss | P10 | P50 | P90 | mean |",
        "| q-risk | P10 | P50 | P90 | mean |",
        "| error | MAE | RMSE | MASE | SQL |",
        f"Crossings {errors.crossings:,} neighbouring levels out of order",
        "Labels 180 known, 0 unknown",
        "45 in 3 series, origins from 2024-01-05T05:00:00 to 2024-01-05T19:00:00",
        "sales: labels at or below each level: P10 ",
        "% of labels lie between P10 and P90 (80.00 % expected)",
    ):
        assert part in words


def test_bounds_without_a_period_and_a_file_without_the_period(shop, tmp_path):
    settings = settings_of(SHOP, split={"train": 0.8, "validation": 0.2})
    made = make_model(tmp_path, shop_table(), settings)
    assert isinstance(made.description.bounds, SplitBounds)
    with pytest.raises(ConfigError, match="--split: the model was trained without a test period, got 'test'"):
        run(made)
    table = replaced(shop_table(), "when", shop_table()["when"].to_numpy() + 1000 * HOUR)
    with pytest.raises(
        DataError, match="no window has its labels in the test period of the model, 2024-01-05T06"
    ):
        run(shop, table)


def test_a_file_without_labels_is_an_error(shop):
    table = shop_table()
    none = [value if row % 120 < 100 else None for row, value in enumerate(table["sales"].to_pylist())]
    table = replaced(table, "sales", pa.array(none, pa.float64()))
    with pytest.raises(DataError, match="none of the 3 windows has a label; give data with targets"):
        run(shop, table, origins=TimeRange(at(99), at(99)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "--batch-size: must be 1 or more, got 0"),
        ({"split": "test", "origins": TimeRange("2024-01-02")}, "--split: a range of origins is given too"),
        ({"output": "e.csv"}, "--output: the evaluation is JSON, got 'e.csv'; end it in .json"),
        ({"origins": TimeRange("2024-01-03", "2024-01-02")}, "--from: lies after --to"),
    ],
)
def test_arguments_that_cannot_be_carried_out(shop, arguments, message):
    with pytest.raises(ConfigError, match=message):
        run(shop, **arguments)


def test_output_that_cannot_be_written(shop, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--output: cannot make the folder"):
        run(shop, output=str(tmp_path / "file" / "e.json"))
