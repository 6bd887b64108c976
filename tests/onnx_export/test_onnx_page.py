"""What docs/onnx.md says about metadata, inputs and units, tried on a file that the command wrote."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnxruntime
from made_model import Made, shop_table, with_future
from onnx_cases import add_int8_export, make_shop
from rich.console import Console

from ds_tft.data.forecast_data import prepare_forecast
from ds_tft.data.parquet import open_source
from ds_tft.data.preprocessor import Preprocessor
from ds_tft.data.windows import latest_windows
from ds_tft.forecast.predict import PredictArguments, predict
from ds_tft.onnx_export.command import ExportOnnxArguments, export_onnx
from ds_tft.onnx_export.metadata import variable_names

PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"
HOLIDAYS = ["fair", None, "unheard of", "fair"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Made:
    return make_shop(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def folder(made, tmp_path_factory) -> Path:
    """Holds the file of the model and data with a horizon, under the names on the page."""
    folder = tmp_path_factory.mktemp("page")
    arguments = ExportOnnxArguments(model=str(made.folder), output=str(folder / "bars.onnx"))
    export_onnx(arguments, Console(file=io.StringIO()))
    pq.write_table(with_future(shop_table(), 4, holiday=HOLIDAYS), folder / "bars.parquet")
    return folder


def metadata_of(path: Path) -> dict[str, str]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.get_modelmeta().custom_metadata_map


def predicted(model: Path, folder: Path) -> np.ndarray:
    """Forecasts of `launch/predict.py`, (windows, steps, 1, levels)."""
    output = folder / "predicted.parquet"
    given = PredictArguments(model=str(model), parquet=str(folder / "bars.parquet"), output=str(output))
    predict(given, Console(file=io.StringIO()))
    rows = pq.read_table(output)
    levels = [rows[name].to_numpy() for name in ("p10", "p50", "p90")]
    return np.stack(levels, axis=-1).reshape(3, 4, 1, 3)


def run_snippet() -> np.ndarray:
    """Runs the code on the page in the current folder; returns its `quantiles`."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}
    exec(code, names)
    return names["quantiles"]


def test_the_code_on_the_page_forecasts_what_predict_does(made, folder, monkeypatch):
    monkeypatch.chdir(folder)
    quantiles = run_snippet()
    expected = predicted(made.folder, folder)
    assert quantiles.shape == expected.shape
    np.testing.assert_allclose(quantiles, expected, rtol=1e-5)
    assert expected.std() > 10, "three shops whose sales differ"


def test_the_code_on_the_page_runs_an_int8_file(folder, tmp_path, monkeypatch):
    made = make_shop(tmp_path / "made")
    export = add_int8_export(made)
    arguments = ExportOnnxArguments(model=str(export), output=str(tmp_path / "bars.onnx"))
    export_onnx(arguments, Console(file=io.StringIO()))
    (tmp_path / "bars.parquet").write_bytes((folder / "bars.parquet").read_bytes())
    monkeypatch.chdir(tmp_path)
    np.testing.assert_allclose(run_snippet(), predicted(export, tmp_path), rtol=1e-5)
    assert metadata_of(tmp_path / "bars.onnx")["precision"] == "int8"


def test_metadata(made, folder):
    texts = metadata_of(folder / "bars.onnx")
    named = set(re.findall(r"`(\w+)`", section("### Metadata").split("|---|---|", 1)[1].split("\n\n")[0]))
    assert set(texts) - named == set(), "the page names every key"
    assert texts["precision"] == "fp32"
    assert texts["step"] == "7"
    assert "preprocessor" in texts["units"]
    assert json.loads(texts["targets"]) == ["sales"]
    assert json.loads(texts["quantiles"]) == [0.1, 0.5, 0.9]
    assert json.loads(texts["static_category_counts"]) == [4]  # A, B, C and unseen
    assert json.loads(texts["known_category_counts"]) == [3]  # fair, null and unseen
    assert "observed_categories" not in texts
    assert "observed_category_counts" not in texts
    assert Preprocessor.model_validate_json(texts["preprocessor"]) == made.description.preprocessor
    inputs = onnxruntime.InferenceSession(str(folder / "bars.onnx")).get_inputs()
    for each in inputs:
        if each.name != "encoder_lengths":
            assert len(json.loads(texts[each.name])) == each.shape[-1]
    assert {name for name in variable_names(made.description.preprocessor) if name in texts} == {
        each.name for each in inputs
    } - {"encoder_lengths"}


