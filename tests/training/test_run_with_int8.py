"""Whole runs that go on to INT8, in this process, on a file of three small series."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datasets import ROLES, WINDOW, panel, write
from loops import MODEL, PLACE
from safetensors.torch import load_file

from ds_tft.errors import ConfigError
from ds_tft.export import read_export
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.quantise import quantise
from ds_tft.training.run import train

pytestmark = pytest.mark.usefixtures("process_group")

INT8 = "deepspeed.ds_tft.int8."
SHORT = (f"{INT8}fine_tune_steps=3", f"{INT8}calibration_windows=32")
TRAINING = {"epochs": 1, "log_every_steps": 3, "patience": 0, "checkpoint_every_steps": 2}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    config = {"data": ROLES, "window": WINDOW, "model": MODEL, "training": TRAINING}
    (folder / "run.json").write_text(json.dumps(config))
    write(folder / "panel.parquet", panel())
    return folder


def run(files, output, *overrides, **arguments):
    given = {"parquet": str(files / "panel.parquet"), "config": str(files / "run.json"), "batch_size": 16}
    train(TrainArguments(**(given | {"output_dir": str(output), "overrides": overrides} | arguments)), PLACE)
    return output


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory, request):
    request.getfixturevalue("process_group")
    return run(files, tmp_path_factory.mktemp("runs") / "finished", *SHORT, use_int8=True)


def weights_of(folder):
    return load_file(str(folder / "export_int8" / "weights.safetensors"))


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_run_folder_holds_everything(finished):
    assert json.loads((finished / "evaluation_int8.json").read_text())["model"]["overall"]["labels"] > 0
    layers = json.loads((finished / "int8" / "layers.json").read_text())
    assert {layer["kind"] for layer in layers} >= {"LSTM", "variable networks", "attention projections"}
    assert [layer["forecast_error"] for layer in layers] == sorted(
        (layer["forecast_error"] for layer in layers), reverse=True
    )
    steps = [
        json.loads(line)["step"] for line in (finished / "int8" / "metrics.jsonl").read_text().splitlines()
    ]
    assert max(steps) == 3
    assert "compression_training" in json.loads((finished / "settings.json").read_text())
    assert list((finished / "tensorboard" / "int8").iterdir())


def test_the_export_is_int8(finished):
    description = read_export(finished / "export_int8").description
    assert description.int8.calibration == "percentile"
    weights = weights_of(finished)
    codes = sum(tensor.numel() for tensor in weights.values() if tensor.dtype == torch.int8)
    floats = [
        name for name, tensor in weights.items() if tensor.is_floating_point() and name.endswith(".weight")
    ]
    assert codes > 0.5 * sum(tensor.numel() for tensor in weights.values())
    # An embedding of a real variable is a slope: one input, no sum.
    kept = [
        name for name in floats if weights[name].numel() and not (".norm." in name or "_embedding." in name)
    ]
    assert kept == []


def test_a_fresh_process_forecasts_the_same_without_deepspeed(finished, files, tmp_path):
    output = tmp_path / "evaluation.json"
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2] / 'launch')!r}); import evaluate;"
        f"code = evaluate.main(['--model', {str(finished / 'export_int8')!r}, '--parquet-file', "
        f"{str(files / 'panel.parquet')!r}, '--output', {str(output)!r}]);"
        "sys.exit(code or 'deepspeed' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    now, then = (json.loads(path.read_text()) for path in (output, finished / "evaluation_int8.json"))
    assert now["model"] == then["model"]


def test_recomputing_changes_no_bit(files, finished, tmp_path):
    blocks = ("deepspeed.ds_tft.recompute=default",)
    other = run(files, tmp_path / "run", *SHORT, *blocks, use_int8=True)
    assert same(weights_of(finished), weights_of(other))


def test_a_finished_run_is_quantised_when_resumed(files, finished, tmp_path):
    plain = run(files, tmp_path / "run")
    assert not (plain / "export_int8").exists()
    run(files, plain, *SHORT, use_int8=True, resume="auto")
    assert same(weights_of(finished), weights_of(plain))


def test_fine_tuning_goes_on_where_it_was_left(files, finished, tmp_path, capsys):
    copy = shutil.copytree(finished, tmp_path / "run")
    for path in (copy / "int8" / "checkpoints").glob("step-3"):
        shutil.rmtree(path)
    shutil.rmtree(copy / "export_int8")
    run(files, copy, *SHORT, use_int8=True, resume="auto")
    said = capsys.readouterr().out
    assert "ranges as measured before" in said
    assert "step-2: step 2" in said
    assert same(weights_of(finished), weights_of(copy))


def test_another_calibration_starts_anew_and_says_so(files, finished, tmp_path, capsys):
    copy = shutil.copytree(finished, tmp_path / "run")
    run(files, copy, SHORT[0], f"{INT8}calibration=min_max", use_int8=True, resume="auto")
    assert "what was fine-tuned before is removed" in capsys.readouterr().out
    assert read_export(copy / "export_int8").description.int8.calibration == "min_max"


@pytest.mark.parametrize("steps", [0, 2])
def test_an_export_is_quantised(files, finished, tmp_path, capsys, steps):
    arguments = TrainArguments(
        parquet=str(files / "panel.parquet"),
        batch_size=16,
        output_dir=str(tmp_path / "run"),
        overrides=(f"{INT8}fine_tune_steps={steps}",),
    )
    quantise(str(finished / "export"), arguments, PLACE)
    description = read_export(tmp_path / "run").description
    assert description.int8.fine_tuned_steps <= steps
    assert "INT8 model" in capsys.readouterr().out


def test_what_cannot_be_quantised(files, finished, tmp_path):
    def fails(match, model=finished, parquet="panel.parquet", overrides=()):
        arguments = TrainArguments(
            parquet=str(files / parquet), output_dir=str(tmp_path / "run"), overrides=overrides
        )
        with pytest.raises(ConfigError, match=match):
            quantise(str(model), arguments, PLACE)
        assert not (tmp_path / "run").exists()

    fails("is quantised already", model=finished / "export_int8")
    fails("belongs to the trained model, got 3", overrides=("model.hidden_size=3",))
    fails("must be.*64|expected", overrides=(f"{INT8}fine_tune_steps=-1",))


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        ((f"{INT8}fine_tune_steps=3", "deepspeed.compression_training.weight_quantization.shared_parameters"
          '={"enabled": true, "schedule_offset": 9}',
          "deepspeed.compression_training.weight_quantization.different_groups.all.modules=[\"*\"]"),
         "schedule_offset: the fine-tuning has"),
        (('deepspeed.compression_training.weight_quantization={"shared_parameters": {"enabled": true}, '
          '"different_groups": {"a": {"modules": ["nowhere"]}}}',), "matches no module"),
    ],
)  # fmt: skip
def test_mistakes_come_before_training(files, tmp_path, overrides, match):
    with pytest.raises(ConfigError, match=match):
        run(files, tmp_path / "run", *overrides)
    assert not (tmp_path / "run" / "checkpoints").exists()
