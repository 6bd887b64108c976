"""launch/export_onnx.py: what it writes and prints, and what it refuses."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from commands import REPOSITORY, environment, run

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

for _folder in ("onnx_export", "quantization", "forecast"):
    sys.path.insert(0, str(REPOSITORY / "tests" / _folder))

import onnxruntime  # noqa: E402
from made_model import Made, shop_table  # noqa: E402
from onnx_cases import add_int8_export, make_shop  # noqa: E402

from ds_tft.onnx_export import model_file, recurrent  # noqa: E402
from launch import export_onnx as script  # noqa: E402

SCRIPT = str(REPOSITORY / "launch" / "export_onnx.py")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Models of a few numbers: threads would mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Made:
    return make_shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def int8_folder(tmp_path_factory) -> Path:
    return add_int8_export(make_shop(tmp_path_factory.mktemp("int8")))


def refusal(capsys, *arguments: object) -> str:
    """Runs a command that is refused; returns its one line."""
    assert script.main([str(argument) for argument in arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    return shown.err.removeprefix("error: ").rstrip("\n")


def test_floating_point_on_a_file(shop, tmp_path, capsys):
    output = tmp_path / "new" / "model.onnx"
    given = ["--model", str(shop.folder), "--parquet-file", str(shop.file), "--output", str(output)]
    assert script.main(given) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in (
        f"Model {shop.folder}: step 7, fp32",
        "Format ONNX opset 17",
        "Inputs static_reals (windows, 1) static_categories (windows, 1) observed_reals (windows, 12, 2)",
        "encoder_lengths (windows,)",
        "Output quantiles (windows, 4, 1, 3): P10, P50, P90 of sales, in scaled units",
        "Weights 0 B in 8 bits,",
        f"Compared 64 windows of {shop.file}, 28 of them with histories cut short, in batches of 32 and of 1",
        f"With ONNX Runtime {onnxruntime.__version__} on the CPU",
        "of the spread of the forecasts Allowed at most 1e-05 Notes rows: 360 in 1 file, 3 series",
        f"to {output}",
    ):
        assert words in shown
    assert list(output.parent.iterdir()) == [output]
    inputs = shop.builder.build(shop.data.windows["test"], np.arange(5)).inputs
    session = onnxruntime.InferenceSession(str(output), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    (quantiles,) = session.run(None, {name: getattr(inputs, name).numpy() for name in names})
    own = shop.model(inputs).detach().numpy()
    np.testing.assert_allclose(quantiles, own, atol=1e-5 * own.std())


def test_int8_on_synthetic_windows(int8_folder, tmp_path, capsys):
    output = tmp_path / "model.ONNX"
    assert script.main(["--model", str(int8_folder), "--output", str(output)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in (
        f"Model {int8_folder}: step 7, INT8, not fine-tuned",
        "Compared 64 synthetic windows (no --parquet-file): normal reals, random categories and lengths, in",
        "of the forecasts off by more than 1e-05, at most",
        "off by more than 1e-05, none by more than 0.1; ",
        "are when the model itself runs in batches of another size",
    ):
        assert words in shown
    assert "Weights 0 B in 8 bits" not in shown
    session = onnxruntime.InferenceSession(str(output), providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map["precision"] == "int8"
    assert session.get_modelmeta().producer_name == "ds_tft"


def test_a_copied_export_in_a_process_of_its_own(shop, tmp_path):
    shutil.copytree(shop.folder / "export", tmp_path / "export")
    output = tmp_path / "model.onnx"
    code = (
        f"import sys, runpy; sys.path.insert(0, {str(REPOSITORY)!r}); sys.modules['deepspeed'] = None; "
        f"sys.argv = {['export_onnx.py', '--model', str(tmp_path / 'export'), '--output', str(output)]!r}; "
        f"runpy.run_path({SCRIPT!r}, run_name='__main__')"
    )
    done = run(sys.executable, "-c", code, env=environment())
    assert done.code == 0, done.errors
    assert done.errors == ""
    assert f"to {output}" in done.output
    assert output.exists()


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_package_that_is_not_there(package, shop, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    line = refusal(capsys, "--model", shop.folder, "--output", tmp_path / "model.onnx")
    assert line == (
        f"{package}: needed to write and check ONNX, got 'import of {package} halted; None in sys.modules'; "
        "pip install 'ds_tft[onnx]'"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["model.pt", "model", "onnx"])
def test_an_output_that_is_not_named_onnx(name, shop, tmp_path, capsys):
    line = refusal(capsys, "--model", shop.folder, "--output", tmp_path / name)
    assert line == f"--output: the model is ONNX, got '{name}'; end it in .onnx"


def test_an_output_that_is_a_folder(shop, tmp_path, capsys):
    (tmp_path / "model.onnx").mkdir()
    line = refusal(capsys, "--model", shop.folder, "--output", tmp_path / "model.onnx")
    assert line == f"--output: '{tmp_path}/model.onnx' is a folder; give the name of a file"


def test_an_output_in_what_is_no_folder(shop, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    line = refusal(capsys, "--model", shop.folder, "--output", tmp_path / "file" / "model.onnx")
    assert line == (f"--output: cannot make the folder '{tmp_path}/file', got File exists; give another path")


def test_an_output_that_cannot_be_written(shop, tmp_path, capsys):
    output = tmp_path / f"{'a' * 249}.onnx"
    line = refusal(capsys, "--model", shop.folder, "--output", output)
    assert line == (
        f"--output: cannot write '{tmp_path}/.{output.name}.unfinished', got File name too long; "
        "give another path or make room"
    )
    assert list(tmp_path.iterdir()) == []


def test_no_model(tmp_path, capsys):
    line = refusal(capsys, "--model", tmp_path, "--output", tmp_path / "new" / "model.onnx")
    assert line.startswith(
        f"{tmp_path}: no exported model, looked for '{tmp_path}/model.json'; give the folder"
    )
    assert list(tmp_path.iterdir()) == []


def test_no_data(shop, tmp_path, capsys):
    given = ("--model", shop.folder, "--output", tmp_path / "new" / "model.onnx", "--parquet-file")
    assert "no such file" in refusal(capsys, *given, tmp_path / "none.parquet")
    pq.write_table(shop_table().drop_columns(["weather"]), tmp_path / "other.parquet")
    assert "no column 'weather'" in refusal(capsys, *given, tmp_path / "other.parquet")
    pq.write_table(shop_table(rows=5), tmp_path / "short.parquet")
    refusal(capsys, *given, tmp_path / "short.parquet")
    assert not (tmp_path / "new").exists()


def test_a_file_that_forecasts_something_else(shop, tmp_path, capsys, monkeypatch):
    output = tmp_path / "model.onnx"
    output.write_text("what was there before")
    monkeypatch.setattr(recurrent, "GATES", (0, 1, 2, 3))
    line = refusal(capsys, "--model", shop.folder, "--output", output)
    assert line.startswith("ONNX: forecasts are not those of the model (")
    assert line.endswith("; nothing was written, report it with the versions of onnx and onnxruntime")
    assert list(tmp_path.iterdir()) == [output]
    assert output.read_text() == "what was there before"


def test_a_model_that_is_too_large(shop, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(model_file, "LARGEST_FILE", model_file.OPERATIONS + 20_000)
    line = refusal(capsys, "--model", shop.folder, "--output", tmp_path / "model.onnx")
    assert line.startswith("--output: an ONNX file holds 16.02 MiB at most, got a model of ")
    assert line.endswith("; lower model.hidden_size, or export the INT8 model")
    assert list(tmp_path.iterdir()) == []


def test_only_the_first_process_of_a_launcher_works(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    assert script.main(["--model", "none", "--output", "none", "--local_rank", "1"]) == 0
    assert capsys.readouterr() == ("", "")
