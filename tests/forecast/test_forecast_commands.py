"""The launch scripts: exit codes, one line per error, no DeepSpeed, flat memory."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from made_model import SHOP, Made, make_model, settings_of, shop_table
from rich.console import Console

from ds_tft.forecast.predict import PredictArguments, predict
from ds_tft.forecast.time_range import TimeRange
from launch import evaluate as evaluate_script
from launch import predict as predict_script

ROOT = Path(__file__).parents[2]
SPAN = ("--from", "2024-01-04", "--to", "2024-01-04T06:00")


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Made:
    return make_model(tmp_path_factory.mktemp("shop"), shop_table(), settings_of(SHOP))


def without_deepspeed(script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a launch script in a process in which DeepSpeed cannot be imported."""
    code = (
        f"import sys, runpy; sys.path.insert(0, {str(ROOT)!r}); sys.modules['deepspeed'] = None; "
        f"sys.argv = {[script, *arguments]!r}; runpy.run_path({str(ROOT / 'launch' / script)!r}, "
        "run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_copied_export_forecasts_in_a_process_of_its_own(shop, tmp_path):
    shutil.copytree(shop.folder / "export", tmp_path / "model")
    given = ("--model", "model", "--parquet-file", str(shop.file), *SPAN, "--local_rank=0")
    done = without_deepspeed("predict.py", *given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    there = pq.read_table(tmp_path / "model" / "forecasts.parquet")
    here = shop.predict(origins=TimeRange(SPAN[1], SPAN[3]))
    assert there.schema == here.schema
    for name in ("p10", "p50", "p90"):
        np.testing.assert_allclose(there[name].to_numpy(), here[name].to_numpy(), rtol=1e-6)
    assert there.drop_columns(["p10", "p50", "p90"]).equals(here.drop_columns(["p10", "p50", "p90"]))


def test_an_evaluation_in_a_process_of_its_own(shop, tmp_path):
    given = ("--model", str(shop.folder), "--parquet-file", str(shop.file), "--output", "e.json")
    done = without_deepspeed("evaluate.py", *given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "written: e.json" in done.stdout
    assert (tmp_path / "e.json").exists()


@pytest.mark.parametrize("main", [predict_script.main, evaluate_script.main])
def test_a_mistake_is_one_line_and_exit_code_2(main, shop, tmp_path, capsys):
    for model, file, message in (
        (tmp_path, shop.file, "no exported model"),
        (shop.folder, tmp_path / "none", "no such file"),
    ):
        assert main(["--model", str(model), "--parquet-file", str(file)]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("error: ")
        assert message in shown.err
        assert shown.err.count("\n") == 1


@pytest.mark.parametrize("main", [predict_script.main, evaluate_script.main])
def test_only_the_first_process_of_a_launcher_works(main, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    assert main(["--model", "none", "--parquet-file", "none", "--local_rank", "1"]) == 0
    assert capsys.readouterr() == ("", "")


def test_flags_reach_the_prediction(shop, tmp_path, capsys):
    output = tmp_path / "f.csv"
    given = ["--model", str(shop.folder), "--parquet-file", str(shop.file), "--output", str(output), *SPAN]
    assert predict_script.main([*given, "--stride", "3", "--batch-size", "2"]) == 0
    assert len(output.read_text().splitlines()) == 1 + 3 * 3 * 4
    assert f"written: 36 rows to {output}" in capsys.readouterr().out


@pytest.mark.slow
def test_memory_stays_flat_over_200_predictions(shop, tmp_path):
    process = psutil.Process()
    arguments = PredictArguments(
        model=str(shop.folder),
        parquet=str(shop.file),
        output=str(tmp_path / "f.parquet"),
        origins=TimeRange("2024-01-03", "2024-01-04"),
    )
    resident = []
    for _ in range(200):
        predict(arguments, Console(file=io.StringIO()))
        resident.append(process.memory_info().rss)
    assert resident[-1] < 1.05 * resident[19]
