"""`launch/quantise.py` as a user calls it: flags, what it refuses, rounding only and fine-tuning."""

from __future__ import annotations

import importlib.util
import json

import pyarrow as pa
import pytest
from commands import REPOSITORY, write_files
from datasets import bars, days, panel, write

import ds_tft.training.quantise
from ds_tft.export import INT8_EXPORT, read_export
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.environment import ProcessPlace
from ds_tft.training.run import train

PLACE = ProcessPlace(0, 0, 1)
WEIGHTS = "compression_training.weight_quantization"
TRAINED = ("training.windows_per_epoch=32", "deepspeed.tensorboard.enabled=false")
QUIET = ("--set", "deepspeed.tensorboard.enabled=false", "--batch-size", "32")


@pytest.fixture(scope="module")
def script():
    """The script as a module."""
    path = REPOSITORY / "launch" / "quantise.py"
    spec = importlib.util.spec_from_file_location("quantise_script", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def files(tmp_path_factory, request):
    """Data, and a run that was trained on it."""
    request.getfixturevalue("process_group")
    folder = write_files(tmp_path_factory.mktemp("files"))
    arguments = TrainArguments(
        parquet=str(folder / "panel.parquet"), config=str(folder / "run.json"), batch_size=32,
        output_dir=str(folder / "run"), overrides=TRAINED,
    )  # fmt: skip
    train(arguments, PLACE)
    return folder


@pytest.fixture(scope="module")
def rounded(script, files):
    """A run folder of the command without fine-tuning."""
    output = files / "rounded"
    assert script.main(line(files, output, "--fine-tune-steps", "0", *QUIET)) == 0
    return output


@pytest.fixture
def refusal(script, files, tmp_path, capsys):
    """Calls the script for one line of error and code 2, and returns the line."""

    def refusal(*more, output=tmp_path / "out", model=None, parquet=None):
        capsys.readouterr()
        assert script.main(line(files, output, *more, model=model, parquet=parquet)) == 2
        errors = capsys.readouterr().err.splitlines()
        assert len(errors) == 1
        return errors[0]

    return refusal


def line(files, output, *more, model=None, parquet=None):
    """A command line."""
    return ["--model", str(model or files / "run"), "--parquet-file", str(parquet or files / "panel.parquet"),
            "--output-dir", str(output), *more]  # fmt: skip


# Flags


def test_every_flag_arrives(script, monkeypatch):
    asked = []
    monkeypatch.setattr(ds_tft.training.quantise, "quantise", lambda *given: asked.append(given))
    given = ["--model", "m", "--parquet-file", "a.parquet", "--fine-tune-steps", "7", "--deepspeed_config",
             "ds.json", "--batch-size", "64", "--use-gradient-checkpointing", "--output-dir", "out",
             "--resume", "auto", "--set", "training.seed=1", "--local_rank=0"]  # fmt: skip
    assert script.main(given) == 0
    arguments = TrainArguments(
        parquet="a.parquet", deepspeed_config="ds.json", batch_size=64, use_gradient_checkpointing=True,
        output_dir="out", resume="auto",
        overrides=("training.seed=1", "deepspeed.ds_tft.int8.fine_tune_steps=7"),
    )  # fmt: skip
    assert asked == [("m", arguments, PLACE)]
    assert script.main(["--model", "m", "--parquet-file", "a.parquet"]) == 0
    assert asked[1] == ("m", TrainArguments(parquet="a.parquet"), PLACE)


@pytest.mark.parametrize(
    "given",
    [
        ["--model", "m"],
        ["--parquet-file", "a"],
        ["--model", "m", "--parquet-file", "a", "--fine-tune-steps", "few"],
        ["--model", "m", "--parquet-file", "a", "--fine-tune", "3"],
        ["--model", "m", "--parquet-file", "a", "--resume", "step-3"],
    ],
)
def test_a_bad_flag_is_code_2(script, given, capsys):
    with pytest.raises(SystemExit) as caught:
        script.main(given)
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


# Refusals


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--fine-tune-steps", "-1"],
         "error: --fine-tune-steps: expected 0 or more, got -1; 0 only rounds"),
        (["--fine-tune-steps", "3", "--set", "deepspeed.ds_tft.int8.fine_tune_steps=4"],
         "error: --set deepspeed: ds_tft.int8.fine_tune_steps: got both 4 and 3; give it once"),
        (["--fine-tune-steps", "0", "--set", "deepspeed.ds_tft.int8.learning_rate=0.1"],
         "ds_tft.int8: learning_rate has no effect with fine_tune_steps 0, got 0.1; leave it out"),
        (["--set", "model.hidden_size=4"],
         "error: --set: model.hidden_size: belongs to the trained model, got 4; set what starts with training. or "
         "deepspeed. only"),
        (["--set", "split.train=0.5"], "error: --set: split.train: belongs to the trained model, got 0.5;"),
        (["--set", "training.patience=3"],
         "error: --set: training.patience: has no effect, got 3: the fine-tuning runs to its end, is validated at "
         "even distances, and its best model is kept; remove it"),
        (["--set", "training.validate_every_steps=3"],
         "error: --set: training.validate_every_steps: has no effect, got 3: "),
        (["--set", "training.epoch=3"], "error: --set: training.epoch: unknown key; did you mean 'epochs'?"),
        (["--batch-size", "0"], "error: --batch-size: expected 1 or more, got 0; give windows per update"),
        (["--batch-size", "1000"],
         "error: --batch-size (train_batch_size): an epoch has 32 windows, got 1000 per update; give at most 32"),
        (["--deepspeed_config", "nowhere.json"], "error: nowhere.json: no such file"),
        (["--set", "deepspeed.compression_training={}"],
         "error: --set deepspeed: compression_training: nothing is enabled; write "),
        (["--set", "deepspeed.zero_optimization.stage=3"],
         "compression_training needs whole weights to quantise, and zero_optimization.stage 3 partitions them; "
         "use stage 2"),
        (["--set", "deepspeed.ds_tft.streaming=false"],
         "compression_training quantises the streaming form of the variable selection, and ds_tft.streaming is "
         "false; leave it out"),
        (["--set", "deepspeed.fp16.enabled=true"],
         "error: fp16.enabled: true needs a GPU, and none was found; use bf16, or neither"),
        (["--set", "deepspeed.bf16.enabled=true", "--set", "deepspeed.zero_optimization.stage=0"],
         "bf16.enabled with zero_optimization.stage 0 takes an optimizer of DeepSpeed whose updates are imprecise"),
    ],
)  # fmt: skip
def test_settings_that_are_refused(refusal, tmp_path, more, message):
    assert message in refusal(*more)
    assert not (tmp_path / "out").exists()


