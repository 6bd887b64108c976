"""launch/plan.py: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from commands import REPOSITORY, write_files

from ds_tft.config.batch import resolve_batch
from ds_tft.config.deepspeed import read_deepspeed_settings
from ds_tft.training import planning
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.environment import ProcessPlace
from ds_tft.training.memory_fit import plan_fit
from ds_tft.training.setup import set_up

sys.path.insert(0, str(REPOSITORY / "launch"))

import plan as script  # noqa: E402

SMALL = (
    "--inputs=2,6,3", "--device=cpu", "--batch-size=64", "--set", "model.hidden_size=16",
    "--set", "window.encoder_length=20",
)  # fmt: skip
ONE_CONFIGURATION = (
    "--set", "deepspeed.ds_tft.streaming=false", "--set", "deepspeed.zero_optimization.stage=3",
)  # fmt: skip
"""Stage 3 has no alternatives."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files"))


def of_file(files: Path) -> list[str]:
    return [f"--parquet-file={files / 'panel.parquet'}", f"--config={files / 'run.json'}"]


def test_tables_and_advice(capsys, tmp_path):
    out = tmp_path / "chosen.json"
    assert script.main([*SMALL, "--budget-gib=1", f"--write={out}"]) == 0
    printed = capsys.readouterr().out
    assert "2 static, 6 observed, 3 known inputs (taken from --inputs, all real" in printed
    for words in ("states: weights", "kept for backward", "peak of live tensors: backward", "peak, fits"):
        assert words in printed
    assert "checkpointing + bf16" in printed
    assert "take: the configuration as it is, at 64 windows per update = micro-batch 64" in printed
    assert "ds_tft.memory_budget_gib: null (default) -> 1.0 (--budget-gib)" in printed
    assert f"written: {out}; train with" in printed
    settings, _ = read_deepspeed_settings(str(out))
    assert resolve_batch(settings, 1, None).micro_batch == 64
    assert settings.ds_tft.memory_budget_gib == 1


def test_the_budget_of_the_flag_replaces_that_of_the_json(capsys, tmp_path):
    given, out = tmp_path / "given.json", tmp_path / "out.json"
    given.write_text(
        '{"ds_tft": {"memory_budget_gib": 2, "streaming": false}, "zero_optimization": {"stage": 3}}'
    )
    out.write_text("{}")
    arguments = [*SMALL, f"--deepspeed_config={given}", f"--write={out}"]
    assert script.main([*arguments, "--budget-gib=0.5"]) == 0
    printed = capsys.readouterr().out
    assert f"ds_tft.memory_budget_gib: 2 ({given}) -> 0.5 (--budget-gib)" in printed.replace("2.0", "2")
    assert "peak, fits 512.0 MiB" in printed
    assert f"replaced: {out}; train with" in printed
    assert json.loads(out.read_text())["ds_tft"]["memory_budget_gib"] == 0.5


@pytest.mark.slow
def test_a_budget_said_twice_alike_is_no_change(capsys):
    twice = ["--set=deepspeed.ds_tft.memory_budget_gib=1", "--budget-gib=1"]
    assert script.main([*SMALL, *ONE_CONFIGURATION, *twice]) == 0
    assert "(--budget-gib)" not in capsys.readouterr().out


@pytest.mark.slow
def test_training_accepts_what_is_written(files, tmp_path):
    out, device = tmp_path / "chosen.json", "cuda" if torch.cuda.is_available() else "cpu"
    arguments = [*of_file(files), f"--device={device}", "--budget-gib=2", f"--write={out}"]
    halves = "--set=deepspeed.gradient_accumulation_steps=2"
    assert script.main([*arguments, *ONE_CONFIGURATION, halves]) == 0
    asked = TrainArguments(
        parquet=str(files / "panel.parquet"), config=str(files / "run.json"), deepspeed_config=str(out)
    )
    setup = set_up(asked, ProcessPlace(0, 0, 1))
    assert setup.engine_settings.ds_tft.memory_budget_gib == 2
    assert plan_fit(setup, 2 * 2**30).batch is setup.batch
    assert setup.batch.accumulation == 2


