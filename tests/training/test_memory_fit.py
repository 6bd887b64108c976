"""The memory budget: micro-batches that are chosen for it, and runs that do not fit."""

import json

import pytest
from datasets import ROLES, WINDOW, panel, write
from loops import MODEL, PLACE

from ds_tft.errors import ConfigError
from ds_tft.training.arguments import TrainArguments
from ds_tft.training.memory_fit import fit_memory, plan_fit
from ds_tft.training.setup import set_up

AUTO = ("deepspeed.gradient_accumulation_steps=auto",)
MIB = 2**20


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    config = {"data": ROLES, "window": WINDOW, "model": MODEL | {"hidden_size": 32}}
    (folder / "run.json").write_text(json.dumps(config))
    write(folder / "panel.parquet", panel())
    return folder


def settle(files, *overrides, **arguments):
    given = {"parquet": str(files / "panel.parquet"), "config": str(files / "run.json"), "batch_size": 64}
    return set_up(TrainArguments(**(given | {"overrides": overrides} | arguments)), PLACE)


def budget(mib):
    return f"deepspeed.ds_tft.memory_budget_gib={mib / 1024}"


@pytest.fixture(scope="module")
def whole(files):
    """The plan of an update that is one micro-batch."""
    return plan_fit(settle(files, *AUTO), 2**40).plan


def test_without_a_budget_nothing_is_planned(files):
    setup, said = settle(files, *AUTO), []
    assert fit_memory(setup, said.append) is setup
    assert not said


def test_all_of_it_fits_a_large_budget(files):
    said = []
    setup = fit_memory(settle(files, *AUTO, budget(1024)), said.append)
    assert (setup.batch.micro_batch, setup.batch.accumulation, setup.batch.global_batch) == (64, 1, 64)
    assert said[0].startswith("micro-batch: auto -> 64, accumulation 1: the largest planned to fit 1.000 GiB")
    assert said[-1] == "memory budget: 1.000 GiB; a CPU is planned with it, not held to it"


@pytest.mark.slow
def test_the_micro_batch_is_the_largest_that_fits(files, whole):
    limit = int(0.7 * whole.peak_bytes)
    fit = plan_fit(settle(files, *AUTO), limit)
    assert 1 <= fit.batch.micro_batch < 64
    assert fit.batch.micro_batch * fit.batch.accumulation == fit.batch.global_batch == 64
    assert fit.plan.peak_bytes <= limit
    larger = settle(files, f"deepspeed.train_micro_batch_size_per_gpu={2 * fit.batch.micro_batch}",
                    "deepspeed.gradient_accumulation_steps=auto")  # fmt: skip
    with pytest.raises(
        ConfigError, match=f"planned at micro-batch {2 * fit.batch.micro_batch}; set one of: "
    ) as caught:
        plan_fit(larger, limit)
    assert f"--set deepspeed.train_micro_batch_size_per_gpu={fit.batch.micro_batch} " in str(caught.value)


@pytest.mark.slow
def test_a_given_micro_batch_is_checked_and_kept(files, whole):
    setup = settle(files, "deepspeed.train_micro_batch_size_per_gpu=16")
    assert plan_fit(setup, whole.peak_bytes).batch is setup.batch
    with pytest.raises(ConfigError, match=r"ds_tft.memory_budget_gib: .* is not enough, got .* planned at"):
        plan_fit(setup, MIB)


def test_what_never_fits_says_what_to_change(files):
    with pytest.raises(ConfigError, match=r"at micro-batch 1; set one of: .*model.hidden_size=16"):
        fit_memory(settle(files, *AUTO, budget(1)), print)
