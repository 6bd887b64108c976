"""From the DeepSpeed JSON and the command line to what is recomputed."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.errors import ConfigError
from ds_tft.memory.checkpoint_path import CheckpointPath
from ds_tft.memory.recompute_settings import RecomputeSettings, recompute_settings

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def read(section=None, recompute=None, compress_kept=None, *, device=CPU) -> RecomputeSettings | None:
    product = {"recompute": recompute, "compress_kept": compress_kept}
    settings = DeepSpeedSettings.model_validate(
        {"activation_checkpointing": section or {}, "ds_tft": product}
    )
    return recompute_settings(settings, device)


def test_it_is_off_unless_asked_for():
    assert read() is None
    assert read({"cpu_checkpointing": False}) is None


@pytest.mark.parametrize(
    ("section", "recompute"),
    [({}, "default"), ({"cpu_checkpointing": True}, None), ({"profile": True}, None)],
)
def test_the_default_blocks_are_taken_where_none_are_named(section, recompute):
    settings = read(section, recompute)
    assert settings.blocks is None
    assert settings.offload == ("cpu_checkpointing" in section)
    assert settings.profile == ("profile" in section)


def test_named_blocks_are_taken():
    settings = read({"cpu_checkpointing": True}, ("attention", "lstm_encoder"))
    assert settings == RecomputeSettings(blocks=("attention", "lstm_encoder"), offload=True, device=CPU)


def test_deepspeed_runs_blocks_again_unless_inputs_are_moved():
    assert read(recompute="default").chosen_path is CheckpointPath.DEEPSPEED
    assert read({"cpu_checkpointing": True}).chosen_path is CheckpointPath.OWN
    assert read({"cpu_checkpointing": True}, device=CUDA).chosen_path is CheckpointPath.OWN


def test_inputs_are_compressed_if_asked_for():
    settings = read(recompute="default", compress_kept="int8")
    assert settings == RecomputeSettings(compress=True, device=CPU)
    assert settings.chosen_path is CheckpointPath.DEEPSPEED


@pytest.mark.parametrize(
    ("section", "recompute", "message"),
    [
        (
            {"cpu_checkpointing": True},
            None,
            "both say how the inputs of recomputed blocks are kept; give one",
        ),
        ({}, None, "ds_tft.compress_kept is 'int8', and no block is recomputed; set ds_tft.recompute"),
    ],
)
def test_compression_goes_with_recomputation_and_without_offload(section, recompute, message):
    with pytest.raises(ValidationError, match=message):
        read(section, recompute, "int8")


def test_boundaries_are_synchronised_on_a_gpu():
    assert read({"synchronize_checkpoint_boundary": True}, device=CUDA).synchronize


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"partition_activations": True},
            "partition_activations: it splits inputs over the processes of a model in several parts, and this "
            "model is in one part, got true; remove it",
        ),
        (
            {"contiguous_memory_optimization": True},
            "contiguous_memory_optimization: it arranges what partition_activations has split, and that is not "
            "available, got true; remove it",
        ),
        (
            {"number_checkpoints": 4},
            "number_checkpoints: it sizes the buffers of contiguous_memory_optimization, and that is not "
            "available, got 4; remove it",
        ),
        (
            {"synchronize_checkpoint_boundary": True},
            "synchronize_checkpoint_boundary: it waits for a GPU, and training runs on the CPU, got true; remove "
            "it",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(section, message):
    with pytest.raises(ConfigError) as error:
        read(section, "default")
    assert str(error.value) == f"activation_checkpointing.{message}"


def test_no_blocks_are_an_error():
    with pytest.raises(ConfigError, match=r"ds_tft.recompute: names no block, got \[\]; name some"):
        read(recompute=())
