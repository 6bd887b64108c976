"""`launch/train.py` as a user starts it. What a run does is tested in `training/test_run.py`."""

import importlib.util
import json
import sys

import numpy as np
import pytest
from commands import DEEPSPEED, TRAIN, environment, flags, losses, run, write_files

import ds_tft.training.run
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.environment import ProcessPlace
from ds_tft.training.run import train

PLACE = ProcessPlace(0, 0, 1)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def script():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("train_script", TRAIN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def asked(script, monkeypatch):
    """What the script would train with, instead of training."""
    got = []
    monkeypatch.setattr(ds_tft.training.run, "train", lambda arguments, place: got.append((arguments, place)))
    return got


# Flags


def test_every_flag_arrives(script, asked):
    line = ["--parquet-file", "a.parquet", "--target", "x", "--target", "y", "--config", "run.json",
            "--deepspeed_config", "ds.json", "--epochs", "3", "--batch-size", "64", "--seed", "9",
            "--output-dir", "out", "--resume", "auto", "--set", "a.b=1", "--set", "c=2",
            "--use-gradient-checkpointing", "--use-int8"]  # fmt: skip
    assert script.main(line) == 0
    assert asked[0][0] == TrainArguments(
        parquet="a.parquet", targets=("x", "y"), config="run.json", deepspeed_config="ds.json", epochs=3,
        batch_size=64, seed=9, output_dir="out", resume="auto", overrides=("a.b=1", "c=2"),
        use_gradient_checkpointing=True, use_int8=True,
    )  # fmt: skip


@pytest.mark.parametrize("given", [["--local_rank=0"], ["--local-rank=0"], ["--local_rank", "0"], []])
def test_the_launchers_own_flag_is_accepted(script, asked, given):
    """Which process this is comes from the environment, which every launcher sets."""
    assert script.main([*given, "--parquet-file", "a.parquet"]) == 0
    assert asked == [(TrainArguments(parquet="a.parquet"), PLACE)]


def test_both_spellings_of_deepspeeds_flag(script, asked):
    for name in ("--deepspeed_config", "--deepspeed-config"):
        script.main(["--parquet-file", "a.parquet", name, "ds.json"])
    assert {arguments.deepspeed_config for arguments, _ in asked} == {"ds.json"}


@pytest.mark.parametrize(
    "line",
    [
        [],
        ["--parquet-file"],
        ["--parquet-file", "a", "--epoch", "3"],
        ["--parquet-file", "a", "--epochs", "many"],
    ],
)
def test_a_bad_flag_is_code_2(script, line, capsys):
    with pytest.raises(SystemExit) as caught:
        script.main(line)
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--epochs", "0"], "error: --epochs: training.epochs: expected 1 or more, got 0"),
        (["--set", "model.hiden_size=8"], "did you mean 'hidden_size'?"),
        (["--deepspeed_config", "nowhere.json"], "nowhere.json"),
        (
            ["--use-int8", "--set", "deepspeed.ds_tft.streaming=false"],
            "error: ",
        ),
        (["--batch-size", "0"], "error: --batch-size: expected 1 or more, got 0"),
        (["--target", "profit"], "no column 'profit'"),
        (["--resume", "auto"], "error: --resume auto: no checkpoint"),
    ],
)
@pytest.mark.usefixtures("process_group")
def test_a_users_mistake_is_one_line_and_code_2(script, files, tmp_path, more, message, capsys):
    assert script.main(flags(files, tmp_path / "run", *more)) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert message in errors[0]
    assert not (tmp_path / "run").exists()


# Processes


def test_a_bad_json_in_a_process_of_its_own(files, tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text('{"data": {"target": "sales",}')
    result = run(
        sys.executable, TRAIN, "--parquet-file", str(files / "panel.parquet"), "--config", str(broken)
    )
    assert result.code == 2
    assert result.output == ""
    assert len(result.errors.splitlines()) == 1
    assert result.errors.startswith(f"error: {broken}")


def test_plain_python_in_an_empty_environment(files, tmp_path):
    """No launcher, no compiler, no network, no home: and the same losses as in this process."""
    bare = {
        "PYTHONPATH": environment()["PYTHONPATH"],
        "PATH": str(tmp_path / "nothing"),
        "OMP_NUM_THREADS": "1",
    }
    result = run(sys.executable, TRAIN, *flags(files, tmp_path / "run", "--local-rank=0"), env=bare)
    assert result.code == 0, result.errors
    assert result.errors == ""
    assert "WARNING" not in result.output
    assert (tmp_path / "run" / "export" / "model.json").exists()
    assert len(losses(tmp_path / "run")) == 7


@pytest.mark.usefixtures("process_group")
def test_two_processes_of_the_launcher_learn_what_one_does(files, tmp_path):
    """With dropout: one process with two micro-batches in turn has the same ones as two with one each."""
    two = run(DEEPSPEED, "--num_accelerators", "2", TRAIN, *flags(files, tmp_path / "two"))
    assert two.code == 0, two.errors
    train(
        TrainArguments(
            parquet=str(files / "panel.parquet"),
            config=str(files / "run.json"),
            output_dir=str(tmp_path / "one"),
            batch_size=16,
            overrides=("deepspeed.gradient_accumulation_steps=2",),
        ),
        PLACE,
    )
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=0, atol=1e-5)
    settings = [json.loads((tmp_path / name / "settings.json").read_text()) for name in ("one", "two")]
    assert [each["processes"] for each in settings] == [1, 2]
    assert [each["engine"]["train_micro_batch_size_per_gpu"] for each in settings] == [8, 8]
    evaluations = [json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("one", "two")]
    assert evaluations[0].keys() == evaluations[1].keys()
    for line in ("settings: all of them are in", "engine: ZeRO", "step 7/7  epoch 1", "Run folder"):
        assert two.output.count(line) == 1, f"only the first process speaks: {line}"
    shards = sorted(path.name for path in (tmp_path / "two" / "checkpoints" / "step-7").glob("zero_*"))
    assert shards == [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)]
