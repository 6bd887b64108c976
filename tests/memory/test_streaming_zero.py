"""Streaming under DeepSpeed engines: the same training as the plain model."""

from __future__ import annotations

import copy

import pytest
import torch
from test_streaming_model import SIZES, draw

from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.training.engine import build_engine

pytestmark = pytest.mark.usefixtures("process_group")

SIZE = SIZES["everything"]


def trained_weights(
    model: TemporalFusionTransformer, stage: int, accumulation: int
) -> dict[str, torch.Tensor]:
    """Five updates of plain SGD: an optimizer that normalises gradients would hide one that comes twice."""
    engine = build_engine(
        model,
        {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": accumulation,
            "gradient_clipping": 0.0,
            "optimizer": {"type": "SGD", "params": {"lr": 0.005, "momentum": 0.9}},
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {
                "stage": stage,
                "reduce_bucket_size": 2000,
                "allgather_bucket_size": 2000,
            },
        },
    )
    for step in range(5 * accumulation):
        inputs = draw(SIZE, 4, torch.float32, [6, 2, 4, 1 + step % 6])
        engine.backward(engine(inputs).square().mean())
        engine.step()
    weights = {name: parameter.detach().clone() for name, parameter in engine.module.named_parameters()}
    engine.destroy()
    return weights


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_training_gives_the_weights_of_the_plain_model(stage, accumulation):
    torch.manual_seed(0)
    plain = TemporalFusionTransformer(SIZE)
    streaming = copy.deepcopy(plain)
    stream_variable_selection(streaming)
    before = {name: parameter.detach().clone() for name, parameter in plain.named_parameters()}
    expected = trained_weights(plain, stage, accumulation)
    actual = trained_weights(streaming, stage, accumulation)
    assert max(float((expected[name] - before[name]).abs().max()) for name in before) > 1e-2
    errors = {name: float((actual[name] - expected[name]).abs().max()) for name in expected}
    assert max(errors.values()) < 1e-6, errors
