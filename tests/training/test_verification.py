"""The memory passes checked on one batch: what holds, what fails, what it costs."""

import numpy as np
import pytest
import torch
from datasets import settings_of
from loops import MODEL, make_data

from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.data.batches import BatchBuilder
from ds_tft.errors import UserError
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.model_size import derive_size
from ds_tft.training.verification import Verification


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def verification(data, dtype=torch.float32, **settings):
    torch.manual_seed(0)
    size = derive_size(data.preprocessor, settings_of(model=MODEL | {"hidden_size": 64, "dropout": 0.3}))
    builder = BatchBuilder(data.table, data.preprocessor.window, data.preprocessor.target_scaler)
    batch = builder.build(data.windows["train"], np.arange(64)).to(torch.device("cpu"), dtype)
    model = TemporalFusionTransformer(size).to(dtype)
    return Verification(model, batch, DeepSpeedSettings.model_validate(settings))


def test_every_comparison_holds(data):
    found = list(verification(data).differences())
    assert [(each.form, each.reference, each.dtype) for each in found] == [
        ("streaming", "plain", torch.float32),
        ("streaming", "plain", torch.float64),
        ("recompute", "streaming", torch.float32),
        ("offload", "streaming", torch.float32),
        ("INT8 kept", "streaming", torch.float32),
    ]
    assert all(each.holds for each in found)
    streaming, exact, recompute, offload, compressed = found
    assert 0 < streaming.gradients <= 1e-6
    assert 0 < exact.gradients <= 1e-12
    assert recompute.gradients == offload.gradients == recompute.loss == offload.loss == 0
    assert recompute.dropout == 0.3
    assert 0 < compressed.gradients < 0.05
    assert compressed.bound is None


def test_half_precision_has_a_bound_of_its_own(data):
    found = next(verification(data, torch.bfloat16).differences())
    assert found.holds
    assert found.gradients > 1e-4


def test_a_pass_that_changes_gradients_fails(data, monkeypatch):
    def cut(block, *args, **kwargs):
        return block.forward(*(each.detach() if torch.is_tensor(each) else each for each in args), **kwargs)

    monkeypatch.setattr("ds_tft.memory.recomputed_block.RecomputedBlock.__call__", cut)
    found = {(each.form, each.dtype): each for each in verification(data).differences()}
    assert found["streaming", torch.float32].holds
    assert not found["recompute", torch.float32].holds
    assert found["recompute", torch.float32].loss == 0
    assert found["recompute", torch.float32].worst > 0.1


def test_costs_fall_from_form_to_form(data):
    plain, streaming, recompute, offload, compressed = verification(data).costs()
    assert plain.kept_bytes > streaming.kept_bytes > recompute.kept_bytes > offload.kept_bytes
    assert recompute.kept_bytes > compressed.kept_bytes
    assert [bool(each.host_bytes) for each in (plain, streaming, recompute, offload)] == [False] * 3 + [True]
    assert all(each.seconds > 0 for each in (plain, streaming, recompute, offload, compressed))
    assert plain.peak_bytes > streaming.peak_bytes


def test_named_blocks_are_the_ones_checked(data):
    checked = verification(data, ds_tft={"recompute": ("attention",)})
    assert [form.settings.ds_tft.recompute for form in checked.forms()] == [None, None, *[("attention",)] * 3]


def test_the_model_is_left_plain(data):
    checked = verification(data)
    list(checked.differences())
    checked.costs()
    assert not any("forward" in vars(module) for module in checked.model.modules())
    assert all(parameter.grad is None for parameter in checked.model.parameters())


def test_a_pass_that_finds_nothing_to_do_is_idle(data):
    checked = verification(data)
    few = type(checked.batch)(*(
        type(part)(*(each[:1] for each in part)) if isinstance(part, tuple) else part[:1] for part in checked.batch
    ))  # fmt: skip
    small = Verification(checked.model, few, checked.settings)
    idle = {each.form: each.idle for each in small.differences()}
    assert idle["recompute"] == ""
    assert "nothing was moved to host memory" in idle["offload"]
    assert idle["INT8 kept"]


def test_labels_without_weight_leave_nothing_to_compare(data):
    checked = verification(data)
    checked.batch = checked.batch._replace(weights=torch.zeros_like(checked.batch.weights))
    with pytest.raises(UserError, match=r"nothing to compare, got gradients of length nan"):
        next(checked.differences())