def section(heading: str) -> str:
    """The part of the page below a heading."""
    text = PAGE.read_text().split(f"\n{heading}\n", 1)[1]
    return re.split(r"^#+ ", text, maxsplit=1, flags=re.MULTILINE)[0]


def test_the_inputs_are_as_the_page_says(folder):
    """Fills the inputs of shop B by hand, from the texts of the file and its parquet data alone."""
    texts = metadata_of(folder / "bars.onnx")
    about, length, horizon = json.loads(texts["preprocessor"]), 12, 4
    rows = [row for row in pq.read_table(folder / "bars.parquet").to_pylist() if row["shop"] == "B"]
    rows = rows[-length - horizon :]
    past, number = rows[:length], about["series_keys"].index(["B"])

    def scaled(scaler: str, name: str, values: list[float]) -> np.ndarray:
        place = about[scaler]["names"].index(name)
        row = number if len(about[scaler]["center"]) > 1 else 0
        center, scale = (about[scaler][key][row][place] for key in ("center", "scale"))
        return np.clip((np.array(values) - center) / scale, -about["clip"], about["clip"])

    def code(name: str, value: str | None) -> int:
        known = about["categories"][name]
        if value is None:
            return len(known["values"]) + 1 if known["has_null"] else 0
        return 1 + known["values"].index(value) if value in known["values"] else 0

    target = about["target_scaler"]
    transform = {"none": np.array, "log": np.log, "log1p": np.log1p}[target["transform"]]
    sales = transform([row["sales"] for row in past])
    anchor = {"none": target["center"][number][0], "last": sales[-1], "mean": sales.mean()}[target["anchor"]]
    expected = {
        "static_reals": {"size": scaled("static_scaler", "size", [rows[0]["size"]])},
        "static_categories": {"shop": [code("shop", "B")]},
        "observed_reals": {
            "sales": (sales - anchor) / target["scale"][number][0],
            "weather": scaled("observed_scaler", "weather", [row["weather"] for row in past]),
        },
        "known_reals": {
            "relative_time": [*((np.arange(length) - (length - 1)) / length), *(np.arange(1, 5) / length)],
            "promo": scaled("known_scaler", "promo", [row["promo"] for row in rows]),
        },
        "known_categories": {"holiday": [code("holiday", row["holiday"]) for row in rows]},
    }
    inputs = inputs_of(folder, "B")
    compared = 0
    for name, columns in expected.items():
        names = json.loads(texts[name])
        for column, values in columns.items():
            found = np.atleast_2d(inputs[name])[:, names.index(column)]
            np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-6, err_msg=column)
            compared += 1
        others = set(names) - set(columns)
        assert all(other.startswith("hour_") for other in others), "the calendar, as it is"
    assert compared == 7


def inputs_of(folder: Path, shop: str) -> dict[str, np.ndarray]:
    """The inputs of the last window of a shop, as the package builds them."""
    from ds_tft.data.batches import BatchBuilder

    preprocessor = Preprocessor.model_validate_json(metadata_of(folder / "bars.onnx")["preprocessor"])
    window = preprocessor.window
    table = prepare_forecast(open_source(str(folder / "bars.parquet")), preprocessor, window.horizon).table
    windows, _ = latest_windows(table, window)
    (place,) = (
        place
        for place, origin in enumerate(windows.origins)
        if table.series_keys[table.series_of_row[origin]] == (shop,)
    )
    inputs = BatchBuilder(table, window, preprocessor.target_scaler).build(windows, np.array([place])).inputs
    return {name: getattr(inputs, name)[0].numpy() for name in inputs._fields}
