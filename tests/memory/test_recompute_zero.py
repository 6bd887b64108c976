"""Recomputing under DeepSpeed engines: the same training, bit by bit."""

from __future__ import annotations

import pytest
import torch
from recompute_cases import EVERY_BLOCK, assert_same, build, draw
from torch import Tensor

from ds_tft.memory.recompute import attach_recompute
from ds_tft.memory.recompute_settings import RecomputeSettings
from ds_tft.training.engine import build_engine

pytestmark = pytest.mark.usefixtures("process_group")


def trained(
    stage: int, settings: RecomputeSettings | None, *, streams: bool, bf16: bool = False
) -> dict[str, Tensor]:
    """Weights after three updates of two micro-batches each, with dropout."""
    model = build(streams=streams)
    report = None if settings is None else attach_recompute(model, settings)
    engine = build_engine(
        model,
        {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 0.0,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": bf16},
            "zero_optimization": {
                "stage": stage,
                "reduce_bucket_size": 2000,
                "allgather_bucket_size": 2000,
            },
        },
    )
    torch.manual_seed(3)
    dtype = torch.bfloat16 if bf16 else torch.float32
    for step in range(6):
        inputs = draw(seed=step, lengths=[6, 2, 4, 1 + step % 6]).to(torch.device("cpu"), dtype)
        engine.backward(engine(inputs).float().square().mean())
        engine.step()
    if report is not None:
        report.check_effect()
        assert report.recomputes() == 6 * len(EVERY_BLOCK)
    weights = {name: parameter.detach().clone() for name, parameter in engine.module.named_parameters()}
    engine.destroy()
    return weights


@pytest.mark.parametrize("streams", [False, True], ids=["plain", "streaming"])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_weights_are_bit_equal(stage, streams):
    """All blocks: the selections of history and future share an embedding."""
    before = {name: each.detach().clone() for name, each in build(streams=streams).named_parameters()}
    expected = trained(stage, None, streams=streams)
    assert min(float((expected[name] - before[name]).abs().max()) for name in before) > 0
    for offload in (False, True):
        settings = RecomputeSettings(blocks=EVERY_BLOCK, offload=offload, min_bytes=1)
        assert_same(trained(stage, settings, streams=streams), expected)


def test_weights_are_bit_equal_in_bf16():
    expected = trained(1, None, streams=True, bf16=True)
    settings = RecomputeSettings(blocks=EVERY_BLOCK, offload=True, min_bytes=1)
    assert_same(trained(1, settings, streams=True, bf16=True), expected)


@pytest.mark.parametrize(("stage", "bf16"), [(0, False), (1, False), (2, False), (1, True)])
def test_with_inputs_as_int8_training_repeats_and_stays_close(stage, bf16):
    settings = RecomputeSettings(blocks=EVERY_BLOCK, compress=True, min_bytes=1)
    compressed = trained(stage, settings, streams=True, bf16=bf16)
    assert_same(trained(stage, settings, streams=True, bf16=bf16), compressed)
    exact = trained(stage, None, streams=True, bf16=bf16)
    start = build(streams=True).state_dict()
    moved = torch.cat([(exact[name].float() - start[name]).flatten() for name in exact])
    off = torch.cat([(compressed[name] - exact[name]).float().flatten() for name in exact])
    assert 0 < float(off.norm() / moved.norm()) < 0.05
