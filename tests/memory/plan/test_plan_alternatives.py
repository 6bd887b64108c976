"""Which alternatives there are, and which of them is taken."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from plan_cases import BF16, COMPRESS, HOST_OPTIMIZER, OFFLOAD, PLAIN, RECOMPUTE, stage
from rich.console import Console

from ds_tft.config.deepspeed import read_deepspeed_settings
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.errors import ConfigError
from ds_tft.memory.plan.alternatives import (
    AS_GIVEN,
    Alternative,
    Change,
    changes_for,
    look_at_alternatives,
    recommend,
)
from ds_tft.memory.plan.fit import batch_of
from ds_tft.memory.plan.tables import alternatives_table
from ds_tft.model.inputs import ModelSize


def settings_of(*changes: str) -> DeepSpeedSettings:
    return read_deepspeed_settings(None, [f"deepspeed.{change}" for change in changes])[0]


def made(name: str, largest: int | None, rank: int, *, exact: bool = True) -> Alternative:
    found = None if largest is None else SimpleNamespace(batch=SimpleNamespace(micro_batch=largest))
    change = Change(name=name, settings=DeepSpeedSettings(), rank=rank, exact=exact)
    return Alternative(change=change, plan=SimpleNamespace(), largest=found)


@pytest.mark.parametrize("on_cuda", [True, False])
@pytest.mark.parametrize(
    "given",
    [(), (PLAIN,), (RECOMPUTE,), (OFFLOAD,), (COMPRESS,), (BF16,), (HOST_OPTIMIZER,), (stage(0),), (PLAIN, stage(3))],
    ids=str,
)  # fmt: skip
def test_every_alternative_is_a_valid_configuration(given, on_cuda):
    changes = changes_for(settings_of(*given), on_cuda=on_cuda)
    assert changes[0].name == AS_GIVEN
    assert len({change.name for change in changes}) == len(changes)
    for change in changes:
        complete = change.settings.model_dump_json(exclude_unset=True)
        assert DeepSpeedSettings.model_validate_json(complete) == change.settings
        if change.name != AS_GIVEN:
            assert change.settings != settings_of(*given)
            assert change.cost


class LimitedPlanner:
    """Plans no more than some windows at a time, and nothing in bf16."""

    device, world_size = "cpu", 1

    def __init__(self, most: int) -> None:
        self.most = most

    def predict(self, _size, settings, batch):
        if batch.micro_batch > self.most or settings.precision == "bf16":
            raise MemoryError
        return SimpleNamespace(batch=batch, peak_bytes=batch.micro_batch)


def look(most: int) -> list[Alternative]:
    batch = batch_of(32, 64, 1)
    return list(look_at_alternatives(LimitedPlanner(most), ModelSize(), settings_of(), batch, 1000))


def test_an_alternative_may_be_too_large_to_plan():
    found = {each.change.name: each for each in look(32)}
    assert found["bf16"].plan is found["bf16"].largest is None
    assert found[AS_GIVEN].largest.batch.micro_batch == 32
    table = Console(width=200)
    with table.capture() as captured:
        table.print(alternatives_table(list(found.values()), batch_of(32, 64, 1), 1000, plain=True))
    line = next(line for line in captured.get().splitlines() if line.startswith("| bf16"))
    assert [cell.strip() for cell in line.split("|")[2:5]] == ["too large to plan", "no", "none"]


def test_what_is_given_must_be_possible_to_plan():
    with pytest.raises(ConfigError, match="too little memory to plan it, got micro-batch 32; give fewer"):
        look(16)


def test_a_gpu_has_more_of_them():
    names = [change.name for change in changes_for(settings_of(), on_cuda=True)]
    assert names == [
        "as given",
        "ZeRO stage 0",
        "checkpointing",
        "checkpointing, inputs on the host",
        "checkpointing, inputs as INT8",
        "bf16",
        "optimizer on the host",
        "checkpointing, inputs on the host + bf16",
        "checkpointing, inputs on the host + optimizer on the host",
        "checkpointing, inputs on the host + bf16 + optimizer on the host",
    ]
    names = [change.name for change in changes_for(settings_of(), on_cuda=False)]
    assert names == [
        "as given",
        "ZeRO stage 0",
        "checkpointing",
        "checkpointing, inputs as INT8",
        "bf16",
        "checkpointing + bf16",
    ]


def test_what_is_on_already_can_be_taken_off():
    changes = {change.name: change for change in changes_for(settings_of(OFFLOAD), on_cuda=True)}
    assert not changes["no checkpointing"].settings.recomputes
    assert "checkpointing" not in changes


@pytest.mark.parametrize("given", [(stage(0),), (BF16,), (HOST_OPTIMIZER,)], ids=str)
def test_stage_0_is_for_fp32_without_offload(given):
    assert not [each for each in changes_for(settings_of(*given), on_cuda=True) if "stage 0" in each.name]
    many = changes_for(settings_of(), on_cuda=True, world_size=2)
    assert not [each for each in many if "stage 0" in each.name]


def test_bf16_comes_with_stage_1():
    changes = {change.name: change for change in changes_for(settings_of(stage(0)), on_cuda=False)}
    assert changes["bf16"].settings.zero_optimization.stage == 1


@pytest.mark.parametrize(
    ("alternatives", "chosen"),
    [
        ([made("a", 32, 0), made("b", 64, 1)], "a"),
        ([made("a", 8, 0), made("b", 32, 4), made("c", 64, 2)], "c"),
        ([made("a", 8, 3), made("b", 16, 4), made("c", None, 0)], "b"),
        ([made("a", 8, 3), made("b", 32, 0, exact=False)], "a"),
        ([made("a", None, 0), made("b", 32, 5, exact=False)], "b"),
        ([made("a", None, 0)], None),
    ],
    ids=["as given", "keeps the micro-batch", "largest", "exact", "not exact", "nothing"],
)
def test_the_cheapest_that_fits_is_taken(alternatives, chosen):
    found = recommend(alternatives, micro_batch=32)
    assert (found.change.name if found else None) == chosen
