"""Inputs of recomputed blocks kept as INT8: what is kept, and what it does to gradients."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from recompute_cases import EVERY_BLOCK, SIZE, Owner, assert_same, build, draw, train
from torch import Tensor, nn

from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.errors import ConfigError
from ds_tft.formatting import format_bytes
from ds_tft.memory.checkpoint_path import CheckpointPath
from ds_tft.memory.host_buffers import Layout
from ds_tft.memory.input_store import MIN_BYTES
from ds_tft.memory.int8_groups import GROUP, dequantise, quantise
from ds_tft.memory.meter import KeptForBackward
from ds_tft.memory.passes import attach_passes
from ds_tft.memory.recompute import attach_recompute
from ds_tft.memory.recompute_report import RecomputeReport
from ds_tft.memory.recompute_settings import RecomputeSettings

INT8 = RecomputeSettings(compress=True, min_bytes=1)
EVERY = replace(INT8, blocks=EVERY_BLOCK)
PER_VALUE = 1 + 2 / GROUP  # bytes


def as_kept(tensor: Tensor) -> Tensor:
    return dequantise(quantise(tensor).groups, Layout.of(tensor))


def attach(block: nn.Module, min_bytes: int = 1) -> tuple[Owner, RecomputeReport]:
    owner = Owner(block).train()
    return owner, attach_recompute(owner, replace(INT8, blocks=("block",), min_bytes=min_bytes))


def gradients(model: nn.Module, settings: RecomputeSettings | None) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of one step."""
    trained = train(model, settings, steps=1)
    return trained.losses[0], trained.gradients


def test_a_block_runs_again_at_what_was_kept():
    torch.manual_seed(0)
    block, x = nn.Sequential(nn.Linear(40, 8), nn.Tanh()), torch.randn(4, 40)
    twin = copy.deepcopy(block)
    owner, _ = attach(block)
    result = owner(x)
    assert torch.equal(result, twin(x))
    result.sum().backward()
    # What reaches the block's last operation is exact, and the block is differentiated at the kept input.
    twin(as_kept(x)).sum().backward()
    assert_same(dict_of_gradients(block), dict_of_gradients(twin))
    assert not torch.equal(as_kept(x), x)


def dict_of_gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


@pytest.mark.parametrize("streams", [False, True], ids=["plain", "streaming"])
def test_the_loss_is_exact_and_gradients_are_close(streams):
    model = build(streams=streams)
    loss, exact = gradients(model, None)
    for settings in (INT8, EVERY):
        compressed_loss, close = gradients(model, settings)
        assert compressed_loss == loss
        one, other = (torch.cat([each[name].flatten() for name in exact]) for each in (close, exact))
        assert 1e-4 < float((one - other).norm() / other.norm()) < 0.03
        assert float(torch.cosine_similarity(one, other, dim=0)) > 0.9995


def test_training_repeats_on_either_machinery_and_draws_what_it_drew_without():
    model = build(streams=True)
    plain = train(model, None)
    once = train(model, EVERY)
    for settings in (EVERY, replace(EVERY, path=CheckpointPath.OWN)):
        again = train(model, settings)
        assert again.losses == once.losses
        assert_same(again.weights, once.weights)
    assert torch.equal(once.random_numbers, plain.random_numbers)
    assert once.losses[0] == plain.losses[0]
    torch.testing.assert_close(torch.tensor(once.losses), torch.tensor(plain.losses), rtol=0.05, atol=0)


def test_deepspeeds_machinery_runs():
    assert INT8.chosen_path is CheckpointPath.DEEPSPEED


def test_meters_see_codes_and_scales_and_no_input():
    owner, report = attach(nn.Sequential(nn.Linear(64, 64), nn.Tanh()))
    x = torch.randn(100, 64)
    with KeptForBackward(owner.parameters()) as kept:
        result = owner(x * 2)
        assert kept.bytes == 100 * 64 * PER_VALUE
    assert report.compressed().bytes_after == 100 * 64 * PER_VALUE
    assert report.compressed().bytes_before == 100 * 64 * 4
    del result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_model_keeps_less(dtype):
    model, inputs = build(streams=True).to(dtype), draw(batch=8).to(torch.device("cpu"), dtype)

    def kept(settings: RecomputeSettings) -> int:
        twin = copy.deepcopy(model)
        attach_recompute(twin, settings)
        with KeptForBackward([*twin.parameters(), *inputs]) as held:
            loss = twin(inputs).sum()
            kept_bytes = held.bytes
        loss.backward()
        return kept_bytes

    ratio = {torch.float32: 0.5, torch.bfloat16: 0.75}[dtype]
    plain = kept(RecomputeSettings(blocks=EVERY_BLOCK))
    assert kept(EVERY) < ratio * plain


