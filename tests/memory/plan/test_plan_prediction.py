"""What the two functions that others call return."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from plan_cases import BF16, HOST_OPTIMIZER, OFFLOAD, RECOMPUTE, Case, stage

from ds_tft.errors import ConfigError
from ds_tft.memory.out_of_memory import is_out_of_memory
from ds_tft.memory.plan.as_on_cuda import CONTEXT_BYTES
from ds_tft.memory.plan.fit import search_micro_batch
from ds_tft.memory.plan.prediction import largest_micro_batch, predict_memory
from ds_tft.memory.plan.processes import Planner

CASE = Case(hidden=32, batch=32)


@pytest.fixture(scope="module")
def on_cuda():
    with Planner("cuda", 1, threads=1) as planner:
        yield planner


@pytest.fixture(scope="module")
def on_cpu():
    with Planner("cpu", 1, threads=1) as planner:
        yield planner


def plan(planner, *changes, **more):
    case = Case(**{"hidden": 32, "batch": 32, "changes": changes} | more)
    return planner.predict(case.size, case.settings, case.sizes)


def test_this_process_stays_as_it_is():
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    plan = predict_memory(CASE.size, CASE.settings, CASE.sizes, torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert plan.extras is None
    assert plan.peak_bytes == plan.tensor_peak == max(plan.phase_peaks.values()) > plan.states.total > 0
    text = "\n".join(plan.lines())
    assert "on the CPU at 32 windows per update = micro-batch 32" in text
    assert "estimates" not in text


def test_the_estimates_of_a_gpu_are_named(on_cuda):
    found = plan(on_cuda)
    assert found.extras is not None
    assert found.extras.context == CONTEXT_BYTES
    assert found.peak_bytes == found.tensor_peak + found.extras.total
    assert "estimates beside tensors: CUDA context 450.0 MiB" in found.lines()[-1]


def test_offloading_moves_bytes_from_the_gpu_to_the_host(on_cuda):
    plain, recomputed = plan(on_cuda), plan(on_cuda, RECOMPUTE)
    offloaded, moved = plan(on_cuda, OFFLOAD), plan(on_cuda, HOST_OPTIMIZER)
    assert plain.host_bytes == recomputed.host_bytes == 0
    assert plain.kept > recomputed.kept > offloaded.kept > 0
    assert offloaded.host_kept > 0
    assert moved.host_optimizer >= 3 * moved.states.weights
    assert moved.states.optimizer == 0
    assert moved.states.total < plain.states.total / 2
    assert moved.phase_peaks["optimizer"] < plain.phase_peaks["optimizer"]


def test_half_precision_needs_no_gpu_to_plan(on_cuda):
    assert plan(on_cuda, "fp16.enabled=true") == plan(on_cuda, BF16)


def test_more_windows_take_more(on_cuda):
    sizes = [plan(on_cuda, batch=batch).peak_bytes for batch in (8, 32, 128)]
    assert sizes == sorted(set(sizes))


def test_accumulation_keeps_its_micro_batches_on_a_cpu(on_cpu):
    few, many = (plan(on_cpu, batch=4, accumulation=count) for count in (2, 50))
    assert many.inputs == 25 * few.inputs
    assert many.peak_bytes - few.peak_bytes == 24 * few.inputs


def test_processes_share_the_optimizer_state(on_cpu):
    one = plan(on_cpu)
    with Planner("cpu", 2, threads=1) as planner:
        two = planner.predict(CASE.size, CASE.settings, replace(CASE.sizes, world_size=2, micro_batch=16))
    assert two.states.optimizer == pytest.approx(one.states.optimizer / 2, rel=0.01)
    assert two.states.weights == pytest.approx(one.states.weights, rel=0.01)


@pytest.mark.slow
def test_the_largest_micro_batch_fits_and_the_next_does_not(on_cpu):
    case = Case(hidden=32, batch=16, accumulation=4, changes=(stage(0),))
    peak = on_cpu.predict(case.size, case.settings, case.sizes).peak_bytes
    assert search_micro_batch(on_cpu, case.size, case.settings, 64, peak).batch.micro_batch == 16
    assert search_micro_batch(on_cpu, case.size, case.settings, 64, 1000) is None
    found = largest_micro_batch(
        case.size, case.settings, global_batch=64, world_size=1, device="cpu", budget_bytes=peak - 1
    )
    assert found == 8


def test_more_than_any_machine_has_is_too_little_memory(on_cpu):
    for hidden in (10**6, 10**12, 10**20):
        with pytest.raises((RuntimeError, MemoryError)) as caught:
            plan(on_cpu, hidden=hidden)
        assert is_out_of_memory(caught.value)


@pytest.mark.slow
def test_a_planner_goes_on_when_its_process_is_ended():
    with Planner("cpu", 1, threads=1) as planner:
        before = plan(planner)
        (process,) = planner._pool._processes.values()
        process.kill()
        process.join()
        with pytest.raises(MemoryError, match="the process that plans was ended"):
            plan(planner)
        assert plan(planner) == before


@pytest.mark.slow
def test_deepspeed_prints_nothing(capfd):
    with Planner("cuda", 1, threads=1) as planner:
        for changes in ((BF16,), ("fp16.enabled=true", "steps_per_print=1", "wall_clock_breakdown=true")):
            plan(planner, *changes, "log_level=info")
    out, err = capfd.readouterr()
    assert not out
    assert not err


def test_errors_of_the_settings_come_through(on_cpu):
    with pytest.raises(ConfigError, match="did you mean 'lstm_encoder'"):
        plan(on_cpu, 'ds_tft.recompute=["lstm_encodr"]')
