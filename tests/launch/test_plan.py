"""launch/plan.py: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

import json
import sys

import pytest
from commands import CONFIG, REPOSITORY
from datasets import panel, write

from ds_tft.config.batch import resolve_batch
from ds_tft.config.deepspeed import read_deepspeed_settings

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


def test_tables_and_advice(capsys, tmp_path):
    out = tmp_path / "chosen.json"
    assert script.main([*SMALL, "--budget-gib=1", f"--write={out}"]) == 0
    printed = capsys.readouterr().out
    assert "2 static, 6 observed, 3 known inputs (taken from --inputs, all real" in printed
    for words in ("states: weights", "kept for backward", "peak of live tensors: backward", "peak, fits"):
        assert words in printed
    assert "checkpointing + bf16" in printed
    assert "take: the configuration as it is, at 64 windows per update = micro-batch 64" in printed
    settings, _ = read_deepspeed_settings(str(out))
    assert resolve_batch(settings, 1, None).micro_batch == 64


@pytest.mark.slow
def test_a_smaller_micro_batch_keeps_the_update(capsys, tmp_path):
    out = tmp_path / "chosen.json"
    assert script.main([*SMALL, *ONE_CONFIGURATION, "--budget-gib=0.006", f"--write={out}"]) == 0
    sizes = resolve_batch(read_deepspeed_settings(str(out))[0], 1, None)
    assert sizes.global_batch == 64
    assert sizes.micro_batch < 64
    assert f"micro-batch {sizes.micro_batch} x accumulation {sizes.accumulation}" in capsys.readouterr().out


@pytest.mark.slow
def test_inputs_of_a_file(capsys, tmp_path):
    config = tmp_path / "run.json"
    config.write_text(json.dumps(CONFIG))
    file = write(tmp_path / "panel.parquet", panel())
    arguments = [
        f"--parquet-file={file}",
        f"--config={config}",
        "--device=cuda",
        "--use-gradient-checkpointing",
    ]
    assert script.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "panel.parquet)" in printed
    assert "estimate: CUDA context" in printed
    assert "no checkpointing" in printed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--budget-gib=0"], "--budget-gib: expected more than 0, got 0; give GiB"),
        (["--processes=0"], "--processes: expected 1 or more, got 0; give a number"),
        (["--inputs=0,0,1"], "--inputs: expected at least 1 observed"),
        (["--processes=3"], "is not a multiple of 3 processes"),
        ([*ONE_CONFIGURATION, "--budget-gib=0.0001", "--write=x.json"], "--write: nothing fits 0.0001 GiB"),
        (
            [*ONE_CONFIGURATION, "--budget-gib=1", "--write=/tmp"],
            "--write: cannot write '/tmp', got Is a dir",
        ),
        (["--write=/nowhere/x.json"], "--write: there is no folder '/nowhere', got '/nowhere/x.json'"),
    ],
)
def test_errors_are_one_line(capsys, flags, message):
    assert script.main([*SMALL, *flags]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("value", ["5,210", "a,b,c", "1,2,-3"])
def test_inputs_are_three_counts(capsys, value):
    with pytest.raises(SystemExit):
        script.main([f"--inputs={value}"])
    assert "--inputs" in capsys.readouterr().err
