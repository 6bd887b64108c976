"""Memory passes asked for by the JSON or the command line, in whole runs: the same training, and signs of it."""

import json

import pytest
import torch
from datasets import ROLES, WINDOW, panel, write
from loops import MODEL, PLACE, records, series_of
from safetensors.torch import load_file

from ds_tft.errors import ConfigError
from ds_tft.memory.recompute import DEFAULT_BLOCKS
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.run import train

pytestmark = pytest.mark.usefixtures("process_group")

TRAINING = {"epochs": 1, "log_every_steps": 2, "patience": 0}
OFFLOAD = "deepspeed.activation_checkpointing.cpu_checkpointing=true"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A run JSON and a file; batches are large enough for something to be worth moving."""
    folder = tmp_path_factory.mktemp("files")
    model = MODEL | {"hidden_size": 32, "dropout": 0.3}
    config = {"data": ROLES, "window": WINDOW, "model": model, "training": TRAINING}
    (folder / "run.json").write_text(json.dumps(config))
    write(folder / "panel.parquet", panel())
    return folder


def run(files, output, *overrides, **arguments):
    given = {"parquet": str(files / "panel.parquet"), "config": str(files / "run.json"), "batch_size": 64}
    train(TrainArguments(**(given | {"output_dir": str(output), "overrides": overrides} | arguments)), PLACE)
    return output


@pytest.fixture(scope="module")
def without(files, tmp_path_factory, request):
    request.getfixturevalue("process_group")
    return run(files, tmp_path_factory.mktemp("runs") / "without")


def assert_same_training(one, other):
    for tag in ("loss/train", "loss/validation"):
        assert series_of(one, tag) == series_of(other, tag)
    theirs = load_file(other / "export" / "weights.safetensors")
    for name, tensor in load_file(one / "export" / "weights.safetensors").items():
        assert torch.equal(tensor, theirs[name]), name


def test_the_flag_recomputes_the_default_blocks(files, tmp_path, without, capsys):
    output = run(files, tmp_path / "run", use_gradient_checkpointing=True)
    words = capsys.readouterr().out.replace("\n", " ")
    assert f"recompute: {', '.join(DEFAULT_BLOCKS)}; by DeepSpeed's non_reentrant_checkpoint" in words
    assert f"step 1: recompute: {len(DEFAULT_BLOCKS)} blocks ran again" in words
    ran = records(output, "recompute/blocks_run_again")
    assert ran
    assert {record["recompute/blocks_run_again"] for record in ran.values()} == {len(DEFAULT_BLOCKS)}
    assert_same_training(output, without)


def test_nothing_is_said_of_what_does_not_happen(without):
    assert not records(without, "recompute/blocks_run_again")


def test_cpu_checkpointing_moves_and_counts(files, tmp_path, without):
    output = run(files, tmp_path / "run", OFFLOAD)
    for record in records(output, "recompute/moved_to_host_mib").values():
        assert record["recompute/moved_to_host_mib"] == record["recompute/moved_to_device_mib"] > 0
    assert_same_training(output, without)


def test_counts_are_those_of_one_update(files, tmp_path):
    output = run(files, tmp_path / "run", "deepspeed.train_micro_batch_size_per_gpu=16",
                 "deepspeed.gradient_accumulation_steps=auto", 'deepspeed.ds_tft.recompute=["attention"]')  # fmt: skip
    ran = records(output, "recompute/blocks_run_again").values()
    assert {record["recompute/blocks_run_again"] for record in ran} == {4}


def test_the_profile_is_said(files, tmp_path, capsys):
    run(files, tmp_path / "run", "deepspeed.activation_checkpointing.profile=true")
    assert "recompute: attention: forward" in capsys.readouterr().out


def test_a_resumed_run_may_recompute(files, tmp_path, without):
    """What is recomputed changes no number, and no name in a checkpoint."""
    output = run(files, tmp_path / "run", "training.checkpoint_every_steps=1", epochs=1)
    resumed = run(files, output, resume="step-1", use_gradient_checkpointing=True)
    assert_same_training(resumed, without)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('ds_tft.recompute=["lstm"]', r"ds_tft.recompute: the model has no such block, got 'lstm'; did you"),
        (
            'ds_tft.recompute=["quantile_head"]',
            r"recomputing 'quantile_head' frees no memory, got .*; remove it",
        ),
        ("activation_checkpointing.partition_activations=true", r"partition_activations: it splits inputs"),
    ],
)
def test_what_would_do_nothing_is_refused(files, tmp_path, override, message):
    with pytest.raises(ConfigError, match=message):
        run(files, tmp_path / "run", f"deepspeed.{override}")
    assert not (tmp_path / "run" / "settings.json").exists()


def test_offload_of_nothing_ends_the_run(files, tmp_path):
    with pytest.raises(
        ConfigError, match=r"cpu_checkpointing: nothing was moved to host memory, got inputs of"
    ):
        run(files, tmp_path / "run", OFFLOAD, "model.hidden_size=4", batch_size=4)
