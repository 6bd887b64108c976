"""The tracer on a GPU; the rest of it is tested on a CPU."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from recompute_cases import build, draw
from trace_cases import Written, engine_of

from ds_tft.memory.meter import MIB, MemoryMeter
from ds_tft.memory.trace.files import TraceFiles
from ds_tft.memory.trace.settings import TraceSettings
from ds_tft.memory.trace.timeline import BACKWARD, FORWARD, OPTIMIZER
from ds_tft.memory.trace.tracer import StepTracer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_a_trace_agrees_with_the_allocator(tmp_path):
    """Peaks by phase are the same bytes, counted in two ways; blocks are there in both directions."""
    device = torch.device("cuda", torch.cuda.current_device())
    engine = engine_of(build(streams=True).to(device))
    meter = MemoryMeter(device)
    tracer = StepTracer(
        engine,
        device,
        meter,
        TraceFiles(run_folder=tmp_path, tensorboard=Written()),
        TraceSettings(snapshot=True),
        say=lambda _line: None,
    )
    for step in (1, 2):
        tracer.take_phase_peaks()
        with tracer.update(step):
            with tracer.phase(FORWARD):
                inputs = draw(seed=step).to(device, torch.float32)
                loss = engine.module(inputs).square().mean()
            with tracer.phase(BACKWARD):
                loss.backward()
            with tracer.phase(OPTIMIZER):
                engine.optimizer.step()
                engine.optimizer.zero_grad()
    trace = json.loads((tmp_path / "traces" / "step-2.json").read_text())
    peaks = tracer.take_phase_peaks()
    for phase in (FORWARD, BACKWARD, OPTIMIZER):
        assert trace["phases"][phase]["peak_live_mib"] == peaks[phase].allocated / MIB
        assert peaks[phase].reserved >= peaks[phase].allocated
    assert trace["blocks"]["history_selection"]["backward"]["workspace_mib"] > 0
    assert trace["live_before_mib"] >= sum(trace["states_mib"].values()) - trace["states_mib"]["gradients"]
    snapshot = pickle.loads((tmp_path / "traces" / "step-2.pickle").read_bytes())
    assert snapshot["device_traces"]


def test_running_out_of_memory_is_written(tmp_path):
    device = torch.device("cuda", torch.cuda.current_device())
    engine = engine_of(torch.nn.Linear(4, 4).to(device))
    files = TraceFiles(run_folder=tmp_path, tensorboard=Written())
    tracer = StepTracer(
        engine, device, MemoryMeter(device), files, TraceSettings(snapshot=True), say=lambda _line: None
    )
    total = torch.cuda.get_device_properties(device).total_memory
    with pytest.raises(torch.OutOfMemoryError), tracer.update(1), tracer.phase(FORWARD):
        torch.empty(2 * total, dtype=torch.uint8, device=device)
    failure = json.loads((tmp_path / "traces" / "out-of-memory.json").read_text())
    assert failure["phase"] == FORWARD
    assert failure["cuda_device_total_mib"] == pytest.approx(total / MIB, rel=0.1)
    assert (tmp_path / "traces" / "out-of-memory.pickle").exists()
