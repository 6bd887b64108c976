"""Training under the tracer: traces are left, and nothing else differs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from loops import make_data, make_trainer, records, said, series_of, weights_of

from ds_tft.memory.trace.files import TraceFiles
from ds_tft.memory.trace.settings import TraceSettings
from ds_tft.memory.trace.tracer import StepTracer

pytestmark = pytest.mark.usefixtures("process_group")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def make_traced(folder, data, **training):
    """A trainer whose updates are traced, all but the first."""
    trainer = make_trainer(folder, data, **training)
    recorders = trainer.recorders
    tracer = StepTracer(
        trainer.engine,
        torch.device("cpu"),
        recorders.meter,
        TraceFiles(run_folder=folder, tensorboard=recorders.tensorboard),
        TraceSettings(every_steps=1),
        say=recorders.log.say,
    )
    trainer.recorders = replace(recorders, tracer=tracer)
    return trainer


def test_training_is_the_same_and_leaves_traces(tmp_path, data):
    trained = {}
    for name, make in (("traced", make_traced), ("plain", make_trainer)):
        trainer = make(tmp_path / name, data, windows_per_epoch=64)
        trainer.train()
        trained[name] = weights_of(trainer)
        assert ("memory of step 2: peak live" in said(trainer)) == (name == "traced")
        trainer.engine.destroy()
    assert all(torch.equal(trained["traced"][name], trained["plain"][name]) for name in trained["plain"])
    assert series_of(tmp_path / "traced", "loss/train") == series_of(tmp_path / "plain", "loss/train")
    traces = {path.name for path in (tmp_path / "traced" / "traces").iterdir()}
    assert traces == {f"step-{step}{ending}" for step in (2, 3, 4) for ending in (".json", ".png")}
    assert not (tmp_path / "plain" / "traces").exists()
    trace = json.loads((tmp_path / "traced" / "traces" / "step-4.json").read_text())
    assert set(trace["phases"]) == {"forward", "backward", "optimizer"}
    assert "history_selection" in trace["blocks"]


def test_states_are_logged_once_they_are_known(tmp_path, data):
    trainer = make_traced(tmp_path, data, windows_per_epoch=48)
    trainer.train()
    assert sorted(records(tmp_path, "memory/states_mib")) == [2, 3]
    trainer.engine.destroy()


def test_running_out_of_memory_leaves_a_file_and_goes_on(tmp_path, data, monkeypatch):
    trainer = make_traced(tmp_path, data, windows_per_epoch=48)
    attention = trainer.engine.module.attention
    forward = attention.forward

    def fail(*tensors):
        if attention.training:  # not in the validation before the first update
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(*tensors)

    monkeypatch.setattr(attention, "forward", fail)
    with pytest.raises(torch.OutOfMemoryError):
        trainer.train()
    failure = json.loads((tmp_path / "traces" / "out-of-memory.json").read_text())
    assert (failure["step"], failure["phase"], failure["last_block"]) == (1, "forward", "attention")
    assert (tmp_path / "traces" / "out-of-memory.png").exists()
    trainer.engine.destroy()
