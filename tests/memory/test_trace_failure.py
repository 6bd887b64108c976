"""Updates that run out of memory: what they leave."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from trace_cases import Chain, Twice, engine_of, make_tracer, update

from ds_tft.memory.meter import MIB
from ds_tft.memory.trace.files import TraceFiles
from ds_tft.memory.trace.timeline import BACKWARD, FORWARD, OPTIMIZER

HERE = Path(__file__).parent


class Failing(torch.autograd.Function):
    """Fails in backward."""

    @staticmethod
    def forward(_ctx, x):
        return x.clone()

    @staticmethod
    def backward(_ctx, _grad):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 5.00 GiB.\nmore")


class FailingBlock(Twice):
    """Runs out of memory, in one phase, from a call on."""

    def __init__(self, phase, at):
        super().__init__(100)
        self.phase, self.calls, self.at = phase, 0, at

    def forward(self, x):
        self.calls += 1
        result = super().forward(x)
        if self.calls < self.at:
            return result
        if self.phase == BACKWARD:
            return Failing.apply(result)
        del x, result
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 5.00 GiB.\nmore")


class Breaking(Chain):
    """Its second block runs out of memory."""

    def __init__(self, phase, at=1):
        super().__init__()
        self.large = FailingBlock(phase, at)


def fail(folder, model, steps, **options):
    """Updates until memory runs out."""
    engine = engine_of(model)
    traced = make_tracer(folder, engine, **options)

    batch = torch.ones(1000)

    def train():
        for step in steps:
            with traced.tracer.update(step):
                update(engine, [batch], traced.tracer.phase)

    with pytest.raises(torch.OutOfMemoryError) as error:
        train()
    assert not torch.autograd._profiler_enabled()
    return traced, error.value


def read(folder):
    return json.loads((folder / "traces" / "out-of-memory.json").read_text())


@pytest.mark.parametrize("at", [1, 2], ids=["first update", "traced update"])
def test_a_recorded_update_leaves_all_that_was_seen(tmp_path, at):
    traced, error = fail(tmp_path, Breaking(FORWARD, at), range(1, 5))
    assert traced.files == {"out-of-memory.json", "out-of-memory.png"}
    record = read(tmp_path)
    assert (record["step"], record["phase"], record["last_block"]) == (at, "forward", "large")
    assert record["message"] == "CUDA out of memory. Tried to allocate 5.00 GiB."
    states = record["trace"]["live_before_mib"]
    held = 2 * 4000 / MIB  # what the first block keeps and returns
    assert record["live_mib"] == pytest.approx(states + held)
    assert record["trace"]["blocks"]["small"]["kept_mib"] == 4000 / MIB
    ((step, tag, text),) = traced.written.texts
    assert (step, tag) == (at, "trace/out_of_memory")
    assert text == (
        f"step {at}: out of memory in forward, in or after block large: "
        "CUDA out of memory. Tried to allocate 5.00 GiB."
    )
    assert traced.written.figures == [(at, "trace/out_of_memory")]
    assert traced.written.flushed
    assert traced.said[-1] == f"{text}; see {tmp_path / 'traces' / 'out-of-memory.json'}"
    assert not getattr(error, "__notes__", [])


def test_in_backward_the_block_is_the_last_one_reached(tmp_path):
    traced, _ = fail(tmp_path, Breaking(BACKWARD), range(1, 5))
    record = read(tmp_path)
    assert (
        (record["phase"], record["last_block"]) == (BACKWARD, "large") == (traced.tracer.last_phase, "large")
    )
    assert record["trace"]["kept_for_backward_mib"] > 0


def test_in_an_update_that_is_not_recorded_the_traceback_tells_the_block(tmp_path):
    traced, _ = fail(tmp_path, Breaking(FORWARD, at=3), range(1, 5))
    assert traced.files == {"step-2.json", "step-2.png", "out-of-memory.json"}
    record = read(tmp_path)
    assert (record["step"], record["phase"], record["last_block"]) == (3, "forward", "large")
    assert record["live_mib"] is None
    assert record["host_rss_mib"] > 0
    assert "trace" not in record
    assert traced.written.flushed


def test_another_process_has_a_file_of_its_own(tmp_path):
    traced, _ = fail(tmp_path, Breaking(FORWARD), range(1, 5), is_first=False, suffix="-process-1")
    assert traced.files == {"out-of-memory-process-1.json"}


def test_the_optimizer_can_fail_as_well(tmp_path, monkeypatch):
    engine = engine_of(Chain())
    traced = make_tracer(tmp_path, engine)

    def step():
        raise MemoryError

    monkeypatch.setattr(engine.optimizer, "step", step)
    with pytest.raises(MemoryError), traced.tracer.update(1):
        update(engine, [torch.ones(1000)], traced.tracer.phase)
    record = read(tmp_path)
    assert record["phase"] == OPTIMIZER
    assert record["message"] == "MemoryError"
    assert record["trace"]["phases"][BACKWARD]["peak_live_mib"] > 0


def test_another_error_leaves_nothing_and_goes_on(tmp_path):
    engine = engine_of(Chain())
    traced = make_tracer(tmp_path, engine)
    with pytest.raises(KeyboardInterrupt), traced.tracer.update(1):
        raise KeyboardInterrupt
    assert not traced.files
    assert not torch.autograd._profiler_enabled()
    with traced.tracer.update(2):
        update(engine, [torch.ones(1000)], traced.tracer.phase)
    assert traced.files == {"step-2.json", "step-2.png"}


def test_what_cannot_be_written_does_not_hide_the_error(tmp_path):
    (tmp_path / "traces").write_text("in the way")
    traced, error = fail(tmp_path, Breaking(FORWARD), range(1, 5))
    (note,) = error.__notes__
    assert note.startswith("memory traces: not complete, got ")


def test_memory_of_the_failed_calls_is_free_before_anything_is_written(tmp_path, monkeypatch):
    """Their locals hold tensors, and the error holds them."""
    engine = engine_of(Chain())
    traced = make_tracer(tmp_path, engine)
    alive = []

    class Marker:
        def __del__(self):
            alive.clear()

    def forward(_batch):
        local = Marker()
        alive.append("local")
        raise MemoryError(f"{type(local)}")

    seen = []
    monkeypatch.setattr(engine.module, "forward", forward)
    monkeypatch.setattr(TraceFiles, "write_failure", lambda *_args: seen.append(list(alive)))
    with pytest.raises(MemoryError), traced.tracer.update(1):
        update(engine, [torch.ones(1000)], traced.tracer.phase)
    assert seen == [[]]


REAL = """
import resource, sys
from pathlib import Path
import psutil, torch
sys.path.insert(0, {here!r})
from trace_cases import Chain, Doubled, engine_of, make_tracer, update
model = Chain()
engine = engine_of(model)
traced = make_tracer(Path(sys.argv[1]), engine)
import matplotlib.backends.backend_agg, matplotlib.figure  # what the limit leaves is for tensors
used = psutil.Process().memory_info().vms
resource.setrlimit(resource.RLIMIT_AS, (used + 1_500 * 2**20, used + 1_500 * 2**20))
model.large.extra = 300 * 2**20  # 1.2 GiB in forward, twice as much in backward
with traced.tracer.update(1):
    update(engine, [torch.ones(1000)], traced.tracer.phase)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_real_one_leaves_the_files(tmp_path):
    command = [sys.executable, "-c", REAL.format(here=str(HERE)), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "can't allocate memory" in done.stderr
    assert "not complete" not in done.stderr
    assert {path.name for path in (tmp_path / "traces").iterdir()} == {
        "out-of-memory.json",
        "out-of-memory.png",
    }
    record = read(tmp_path)
    assert (record["phase"], record["last_block"]) == (BACKWARD, "large")
    assert record["trace"]["phases"]["forward"]["peak_live_mib"] > 1200
