"""What `bench_peers.py` is given: any sizes, equal losses from all builders."""

import peer_module
import pytest
import torch

CFG = {
    "hidden": 8,
    "heads": 2,
    "dropout": 0.0,
    "lstm_layers": 2,
    "enc_len": 7,
    "horizon": 3,
    "n_static": 2,
    "n_observed": 6,
    "n_known": 3,
    "quantiles": (0.1, 0.5),
    "batch": 4,
    "device": "cpu",
    "seed": 0,
}
MODULES = ("build_plain", "build", "build_checkpointed", "build_offloaded")


def draw_batch():
    generator = torch.Generator().manual_seed(1)
    shapes = {"static": (4, 2), "observed": (4, 7, 6), "known": (4, 10, 3), "target": (4, 3)}
    return {name: torch.randn(*shape, generator=generator) for name, shape in shapes.items()}


def benchmark_loss(prediction, target):
    """The loss as the benchmark defines it."""
    quantiles = torch.tensor(CFG["quantiles"])
    error = target.unsqueeze(-1) - prediction
    return torch.maximum(quantiles * error, (quantiles - 1) * error).mean()


def train_module(name, steps=3):
    batch, module = draw_batch(), getattr(peer_module, name)(CFG)
    module.train()
    inputs, optimizer = module.prepare_batch(batch), torch.optim.Adam(module.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        prediction = module(inputs)
        assert prediction.shape == (4, 3, 2)
        loss = benchmark_loss(prediction, batch["target"])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("name", MODULES[1:])
def test_modules_train_as_the_plain_one(name):
    assert train_module(name) == pytest.approx(train_module("build_plain"), rel=1e-5)


def test_the_engine_trains_as_the_benchmark_does(process_group):
    engine = peer_module.build_engine(CFG)
    engine.train()
    batch = engine.prepare_batch(draw_batch())
    losses = [float(engine.bench_step(batch)) for _ in range(3)]
    assert losses == pytest.approx(train_module("build_plain"), rel=1e-5)


def test_the_engine_shows_what_it_holds(process_group):
    engine = peer_module.build_engine(CFG)
    engine.bench_step(engine.prepare_batch(draw_batch()))
    count = sum(parameter.numel() for parameter in engine.parameters())
    assert sum(copy.numel() for copy in engine.buffers()) == pytest.approx(count, rel=0.01)
    assert (
        sum(value.numel() for state in engine.optimizer.state.values() for value in state.values())
        >= 2 * count
    )


def test_dropout_can_be_on(process_group):
    module = peer_module.build({**CFG, "dropout": 0.5}).train()
    inputs = module.prepare_batch(draw_batch())
    assert not torch.equal(module(inputs), module(inputs))
