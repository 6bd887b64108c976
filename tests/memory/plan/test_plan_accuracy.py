"""Predictions against what DeepSpeed engines take: live tensor bytes, states included and excluded."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from plan_cases import CASES, LARGE, MORE, Case, measure_apart

from ds_tft.memory.plan.processes import Planner, prepare_process


@pytest.fixture(scope="module")
def planners() -> Iterator[dict[int, Planner]]:
    """One for each number of threads."""
    with Planner("cpu", 1, threads=1) as one, Planner("cpu", 1, threads=2) as two:
        yield {1: one, 2: two}


@pytest.fixture(scope="module")
def laboratory() -> Iterator[ProcessPoolExecutor]:
    """A process in which engines really train."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=prepare_process, initargs=(1,)) as pool:
        yield pool


def check(case: Case, planners: dict[int, Planner], laboratory: ProcessPoolExecutor) -> None:
    measuring = laboratory.submit(measure_apart, case)
    plan = planners[case.threads].predict(case.size, case.settings, case.sizes)
    measured = measuring.result()
    peak, states = max(measured.values()), plan.states.total
    assert plan.peak_bytes == pytest.approx(peak, rel=0.05)
    assert plan.peak_bytes - states == pytest.approx(peak - states, rel=0.05)
    assert plan.phase_peaks == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_peak_is_predicted(case, planners, laboratory):
    check(case, planners, laboratory)


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE, ids=str)
def test_the_peak_of_more_configurations_is_predicted(case, planners, laboratory):
    check(case, planners, laboratory)


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_the_peak_of_a_large_model_is_predicted(case, planners, laboratory):
    check(case, planners, laboratory)