def weights(modules, **shared):
    """`--set` for the weights of some modules."""
    section = {
        "shared_parameters": {"enabled": True, **shared},
        "different_groups": {"some": {"modules": modules}},
    }
    return ["--set", f"deepspeed.{WEIGHTS}={json.dumps(section)}"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (weights(["lstm", "atention"]),
         f"error: {WEIGHTS}.different_groups.some.modules[1]: matches no module, got \"atention\"; did you mean "
         "'attention'?"),
        ([*weights(["lstm"], schedule_offset=3), "--fine-tune-steps", "3"],
         f"error: {WEIGHTS}.shared_parameters.schedule_offset: the fine-tuning has 3 updates and would end before it "
         "quantises, got 3; lower it, or raise ds_tft.int8.fine_tune_steps"),
        ([*weights(["lstm"], schedule_offset=3), "--fine-tune-steps", "0"],
         f"error: {WEIGHTS}.shared_parameters.schedule_offset: it counts updates of the fine-tuning, and "
         "ds_tft.int8.fine_tune_steps is 0, got 3; leave it out"),
        (weights(["lstm"], quantize_groups=4),
         f"error: --set deepspeed: {WEIGHTS}.shared_parameters.quantize_groups: not supported, got 4; every output "
         "channel has a scale of its own; write 1"),
        (weights(["lstm"], bits=8),
         f"error: --set deepspeed: {WEIGHTS}.shared_parameters.bits: unknown key"),
    ],
)  # fmt: skip
def test_what_to_quantise_that_is_refused(refusal, tmp_path, more, message):
    """Before anything is calibrated."""
    assert refusal(*more).startswith(message)
    assert not (tmp_path / "out" / "int8").exists()
    assert not (tmp_path / "out" / "settings.json").exists()


