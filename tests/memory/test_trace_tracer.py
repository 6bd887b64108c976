"""Updates under the tracer: which are traced, what is left, and that training is the same."""

from __future__ import annotations

import json

import pytest
import torch
from recompute_cases import assert_same, build, draw
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trace_cases import CPU, Chain, engine_of, make_tracer, update

from ds_tft.memory.meter import CudaPeaks, MemoryMeter
from ds_tft.memory.recompute import attach_recompute
from ds_tft.memory.trace.files import TraceFiles
from ds_tft.memory.trace.phase_peaks import PhasePeaks
from ds_tft.memory.trace.settings import TraceSettings
from ds_tft.memory.trace.timeline import BACKWARD, FORWARD, OPTIMIZER
from ds_tft.memory.trace.tracer import StepTracer
from ds_tft.training.engine import build_engine
from ds_tft.training.tensorboard import TensorBoardWriter


def run(traced, engine, steps, batches=None):
    for step in steps:
        with traced.tracer.update(step):
            update(engine, batches or [torch.ones(1000)], traced.tracer.phase)


def test_the_second_update_leaves_files_and_tags(tmp_path):
    engine = engine_of(Chain())
    traced = make_tracer(tmp_path, engine)
    run(traced, engine, range(1, 5))
    assert traced.files == {"step-2.json", "step-2.png"}
    assert list(traced.written.scalars) == [2]
    assert traced.written.figures == [(2, "trace/timeline")]
    assert traced.written.flushed
    (line,) = traced.said
    assert line.startswith("memory of step 2: peak live ")
    record = json.loads((tmp_path / "traces" / "step-2.json").read_text())
    assert record["step"] == 2
    assert record["states_mib"]["optimizer"] == 4000 / 2**20
    assert traced.tracer.states.total == 12_000


def test_a_cadence_adds_traces(tmp_path):
    engine = engine_of(Chain())
    traced = make_tracer(tmp_path, engine, every_steps=3)
    run(traced, engine, range(1, 8))
    assert list(traced.written.scalars) == [2, 3, 6]


def test_a_cadence_that_never_came_is_said(tmp_path):
    engine = engine_of(Chain())
    traced = make_tracer(tmp_path, engine, every_steps=3)
    run(traced, engine, [1])
    assert traced.tracer.lines() == [
        "ds_tft.trace_every_steps: no update was traced, got 1 of them since the start"
    ]
    run(traced, engine, [2])
    assert traced.tracer.lines() == []


def test_a_trace_that_cannot_be_written_does_not_end_the_run(tmp_path):
    (tmp_path / "traces").write_text("")
    engine = engine_of(Chain())
    traced = make_tracer(tmp_path, engine)
    run(traced, engine, range(1, 4))
    assert traced.said[-1].startswith("memory traces: step 2 not written, got ")
    assert "traces" in traced.said[-1]


def test_another_process_traces_nothing(tmp_path):
    engine = engine_of(Chain())
    traced = make_tracer(tmp_path, engine, is_first=False)
    run(traced, engine, range(1, 4))
    assert not traced.files
    assert not traced.said
    assert traced.tracer.states is None


def test_updates_that_are_not_traced_are_not_touched(tmp_path, monkeypatch):
    engine = engine_of(Chain())
    traced = make_tracer(tmp_path, engine)
    run(traced, engine, (1, 2))
    monkeypatch.setattr("ds_tft.memory.trace.tracer.UpdateRecording", None)  # recording fails now
    monkeypatch.setattr(torch.nn.Module, "register_forward_hook", None)
    run(traced, engine, (3, 4))


def test_a_torch_without_the_profiler_is_said_and_traces_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("ds_tft.memory.trace.tracer.can_record", lambda: False)
    engine = engine_of(Chain())
    traced = make_tracer(tmp_path, engine)
    run(traced, engine, (1, 2))
    assert not traced.files
    assert traced.said == [
        f"memory traces: off, torch {torch.__version__} has no profiler that sees all threads"
    ]


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_traced_update_computes_the_same_bit_by_bit(tmp_path, stage):
    """Dropout, streaming, recomputation, two micro-batches; every update but the first is traced."""

    def trained(folder):
        model = build(streams=True)
        attach_recompute(model)
        engine = build_engine(
            model,
            {
                "train_micro_batch_size_per_gpu": 4,
                "gradient_accumulation_steps": 2,
                "gradient_clipping": 1.0,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
                "zero_optimization": {
                    "stage": stage,
                    "reduce_bucket_size": 2000,
                    "allgather_bucket_size": 2000,
                },
            },
        )
        traced = make_tracer(folder, engine, every_steps=1, is_first=folder.name == "traced")
        torch.manual_seed(3)
        losses = []
        for step in range(1, 4):
            with traced.tracer.update(step):
                for part in range(2):
                    with traced.tracer.phase(FORWARD):
                        loss = engine(draw(seed=2 * step + part, lengths=[6, 2, 4, 3])).square().mean()
                    with traced.tracer.phase(BACKWARD):
                        engine.backward(loss)
                    with traced.tracer.phase(OPTIMIZER):
                        engine.step()
                    losses.append(float(loss.detach()))
        weights = {name: each.detach().clone() for name, each in engine.module.named_parameters()}
        engine.destroy()
        return weights, losses, torch.get_rng_state(), traced

    weights, losses, numbers, traced = trained(tmp_path / "traced")
    expected_weights, expected_losses, expected_numbers, untraced = trained(tmp_path / "untraced")
    assert {"step-2.json", "step-3.json"} <= traced.files
    assert not untraced.files
    assert losses == expected_losses
    assert torch.equal(numbers, expected_numbers)
    assert_same(weights, expected_weights)
    record = json.loads((tmp_path / "traced" / "traces" / "step-3.json").read_text())
    states = sum(record["states_mib"].values())
    assert 0 < states < record["peak_live_mib"] < 20 * states
    assert record["peak_beyond_states_mib"] == pytest.approx(record["peak_live_mib"] - states)


def test_tensorboard_holds_the_trace_while_the_run_goes_on(tmp_path):
    engine = engine_of(Chain())
    writer = TensorBoardWriter(tmp_path / "tensorboard", flush_seconds=600)
    tracer = StepTracer(
        engine,
        CPU,
        MemoryMeter(CPU),
        TraceFiles(run_folder=tmp_path, tensorboard=writer),
        TraceSettings(),
        say=lambda _line: None,
    )
    for step in (1, 2):
        with tracer.update(step):
            update(engine, [torch.ones(1000)], tracer.phase)
    accumulator = EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    tags = accumulator.Tags()
    assert tags["images"] == ["trace/timeline"]
    assert "trace_blocks/large_kept_mib" in tags["scalars"]
    assert [event.step for event in accumulator.Scalars("trace/peak_live_mib")] == [2]
    writer.close()


def test_phase_peaks_are_the_highest_since_they_were_taken():
    class Meter:
        now = 0

        def restart_peaks(self):
            peaks, self.now = self.now, 0
            return CudaPeaks(allocated=peaks, reserved=2 * peaks)

    meter = Meter()
    peaks = PhasePeaks(meter)
    for reached in (5, 3):
        meter.now = 99  # before the phase
        with peaks.phase(FORWARD):
            meter.now = reached
    assert peaks.take() == {FORWARD: CudaPeaks(allocated=5, reserved=10)}
    assert peaks.take() == {}


def test_on_a_cpu_no_phase_has_cuda_peaks(tmp_path):
    engine = engine_of(Chain())
    traced = make_tracer(tmp_path, engine)
    run(traced, engine, (1,))
    assert traced.tracer.take_phase_peaks() == {}