@pytest.mark.slow
def test_roles_of_a_configuration_do_not_count_without_its_file(capsys, files):
    assert script.main([*SMALL[:3], *ONE_CONFIGURATION, f"--config={files / 'run.json'}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line.startswith("data: "))
    assert line.endswith(" without --parquet-file: no effect on the inputs planned")
    assert "series, " in line


def test_without_a_file_and_inputs_the_model_is_a_large_one():
    assert script.build_parser().parse_args([]).inputs is None
    assert planning.DEFAULT_INPUTS == (5, 210, 10)


@pytest.mark.slow
def test_a_smaller_micro_batch_keeps_the_update(capsys, tmp_path):
    out = tmp_path / "chosen.json"
    assert script.main([*SMALL, *ONE_CONFIGURATION, "--budget-gib=0.006", f"--write={out}"]) == 0
    sizes = resolve_batch(read_deepspeed_settings(str(out))[0], 1, None)
    assert sizes.global_batch == 64
    assert sizes.micro_batch < 64
    assert f"micro-batch {sizes.micro_batch} x accumulation {sizes.accumulation}" in capsys.readouterr().out


@pytest.mark.slow
def test_inputs_of_a_file(capsys, files):
    assert script.main([*of_file(files), "--device=cuda", "--use-gradient-checkpointing"]) == 0
    printed = capsys.readouterr().out
    assert "panel.parquet)" in printed
    assert "estimate: CUDA context" in printed
    assert "no checkpointing" in printed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--budget-gib=0"], "--budget-gib: expected more than 0 and at most 1,000,000, got 0; give GiB"),
        (["--budget-gib=1e308"], "at most 1,000,000, got 1e+308; give GiB"),
        (["--budget-gib=nan"], "at most 1,000,000, got nan; give GiB"),
        (
            ["--set=deepspeed.ds_tft.memory_budget_gib=2", "--budget-gib=1"],
            "memory_budget_gib: got both 2 and 1",
        ),
        (["--parquet-file=x.parquet"], "--inputs: the file says which inputs there are, got 2,6,3; give one"),
        (["--processes=0"], "--processes: expected 1 or more, got 0; give a number"),
        (["--inputs=0,0,1"], "--inputs: expected at least 1 observed"),
        (["--processes=3"], "is not a multiple of 3 processes"),
        ([*ONE_CONFIGURATION, "--budget-gib=0.0001", "--write=x.json"], "--write: nothing fits 0.0001 GiB"),
        (["--write=/tmp"], "--write: expected the name of a file, got '/tmp', which is none"),
        (["--write=/dev/null"], "--write: expected the name of a file, got '/dev/null', which is none"),
        ([*ONE_CONFIGURATION, f"--write={'x' * 300}"], "got File name too long; give another path"),
        (["--set=deepspeed.fp16.enabled=true"], "fp16.enabled: true needs a GPU"),
        (
            ["--set=deepspeed.ds_tft.trace_snapshot=true"],
            "ds_tft.trace_snapshot: it is the history of the CUDA",
        ),
        (
            ["--set=deepspeed.activation_checkpointing.synchronize_checkpoint_boundary=true"],
            "synchronize_checkpoint_boundary: it waits for a GPU, and training runs on the CPU",
        ),
        (
            ["--set=deepspeed.ds_tft.on_out_of_memory=halve", "--processes=2"],
            "ds_tft.on_out_of_memory: 'halve' needs one process",
        ),
        (['--set=deepspeed.ds_tft.recompute=["lstm_encodr"]'], "did you mean 'lstm_encoder'"),
        (["--write=/nowhere/x.json"], "--write: there is no folder '/nowhere', got '/nowhere/x.json'"),
    ],
)
def test_errors_are_one_line(capsys, flags, message):
    assert script.main([*SMALL, *flags]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        (
            10**8,
            "this machine has too little memory to plan it, got micro-batch 100000000; give fewer windows",
        ),
        (
            10**10,
            "--batch-size (train_batch_size): expected at most 1,000,000,000 windows per update, got 1000",
        ),
    ],
)
def test_more_windows_than_can_be_planned(capsys, windows, message):
    """On a device whose plan allocates and computes nothing."""
    inputs = "--inputs=2,100000,3"
    assert script.main([inputs, "--device=cuda", f"--batch-size={windows}"]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert "evaluation" not in errors
    assert errors.count("\n") == 1


def test_more_windows_than_an_epoch_has(capsys, files):
    assert script.main([*of_file(files), "--batch-size=100000"]) == 2
    assert "--batch-size (train_batch_size): an epoch has" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["5,210", "a,b,c", "1,2,-3"])
def test_inputs_are_three_counts(capsys, value):
    with pytest.raises(SystemExit):
        script.main([f"--inputs={value}"])
    assert "--inputs" in capsys.readouterr().err
