"""Runs of several processes, several runs at once, and runs that are killed: minutes, not seconds."""

import json
import os
import signal
import sys
import time

import numpy as np
import pytest
from commands import DEEPSPEED, TRAIN, environment, finish, flags, losses, run, start, write_files

from ds_tft.training.arguments import TrainArguments
from ds_tft.training.environment import ProcessPlace
from ds_tft.training.run import train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("process_group")]

TWO = (DEEPSPEED, "--num_accelerators", "2", TRAIN)
CONSTANT_RATE = ("--set", "deepspeed.scheduler=null")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files"))


def train_here(files, output, *overrides):
    """The same in one process, this one."""
    arguments = TrainArguments(
        parquet=str(files / "panel.parquet"),
        config=str(files / "run.json"),
        output_dir=str(output),
        batch_size=16,
        overrides=overrides,
    )
    train(arguments, ProcessPlace(0, 0, 1))
    return losses(output)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_users_mistake_is_one_line_and_code_2_through_the_launcher(files, tmp_path, processes):
    command = (DEEPSPEED, "--num_accelerators", processes, TRAIN)
    result = run(*command, *flags(files, tmp_path / "run", "--set", "model.hiden_size=8"))
    assert result.code == 2
    lines = [line for line in result.errors.splitlines() if "hiden_size" in line]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert "Traceback" not in result.errors


def test_a_bad_flag_is_not_zero_through_the_launcher(tmp_path):
    assert run(DEEPSPEED, TRAIN, "--no-such-flag").code == 2


@pytest.mark.parametrize("stage", ["0", "1", "2"])
def test_two_processes_give_the_losses_of_one(files, tmp_path, stage):
    overrides = ("model.dropout=0.0", f"deepspeed.zero_optimization.stage={stage}")
    two = run(*TWO, *flags(files, tmp_path / "two", *(word for o in overrides for word in ("--set", o))))
    assert two.code == 0, two.errors
    one = train_here(files, tmp_path / "one", *overrides)
    np.testing.assert_allclose(losses(tmp_path / "two"), one, rtol=0, atol=1e-5)


@pytest.mark.parametrize("stage", ["1", "2"])
def test_recomputing_changes_nothing_in_two_processes(files, tmp_path, stage):
    more = ("--set", f"deepspeed.zero_optimization.stage={stage}", "--set", "model.dropout=0.3",
            "--set", "model.hidden_size=64", "--batch-size", "64")  # fmt: skip
    offload = ("--set", "deepspeed.activation_checkpointing.cpu_checkpointing=true")
    forms = {"without": (), "recomputed": ("--use-gradient-checkpointing",), "offloaded": offload}
    for name, flag in forms.items():
        result = run(*TWO, *flags(files, tmp_path / name, *more, *flag))
        assert result.code == 0, result.errors
        assert ("recompute: off" in result.output) == (name == "without")
    expected = (tmp_path / "without" / "export" / "weights.safetensors").read_bytes()
    for name in ("recomputed", "offloaded"):
        assert losses(tmp_path / name) == losses(tmp_path / "without")
        assert (tmp_path / name / "export" / "weights.safetensors").read_bytes() == expected


def test_compressed_inputs_train_about_the_same_in_two_processes(files, tmp_path):
    more = ("--set", "model.hidden_size=64", "--batch-size", "64", "--use-gradient-checkpointing")
    compress = ("--set", "deepspeed.ds_tft.compress_kept=int8")
    for name, flag in {"exact": (), "compressed": compress, "again": compress}.items():
        result = run(*TWO, *flags(files, tmp_path / name, *more, *flag))
        assert result.code == 0, result.errors
    assert losses(tmp_path / "compressed") == losses(tmp_path / "again")
    assert losses(tmp_path / "compressed") != losses(tmp_path / "exact")
    np.testing.assert_allclose(losses(tmp_path / "compressed"), losses(tmp_path / "exact"), rtol=0.01)


def test_two_processes_go_on_where_they_were(files, tmp_path):
    straight = run(*TWO, *flags(files, tmp_path / "straight", *CONSTANT_RATE, "--epochs", "2"))
    assert straight.code == 0, straight.errors
    for more in (("--epochs", "1"), ("--epochs", "2", "--resume", "auto")):
        part = run(*TWO, *flags(files, tmp_path / "parts", *CONSTANT_RATE, *more))
        assert part.code == 0, part.errors
    assert losses(tmp_path / "parts") == losses(tmp_path / "straight")
    by_one = run(sys.executable, TRAIN, *flags(files, tmp_path / "parts", *CONSTANT_RATE, "--resume", "auto"))
    assert by_one.code == 2
    assert "processes: 2 -> 1" in by_one.errors


def test_two_processes_end_together_when_nothing_is_finite(files, tmp_path):
    more = ("--set", "deepspeed.optimizer.params.lr=1e30", "--set", "deepspeed.gradient_clipping=0",
            "--set", "training.max_nonfinite_steps=2", *CONSTANT_RATE)  # fmt: skip
    result = run(*TWO, *flags(files, tmp_path / "run", *more))
    assert result.code == 2
    assert result.errors.count("loss or gradients not finite, got 2 such updates in a row") == 1


def test_two_runs_of_one_process_at_once(files, tmp_path):
    runs = [start(sys.executable, TRAIN, *flags(files, tmp_path / name)) for name in "ab"]
    results = [finish(process) for process in runs]
    assert [result.code for result in results] == [0, 0]
    assert losses(tmp_path / "a") == losses(tmp_path / "b")


def test_two_runs_of_two_processes_at_once(files, tmp_path):
    """The launcher gives both the same port."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    runs = [
        start(*TWO, *flags(files, tmp_path / name), env=environment(TMPDIR=str(scratch))) for name in "ab"
    ]
    results = [finish(process) for process in runs]
    assert [result.code for result in results] == [0, 0], [result.errors for result in results]
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert not list(scratch.glob("ds_tft-*"))


def test_a_killed_run_goes_on_to_the_same_end(files, tmp_path):
    output = tmp_path / "killed"
    often = ("--set", "training.checkpoint_every_steps=3", "--set", "training.patience=0")
    more = ("--epochs", "40", *often)
    process = start(sys.executable, TRAIN, *flags(files, output, *more))
    deadline = time.monotonic() + 120
    while not (output / "checkpoints" / "step-12").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = (output / "metrics.jsonl").read_text().splitlines()
    assert json.loads(before[0])["step"] == 0
    resumed = run(sys.executable, TRAIN, *flags(files, output, *more, "--resume", "auto"))
    assert resumed.code == 0, resumed.errors
    straight = run(sys.executable, TRAIN, *flags(files, tmp_path / "straight", *more))
    assert straight.code == 0, straight.errors
    assert losses(output) == losses(tmp_path / "straight")