def test_what_is_no_large_floating_point_tensor_is_kept_exactly():
    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(GROUP))

        def forward(self, x: Tensor, small: Tensor, rows: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
            seen.append((x, small, rows, mask, weight))
            return (x[rows] * self.scale * weight).masked_fill(mask, 0.0).sum() + small.sum()

    seen: list[tuple[Tensor, ...]] = []
    owner, report = attach(Lookup(), min_bytes=MIN_BYTES)
    x = torch.randn(MIN_BYTES // 4 // GROUP, GROUP)
    rows, mask = torch.randint(len(x), (len(x),)), torch.rand(x.shape) < 0.5
    small, weight = torch.randn(MIN_BYTES // 4 - 1), owner.block.scale
    owner(x, small, rows, mask, weight).backward()
    first, second = seen
    assert torch.equal(second[0], as_kept(x))
    assert all(torch.equal(one, other) for one, other in zip(first[1:], second[1:], strict=True))
    assert second[4] is weight
    assert report.compressed().tensors == 1


def test_inputs_that_need_gradients_get_exact_ones_from_a_linear_block():
    x = torch.randn(3, 8, requires_grad=True)
    owner, _ = attach(nn.Linear(8, 1, bias=False))
    owner(x).sum().backward()
    assert torch.equal(x.grad, owner.block.weight.detach().expand(3, -1))
    assert torch.equal(owner.block.weight.grad, as_kept(x).detach().sum(0, keepdim=True))


def test_what_overflowed_gives_gradients_that_are_not_finite():
    x = torch.randn(3, 8)
    x[1, 2] = float("inf")
    owner, report = attach(nn.Linear(8, 1))
    owner(x).sum().backward()
    assert not bool(owner.block.weight.grad.isfinite().all())
    assert math.isnan(report.compressed().error)


def test_two_forwards_before_backward_and_a_graph_used_twice():
    torch.manual_seed(0)
    owner, _ = attach(nn.Linear(8, 1, bias=False))
    first, second = torch.randn(2, 8), torch.randn(5, 8)
    losses = [owner(first).sum(), owner(second).sum()]
    losses[0].backward(retain_graph=True)
    losses[1].backward()
    losses[0].backward()
    expected = 2 * as_kept(first).sum(0) + as_kept(second).sum(0)
    torch.testing.assert_close(owner.block.weight.grad[0], expected)


def test_evaluation_compresses_nothing():
    model = build(streams=True)
    report = attach_recompute(model, EVERY)
    with torch.no_grad():
        model(draw())
    model.eval()
    model(draw())
    assert report.compressed().tensors == report.compressed().bytes_after == 0
    assert report.compressed().error == 0.0


def test_copies_count_for_themselves():
    model = build()
    report = attach_recompute(model, INT8)
    copy.deepcopy(model)(draw()).sum().backward()
    assert report.compressed().tensors == 0


def test_a_step_is_counted_and_said():
    model = build(streams=True)
    report = attach_recompute(model, INT8)
    assert report.line().endswith(
        "; by DeepSpeed's non_reentrant_checkpoint; inputs of at least 1.000 B are kept as INT8"
    )
    model(draw()).sum().backward()
    report.check_effect()
    counts, scalars = report.compressed(), report.scalars()
    assert scalars["recompute/kept_compressed_mib"] == counts.bytes_after / 2**20
    assert scalars["recompute/kept_before_compression_mib"] == counts.bytes_before / 2**20
    assert 0.002 < scalars["recompute/compression_error"] < 0.01
    kept_as = f"{format_bytes(counts.bytes_before)} of inputs kept as {format_bytes(counts.bytes_after)}"
    assert report.step_line().startswith(f"recompute: 7 blocks ran again; {kept_as} of INT8, off by 0.")
    assert report.step_line().endswith("% RMS")
    assert report.traffic() is None
    report.reset()
    assert report.compressed().tensors == report.compressed().bytes_before == 0


def test_compression_of_nothing_is_an_error():
    model = build()
    report = attach_recompute(model, RecomputeSettings(compress=True, min_bytes=2**20))
    model(draw()).sum().backward()
    largest = 4 * (SIZE.encoder_length + SIZE.horizon) * SIZE.hidden_size * 4  # floats of the whole window
    with pytest.raises(ConfigError) as error:
        report.check_effect()
    assert str(error.value) == (
        f"ds_tft.compress_kept: nothing was compressed, got inputs of up to {largest / 1024:.3f} KiB, and what is "
        "below 1.000 MiB stays as it is; remove it"
    )


def test_the_json_asks_for_it():
    product = {"recompute": "default", "compress_kept": "int8"}
    passes = attach_passes(
        build(), DeepSpeedSettings.model_validate({"ds_tft": product}), torch.device("cpu")
    )
    assert passes.lines()[1].endswith("; inputs of at least 64.00 KiB are kept as INT8")


def test_inputs_are_kept_in_one_way():
    with pytest.raises(ConfigError, match="kept in one way, got offload and compress; give one of them"):
        attach_recompute(build(), RecomputeSettings(offload=True, compress=True))


def test_without_compression_there_are_no_counts():
    assert attach_recompute(build()).compressed() is None
