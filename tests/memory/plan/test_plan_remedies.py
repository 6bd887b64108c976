"""What is said where training does not fit."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from plan_cases import Case

from ds_tft.memory.plan.remedies import Remedy, find_remedies, remedies_text

MIB = 2**20
CASE = Case(hidden=64, batch=32)


def remedy(text: str, mebibytes: int) -> Remedy:
    return Remedy(text=text, plan=SimpleNamespace(peak_bytes=mebibytes * MIB))


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (None, "set one of: a (1.000 MiB planned), b (3.000 MiB planned)"),
        (4 * MIB, "set one of: a (1.000 MiB planned), b (3.000 MiB planned)"),
        (2 * MIB, "set one of: a (1.000 MiB planned)"),
        (MIB // 2, "none of these fits alone: a (1.000 MiB planned), b (3.000 MiB planned)"),
    ],
)
def test_what_fits_is_named(budget, text):
    assert remedies_text([remedy("a", 1), remedy("b", 3)], budget) == text


def test_without_remedies_the_model_is_too_large():
    assert remedies_text([], MIB) == remedies_text([]) == "lower model.hidden_size or window.encoder_length"


@dataclass
class MadeUpPlanner:
    """A byte for each window and unit; recomputation cannot be planned."""

    device: str = "cpu"

    def predict(self, size, settings, batch):
        if settings.recomputes:
            raise MemoryError
        return SimpleNamespace(peak_bytes=batch.micro_batch * size.hidden_size)


def test_changes_that_cannot_be_planned_are_no_remedies():
    planner = MadeUpPlanner()
    now = planner.predict(CASE.size, CASE.settings, CASE.sizes)
    found = find_remedies(planner, CASE.size, CASE.settings, CASE.sizes, now, None)
    assert [each.plan.peak_bytes for each in found] == [now.peak_bytes // 2] * 2
    assert "checkpointing" not in remedies_text(found)
    assert "model.hidden_size=32" in remedies_text(found)
