"""The search for the largest micro-batch, with a made-up peak."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from ds_tft.config.batch import BatchSizes
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.errors import ConfigError
from ds_tft.memory.plan.fit import batch_of, divisors, search_micro_batch
from ds_tft.model.inputs import ModelSize


@dataclass
class MadeUpPlanner:
    """100 bytes and `slope` for each window, in steps of `step` windows."""

    world_size: int = 1
    slope: int = 10
    step: int = 1
    asked: list[BatchSizes] = field(default_factory=list)

    def predict(self, _size, _settings, batch):
        self.asked.append(batch)
        return self.plan(batch.micro_batch, batch)

    def plan(self, micro_batch, batch=None):
        steps = -(-micro_batch // self.step)
        return SimpleNamespace(
            batch=batch or batch_of(micro_batch, 64, 1), peak_bytes=100 + self.slope * steps
        )


def search(planner, budget, global_batch=64, known=()):
    return search_micro_batch(planner, ModelSize(), DeepSpeedSettings(), global_batch, budget, known)


@pytest.mark.parametrize("step", [1, 4, 64])
@pytest.mark.parametrize("global_batch", [1, 7, 64, 360])
@pytest.mark.parametrize("budget", [90, 105, 111, 260, 420, 10_000])
def test_the_largest_that_fits_is_found(step, global_batch, budget):
    planner = MadeUpPlanner(step=step)
    expected = [n for n in divisors(global_batch, 1) if planner.plan(n).peak_bytes <= budget]
    found = search(planner, budget, global_batch)
    assert (found.batch.micro_batch if found else None) == (max(expected) if expected else None)


def test_it_takes_few_predictions():
    planner = MadeUpPlanner()
    assert search(planner, 100 + 10 * 40, 360).batch.micro_batch == 40
    assert len(planner.asked) <= 4


def test_one_micro_batch_may_fit_where_two_do_not():
    """Accumulation keeps gradients: here 1,000 bytes of them."""

    class Accumulating(MadeUpPlanner):
        def plan(self, micro_batch, batch=None):
            plan = super().plan(micro_batch, batch)
            plan.peak_bytes += 1000 * (plan.batch.accumulation > 1)
            return plan

    planner = Accumulating()
    assert search(planner, 800, known=[planner.plan(32)]).batch.micro_batch == 64
    assert search(planner, 700) is None


def test_what_is_known_is_not_asked_again():
    planner = MadeUpPlanner()
    assert search(planner, 10_000, known=[planner.plan(64)]).batch.micro_batch == 64
    assert not planner.asked


def test_the_global_batch_stays():
    planner = MadeUpPlanner(world_size=2)
    found = search(planner, 100 + 10 * 9).batch
    assert (found.micro_batch, found.accumulation, found.global_batch, found.world_size) == (8, 4, 64, 2)
    assert all(each.micro_batch * each.accumulation * 2 == 64 for each in planner.asked)


@pytest.mark.parametrize("budget", [90, 115, 260, 420, 740, 10_000])
@pytest.mark.parametrize("possible", [0, 1, 5, 16, 63])
def test_what_is_too_large_to_plan_does_not_fit(possible, budget):
    class Limited(MadeUpPlanner):
        def predict(self, size, settings, batch):
            plan = super().predict(size, settings, batch)
            if batch.micro_batch > possible:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate much")
            return plan

    planner = Limited()
    expected = [n for n in divisors(64, 1) if n <= possible and planner.plan(n).peak_bytes <= budget]
    found = search(planner, budget)
    assert (found.batch.micro_batch if found else None) == (max(expected) if expected else None)
    assert len(planner.asked) <= len(divisors(64, 1))


def test_other_errors_of_a_prediction_come_through():
    class Failing(MadeUpPlanner):
        def predict(self, size, settings, batch):
            raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        search(Failing(), 1000)


@pytest.mark.parametrize("share", [1, 2, 36, 97, 360])
def test_divisors_are_all_of_them(share):
    assert divisors(3 * share, 3) == [count for count in range(1, share + 1) if share % count == 0]


@pytest.mark.parametrize(("global_batch", "advice"), [(65, "use 64"), (1, "use 2")])
def test_a_global_batch_that_does_not_divide_is_an_error(global_batch, advice):
    with pytest.raises(ConfigError, match=f"multiple of 2 processes, got {global_batch}; {advice}"):
        search(MadeUpPlanner(world_size=2), 1000, global_batch)
