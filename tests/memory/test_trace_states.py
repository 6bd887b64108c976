from __future__ import annotations

import pytest
import torch
from recompute_cases import build, draw
from trace_cases import CPU, FLOAT, Chain, engine_of

from ds_tft.memory.trace.states import engine_states
from ds_tft.training.engine import build_engine


def test_a_plain_optimizer():
    engine = engine_of(Chain(100))
    assert engine_states(engine, CPU).total == 100 * FLOAT
    engine.module(torch.ones(100)).sum().backward()
    engine.optimizer.step()
    states = engine_states(engine, CPU)
    assert (states.parameters, states.gradients, states.optimizer) == (400, 400, 400)


def test_states_elsewhere_do_not_count():
    assert engine_states(engine_of(Chain(100)), torch.device("cuda", 0)).total == 0


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(("stage", "bf16"), [(0, False), (1, False), (2, False), (1, True), (2, True)])
def test_what_deepspeed_holds_before_an_update(stage, bf16):
    """Weights and gradients in the model's type; two moments in fp32; fp32 weights, in fp32 as well."""
    engine = build_engine(
        build(streams=True),
        {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_clipping": 0.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "bf16": {"enabled": bf16},
            "zero_optimization": {"stage": stage, "reduce_bucket_size": 2000, "allgather_bucket_size": 2000},
        },
    )
    dtype = torch.bfloat16 if bf16 else torch.float32
    for step in range(2):
        inputs = draw(seed=step).to(CPU, dtype)
        engine.backward(engine(inputs).float().square().mean())
        if step == 0:
            engine.step()
    weights = sum(parameter.nbytes for parameter in engine.module.parameters())
    numbers = sum(parameter.numel() for parameter in engine.module.parameters())
    states = engine_states(engine, CPU)
    engine.destroy()
    small = 4096  # counts of steps, padding, and pieces of a bucket
    assert 0 <= states.parameters - weights < small
    assert 0 <= states.gradients - weights < small + 2 * 2000 * FLOAT
    copies = 3 if stage else 2
    assert 0 <= states.optimizer - copies * numbers * FLOAT < small
