"""Memory that runs out in an update: what to change is said, or the run goes on with smaller micro-batches."""

import errno
import gc
import json
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest
import torch
from datasets import ROLES, WINDOW, panel, write
from deepspeed.runtime.engine import DeepSpeedEngine
from loops import MODEL, PLACE, series_of
from safetensors.torch import load_file

import ds_tft.training.exhaustion
import ds_tft.training.stage
from ds_tft.data.batches import BatchBuilder
from ds_tft.errors import ConfigError
from ds_tft.memory.out_of_memory import is_out_of_memory
from ds_tft.model.attention import InterpretableAttention
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.environment import ProcessPlace
from ds_tft.training.run import train

pytestmark = pytest.mark.usefixtures("process_group")

HALVE = "deepspeed.ds_tft.on_out_of_memory=halve"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    training = {"epochs": 2, "log_every_steps": 1, "patience": 0}
    config = {"data": ROLES, "window": WINDOW, "model": MODEL | {"dropout": 0.0}, "training": training}
    (folder / "run.json").write_text(json.dumps(config))
    write(folder / "panel.parquet", panel())
    return folder


def run(files, output, *overrides, place=PLACE, **arguments):
    given = {"parquet": str(files / "panel.parquet"), "config": str(files / "run.json"), "batch_size": 16}
    train(TrainArguments(**(given | {"output_dir": str(output), "overrides": overrides} | arguments)), place)
    return output


@pytest.fixture
def small_memory(monkeypatch):
    """Lets training run out of memory in the third update's forward where more than 4 windows come at once."""
    forward, calls = InterpretableAttention.forward, []

    def limited(self, queries, *args):
        if torch.is_grad_enabled():
            calls.append(len(queries))
            if len(queries) > 4 and len(calls) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
        return forward(self, queries, *args)

    monkeypatch.setattr(InterpretableAttention, "forward", limited)
    return calls


def test_smaller_micro_batches_train_the_same(files, tmp_path, small_memory, capsys):
    halved = run(files, tmp_path / "halved", HALVE)
    words = " ".join(capsys.readouterr().out.split())
    assert "step 3: out of memory in forward; going on with 16 windows per update = micro-batch 8 x " in words
    assert (
        "micro-batch 4 x accumulation 4 x 1 process: windows and learning rates of every update stay" in words
    )
    assert small_memory[:4] == [16, 16, 16, 8]
    assert set(small_memory[4:]) == {4}
    small_memory.clear()
    small = ("deepspeed.train_micro_batch_size_per_gpu=4", "deepspeed.gradient_accumulation_steps=auto")
    straight = run(files, tmp_path / "straight", *small)
    assert len(series_of(halved, "loss/train")) == 14
    for tag in ("loss/train", "loss/validation", "optimizer/learning_rate"):
        np.testing.assert_allclose(series_of(halved, tag), series_of(straight, tag), rtol=1e-4)
    theirs = load_file(straight / "export" / "weights.safetensors")
    for name, weight in load_file(halved / "export" / "weights.safetensors").items():
        torch.testing.assert_close(weight, theirs[name], rtol=1e-3, atol=1e-4)


def test_one_engine_at_a_time_is_alive(files, tmp_path, small_memory, monkeypatch):
    build, alive = ds_tft.training.stage.build_engine, []

    def counted(model, config):
        alive.append(sum(type(each) is DeepSpeedEngine for each in gc.get_objects()))
        return build(model, config)

    monkeypatch.setattr(ds_tft.training.stage, "build_engine", counted)
    gc.collect()  # what other tests have left; some of it stays
    run(files, tmp_path / "run", HALVE, epochs=1)
    assert len(alive) == 3
    assert len(set(alive)) == 1, "the engine before is gone when the next one is built"


def test_a_batch_that_cannot_be_built_is_halved_too(files, tmp_path, monkeypatch, capsys):
    build = BatchBuilder.build

    def limited(self, index, windows):
        if len(windows) > 8:
            raise MemoryError("Unable to allocate 1.00 GiB for an array")
        return build(self, index, windows)

    monkeypatch.setattr(BatchBuilder, "build", limited)
    run(files, tmp_path / "run", HALVE, "training.evaluation_batch_size=8", epochs=1)
    words = " ".join(capsys.readouterr().out.split())
    assert "step 1: out of memory in batch; going on with 16 windows per update = micro-batch 8 x" in words


def test_without_memory_to_plan_with_the_line_has_no_numbers(files, tmp_path, small_memory, monkeypatch):
    def fail(_setup):
        raise BrokenProcessPool("A process in the process pool was terminated abruptly")

    monkeypatch.setattr(ds_tft.training.exhaustion, "_plan", fail)
    with pytest.raises(
        ConfigError, match=r"step 3 ran out of it in forward.*at micro-batch 16; lower train_micro"
    ):
        run(files, tmp_path / "run")


def test_a_size_that_was_chosen_may_have_nothing_to_move(files, tmp_path, capsys):
    """The same with a given micro-batch is an error: tests/training/test_run_memory.py."""
    offload = "deepspeed.activation_checkpointing.cpu_checkpointing=true"
    auto = ("deepspeed.gradient_accumulation_steps=auto", "deepspeed.ds_tft.memory_budget_gib=1")
    run(files, tmp_path / "run", offload, *auto, epochs=1)
    words = " ".join(capsys.readouterr().out.split())
    assert (
        "with the micro-batch that was chosen: activation_checkpointing.cpu_checkpointing: nothing was"
        in words
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory"),
            True,
        ),
        (RuntimeError("could not execute a primitive"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_what_counts_as_out_of_memory(error, expected):
    assert is_out_of_memory(error) is expected


def test_otherwise_three_settings_are_named_with_what_they_take(files, tmp_path, small_memory):
    with pytest.raises(ConfigError) as caught:
        run(files, tmp_path / "run")
    message = str(caught.value)
    start = (
        "memory: step 3 ran out of it in forward, got 'CUDA out of memory. Tried to allocate 2.00 MiB.' with "
    )
    assert message.startswith(start)
    assert "planned at micro-batch 16; set one of: " in message
    assert message.count(" planned)") == 3
    assert "--set deepspeed.train_micro_batch_size_per_gpu=8" in message
    failure = json.loads((tmp_path / "run" / "traces" / "out-of-memory.json").read_text())
    assert (failure["step"], failure["phase"]) == (3, "forward")


@pytest.mark.slow
def test_one_window_at_a_time_cannot_be_halved(files, tmp_path, monkeypatch):
    def fail(*_args):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    forward = InterpretableAttention.forward
    monkeypatch.setattr(
        InterpretableAttention,
        "forward",
        lambda *args: fail() if torch.is_grad_enabled() else forward(*args),
    )
    with pytest.raises(ConfigError, match=r"memory: step 1 ran out of it in forward.*at micro-batch 1; "):
        run(files, tmp_path / "run", HALVE, batch_size=2)


def test_several_processes_cannot_halve(files, tmp_path):
    with pytest.raises(ConfigError, match=r"on_out_of_memory: 'halve' needs one process.*got 2; use 'stop'"):
        run(files, tmp_path / "run", HALVE, place=ProcessPlace(0, 0, 2))


def test_a_validation_that_fails_is_not_an_update(files, tmp_path, monkeypatch):
    def fail(*_args):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("ds_tft.training.trainer.validation_loss", fail)
    with pytest.raises(torch.OutOfMemoryError):
        run(files, tmp_path / "run", HALVE)
