"""The GPU check, as far as a machine without one can tell; the rest runs where there is one."""

import gpu_check
import gpu_fit
import pytest
import torch
from gpu_presets import PresetRun
from workload import FORMS, Workload, find_device

CPU = torch.device("cpu")
TINY = Workload(hidden_size=8, variables=20, encoder_length=6)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_largest_batch_stops_at_the_limit():
    assert gpu_fit.largest_batch("streaming", CPU, TINY, limit=8) == 8


@pytest.mark.parametrize(("most", "found"), [(3, 0), (4, 4), (40, 32)])
def test_largest_batch_is_the_last_that_fits(monkeypatch, most, found):
    def try_steps(form, device, workload):
        if workload.batch > most:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(gpu_fit, "_try_steps", try_steps)
    assert gpu_fit.largest_batch("plain", CPU, TINY) == found


@pytest.mark.parametrize(
    ("run", "passed"),
    [
        (PresetRun("a", 1, said="no"), [False]),
        (PresetRun("a", 0, "memory/peak_mib", 4095.0, 0.1, traces=2, memory_tags=5), [True, None, True]),
        (PresetRun("a", 0, "memory/peak_mib", 4097.0, 0.1, traces=0, memory_tags=5), [False, None, False]),
    ],
)
def test_a_preset_passes_within_the_cap_and_with_traces(monkeypatch, run, passed):
    monkeypatch.setattr(gpu_check, "PRESETS", ["one"])
    monkeypatch.setattr(gpu_check, "write_inputs", lambda _: None)
    monkeypatch.setattr(gpu_check, "run_preset", lambda *_: run)
    assert [check.passed for check in gpu_check.check_presets(4.0)] == passed


def test_parity_checks_every_form(monkeypatch):
    monkeypatch.setattr(gpu_check, "distance_to_cpu", lambda *_: 1e-6)
    monkeypatch.setattr(gpu_check, "distance_to_streaming", lambda *_: 1.0)
    checks = list(gpu_check.check_parity(CPU))
    assert [check.passed for check in checks] == [True] * len(FORMS) + [False, False]


@needs_gpu
def test_steps_are_timed_on_the_gpu():
    step = gpu_fit.time_steps("checkpointing", find_device(), TINY)
    assert step.milliseconds > 0
    assert step.peak_mib > 0


@needs_gpu
@pytest.mark.slow
def test_everything_passes_on_the_gpu():
    assert gpu_check.main([]) == 0
