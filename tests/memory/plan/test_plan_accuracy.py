"""Predictions against what DeepSpeed engines take: live tensor bytes, states included and excluded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from plan_cases import CASES, Case, measure

from ds_tft.memory.plan.processes import Planner

pytestmark = pytest.mark.usefixtures("process_group")


@pytest.fixture(scope="module")
def planners() -> Iterator[dict[int, Planner]]:
    """One for each number of threads."""
    with Planner("cpu", 1, threads=1) as one, Planner("cpu", 1, threads=2) as two:
        yield {1: one, 2: two}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_peak_is_predicted(case: Case, planners: dict[int, Planner]):
    plan = planners[case.threads].predict(case.size, case.settings, case.sizes)
    measured = measure(case)
    states = plan.states.total
    print(
        {
            n: (round(plan.phase_peaks[n] / 2**20, 2), round(measured.phases[n] / 2**20, 2))
            for n in measured.phases
        },
        states / 2**20,
    )
    assert plan.peak_bytes == pytest.approx(measured.peak, rel=0.05)
    assert plan.peak_bytes - states == pytest.approx(measured.peak - states, rel=0.10)
    for phase, peak in measured.phases.items():
        assert plan.phase_peaks[phase] == pytest.approx(peak, rel=0.05), phase
