"""8-bit Adam in plans: the bytes of its states and of its update, and what is not offered with it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from types import SimpleNamespace

import pytest
from plan_cases import BF16, Case, measure_apart, stage

from ds_tft.config.batch import BatchSizes
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.memory.plan.alternatives import changes_for
from ds_tft.memory.plan.memory_plan import MemoryPlan
from ds_tft.memory.plan.processes import Planner, prepare_process
from ds_tft.memory.plan.remedies import find_remedies
from ds_tft.model.inputs import ModelSize

pytest.importorskip("bitsandbytes")

ADAM8BIT = 'optimizer={"type":"AdamW8bit"}'
SMALL = Case(hidden=64, batch=4, observed=20, encoder=20)  # 0.9 M weights
CASES = (
    replace(SMALL, changes=(ADAM8BIT, stage(0)), categories=True),
    replace(SMALL, changes=(ADAM8BIT, stage(1))),
    replace(SMALL, changes=(ADAM8BIT, stage(2), BF16), accumulation=2),
)
LARGE = Case(hidden=128, batch=8, observed=208, encoder=20, changes=(ADAM8BIT, stage(1)))


@pytest.fixture(scope="module")
def on_cpu() -> Iterator[Planner]:
    with Planner("cpu", 1, threads=1) as planner:
        yield planner


@pytest.fixture(scope="module")
def laboratory() -> Iterator[ProcessPoolExecutor]:
    """A process in which engines really train."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=prepare_process, initargs=(1,)) as pool:
        yield pool


def plan(planner: Planner, *changes: str) -> MemoryPlan:
    case = replace(SMALL, changes=changes)
    return planner.predict(case.size, case.settings, case.sizes)


def check(case: Case, planner: Planner, laboratory: ProcessPoolExecutor) -> None:
    measuring = laboratory.submit(measure_apart, case)
    predicted = planner.predict(case.size, case.settings, case.sizes)
    assert predicted.phase_peaks == pytest.approx(measuring.result(), rel=0.01)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_its_peaks_are_predicted(case, on_cpu, laboratory):
    check(case, on_cpu, laboratory)


@pytest.mark.slow
def test_the_peaks_of_a_large_model_are_predicted(on_cpu, laboratory):
    check(LARGE, on_cpu, laboratory)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_its_states_take_6_bytes_per_parameter_less(on_cpu, number):
    adamw, adam8bit = (plan(on_cpu, *changes, stage(number)) for changes in ((), (ADAM8BIT,)))
    parameters = adamw.states.weights // 4
    saved = (adamw.states.optimizer - adam8bit.states.optimizer) / parameters
    assert saved == pytest.approx(8 - 2.03, abs=0.4 if number == 0 else 0.01)
    assert adam8bit.states.weights == adamw.states.weights
    assert adam8bit.peak_bytes < adamw.peak_bytes


@pytest.mark.slow
def test_on_a_gpu_its_update_needs_nothing_in_between(on_cpu):
    with Planner("cuda", 1, threads=1) as on_cuda:
        found = plan(on_cuda, ADAM8BIT)
        adamw = plan(on_cuda)
    assert found.states.optimizer < adamw.states.optimizer - 5 * adamw.states.weights // 4
    assert found.phase_peaks["optimizer"] < adamw.phase_peaks["optimizer"] - 5 * adamw.states.weights // 4


@pytest.mark.parametrize("on_cuda", [True, False])
def test_alternatives_can_be_carried_out(on_cuda):
    settings = replace(SMALL, changes=(ADAM8BIT,)).settings
    changes = changes_for(settings, on_cuda=on_cuda)
    assert len(changes) > 3
    assert not [change.name for change in changes if change.settings.zero_optimization.offloads]
    (without,) = (change for change in changes if change.name == "ZeRO stage 0")
    assert not without.exact, "blocks are others, and small tensors have fp32 states"


class RecordingPlanner:
    """Keeps what it is asked for."""

    device, world_size = "cuda", 1

    def __init__(self) -> None:
        self.asked: list[DeepSpeedSettings] = []

    def predict(self, size: ModelSize, settings: DeepSpeedSettings, batch: BatchSizes) -> SimpleNamespace:
        self.asked.append(settings)
        return SimpleNamespace(peak_bytes=1, batch=batch)


@pytest.mark.parametrize(("changes", "offered"), [((), True), ((ADAM8BIT,), False)])
def test_no_remedy_moves_it_to_the_host(changes, offered):
    planner, case = RecordingPlanner(), replace(SMALL, changes=changes)
    now = SimpleNamespace(peak_bytes=2)
    assert find_remedies(planner, case.size, case.settings, case.sizes, now, None)
    assert any(settings.zero_optimization.offloads for settings in planner.asked) is offered