def test_models_that_are_refused(refusal, rounded, tmp_path):
    nowhere = tmp_path / "nowhere"
    assert f"error: {nowhere}: no exported model" in refusal(model=nowhere)
    for model in (rounded, rounded / INT8_EXPORT):
        assert refusal(model=model) == (
            f"error: --model: '{model}' is quantised already, got INT8, not fine-tuned; give the floating-point "
            "export that it was made from"
        )
    assert not (tmp_path / "out").exists()


def renamed(name):
    return {key.replace(name, "other"): values for key, values in panel().items()}


def moved_by(number):
    return panel() | {"day": pa.chunked_array([days(60, number)] * 3).combine_chunks()}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (renamed("price"), "no column 'price', which the model was trained on as known_reals"),
        (panel() | {"price": [str(price) for price in panel()["price"]]},
         "column 'price' does not hold numbers, got type string"),
        (bars(), "no column 'day', which the model was trained on as time"),
        (panel() | {"day": list(range(60)) * 3},
         "time column 'day' holds integers, the model was trained on times without a zone"),
        (moved_by(2000),
         "no window has its labels in the train period of the model, got 180 rows; give the file of the training"),
        (panel(rows=12),
         "no window has its labels in the validation period of the model, got 36 rows; give the file of the training"),
        (panel(rows=52),
         "no window has its labels in the test period of the model, got 156 rows; give the file of the training"),
    ],
)  # fmt: skip
def test_data_that_is_refused(refusal, tmp_path, columns, message):
    parquet = write(tmp_path / "other.parquet", columns)
    assert refusal(parquet=parquet).startswith(f"error: {parquet}: {message}")
    assert not (tmp_path / "out").exists()


def test_files_that_are_refused(refusal, tmp_path):
    assert "no such file" in refusal(parquet=tmp_path / "nowhere.parquet")
    (tmp_path / "text.parquet").write_text("text")
    assert "cannot be read as parquet" in refusal(parquet=tmp_path / "text.parquet")


def test_folders_that_are_refused(refusal, files, rounded, tmp_path):
    for output in (files / "run", rounded):
        assert f"error: --output-dir: '{output}' already holds a run;" in refusal(output=output)
    assert refusal(output="") == "error: --output-dir: empty, got ''; give a folder, or leave it out"
    (tmp_path / "file").write_text("")
    assert "error: --output-dir: cannot write to" in refusal(output=tmp_path / "file")


def test_runs_that_cannot_be_resumed(refusal, files, rounded, tmp_path):
    none = ("--fine-tune-steps", "0", "--resume", "auto")
    assert "settings.json' is not readable" in refusal(*none, *QUIET)
    assert "settings or data differ from the run in" in refusal(*none, *QUIET, output=files / "run")
    assert "engine.train_batch_size: 32 -> 16;" in refusal(*none, "--batch-size", "16", output=rounded)
    seed = ("--set", "training.seed=1")
    assert "training.seed: 0 -> 1;" in refusal(*none, *QUIET, *seed, output=rounded)
    parquet = write(tmp_path / "other.parquet", panel(num_series=4))
    assert "prepared.series: 3 -> 4;" in refusal(*none, *QUIET, output=rounded, parquet=parquet)


# What it makes


def test_rounding_only(rounded):
    description = read_export(rounded).description
    assert description.int8.line == "INT8, not fine-tuned"
    assert not (rounded / "int8" / "checkpoints").exists()
    assert json.loads((rounded / "evaluation_int8.json").read_text())["model"]["overall"]["labels"] > 0
    settings = json.loads((rounded / "settings.json").read_text())
    assert settings["deepspeed"]["ds_tft"]["int8"]["fine_tune_steps"] == 0


def test_going_on_fine_tunes_what_was_only_rounded(script, files, rounded, capsys):
    given = (
        "--fine-tune-steps",
        "1",
        "--resume",
        "auto",
        "--set",
        "deepspeed.ds_tft.int8.learning_rate=0.001",
    )
    assert script.main(line(files, rounded, *given, *QUIET)) == 0
    said = capsys.readouterr().out
    assert "with 1 updates of fine-tuning" in said
    assert "changed since the run began: deepspeed.ds_tft.int8.fine_tune_steps: 0 -> 1" in said
    assert read_export(rounded).description.int8.fine_tuned_steps == 1
