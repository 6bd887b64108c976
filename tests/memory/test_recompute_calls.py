"""One recomputed block: what goes in and out of it, and what it does besides computing."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from recompute_cases import MODES, Block, attach_block, build, draw
from torch import Tensor, nn

from ds_tft.memory.recompute import attach_recompute
from ds_tft.memory.recompute_settings import RecomputeSettings
from ds_tft.memory.recomputing import is_recomputing, only_saved_tensors_count

every_mode = pytest.mark.parametrize("mode", MODES)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclass
class Record:
    values: Tensor


SHAPES = {
    "tensor": lambda x: x,
    "tuple of one": lambda x: (x,),
    "list": lambda x: [x, x * 2],
    "named tuple": lambda x: Pair(x, x.exp()),
    "dict": lambda x: {"y": x, "mask": x > 0},
    "nested": lambda x: (x, (x.sin(), {"z": x.cos()}), None, 3),
    "dataclass": Record,
    "integers": lambda x: (x, x.argmax(-1)),
}


def tensors(result: object) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, Record):
        return [result.values]
    parts = (
        result.values() if isinstance(result, dict) else result if isinstance(result, (tuple, list)) else ()
    )
    return [tensor for part in parts for tensor in tensors(part)]


def structure(result: object) -> object:
    if isinstance(result, dict):
        return {key: structure(value) for key, value in result.items()}
    if isinstance(result, (tuple, list)):
        return type(result), [structure(part) for part in result]
    return type(result)


def gradients(module: nn.Module, *args: object, **kwargs: object) -> tuple[object, list[Tensor]]:
    """Result, and gradients of all parameters."""
    torch.manual_seed(3)
    result = module(*args, **kwargs)
    sum(each.sum() for each in tensors(result) if each.is_floating_point()).backward()
    return result, [parameter.grad for parameter in module.parameters()]


def assert_same_gradients(actual: list[Tensor], expected: list[Tensor]) -> None:
    assert all(bool(gradient.abs().sum() > 0) for gradient in expected)
    assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))


@every_mode
@pytest.mark.parametrize("shape", SHAPES)
def test_results_keep_their_structure(shape, mode):
    plain = Block(SHAPES[shape])
    owner, report = attach_block(copy.deepcopy(plain), mode)
    expected, expected_gradients = gradients(plain, torch.ones(4, 8))
    result, actual_gradients = gradients(owner, torch.ones(4, 8))
    assert structure(result) == structure(expected)
    for one, other in zip(tensors(result), tensors(expected), strict=True):
        assert torch.equal(one, other)
        assert one.requires_grad == other.requires_grad
    assert_same_gradients(actual_gradients, expected_gradients)
    assert report.recomputes() == 1


class Choosy(nn.Module):
    """Takes anything."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, mask, context, power, *, scale, extra=None, name="none", flag=False):
        assert context is None
        assert (name, flag, power) == ("some", True, 2)
        assert isinstance(extra, Pair)
        hidden = self.layer(x).tanh().masked_fill(mask, 0.0) ** power * scale["by"]
        return hidden * extra.first + self.layer(extra.second)


@every_mode
def test_any_mix_of_arguments(mode):
    plain = Choosy()
    owner, _ = attach_block(copy.deepcopy(plain), mode)
    generator = torch.Generator().manual_seed(0)
    x, scale, first, second = (torch.randn(4, 8, generator=generator).requires_grad_() for _ in range(4))
    mask = torch.rand(4, 8, generator=generator) > 0.5
    leaves = [x, scale, first]
    found = []
    for module in (plain, owner):
        result = module(
            x, mask, None, 2, scale={"by": scale}, extra=Pair(first, second), name="some", flag=True
        )
        result.sum().backward()
        found.append([result, *(leaf.grad for leaf in leaves), *(p.grad for p in module.parameters())])
        for leaf in leaves:
            leaf.grad = None
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@every_mode
def test_a_block_whose_inputs_need_no_gradient_is_trained(mode):
    plain = Block()
    owner, report = attach_block(copy.deepcopy(plain), mode)
    _, expected = gradients(plain, torch.ones(4, 8))
    _, actual = gradients(owner, torch.ones(4, 8))
    assert_same_gradients(actual, expected)
    assert report.recomputes() == 1


@every_mode
def test_the_callers_tensors_are_left_alone(mode):
    """A residual connection, a context for two blocks, a batch that is used again."""
    torch.manual_seed(0)
    plain = nn.ModuleDict({"first": nn.Linear(8, 8), "block": Block(), "second": Block()}).train()
    twin = copy.deepcopy(plain)
    settings = MODES[mode]
    attach_recompute(
        twin,
        RecomputeSettings(
            blocks=("block", "second"), path=settings.path, offload=settings.offload, min_bytes=1
        ),
    )
    batch = torch.randn(4, 8)
    kept = batch.clone()
    found = []
    for model in (plain, twin):
        torch.manual_seed(3)
        hidden = model["first"](batch)
        before = hidden.detach().clone()
        result = hidden + model["block"](hidden) + model["second"](hidden) + model["second"](batch)
        assert torch.equal(hidden, before)
        assert torch.equal(batch, kept)
        result.square().sum().backward()
        assert torch.equal(hidden, before)
        found.append([parameter.grad for parameter in model.parameters()])
    assert_same_gradients(found[1], found[0])


@every_mode
def test_a_parameter_may_be_an_argument(mode):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x, weight, view):
            return (self.layer(x) * weight).tanh() @ view

    weight = nn.Parameter(torch.randn(8, 8))
    owner, report = attach_block(Scaled(), mode)
    owner(torch.ones(8, 8), weight, weight.t()).sum().backward()
    actual, weight.grad = weight.grad, None
    owner.block.eval()(torch.ones(8, 8), weight, weight.t()).sum().backward()
    assert torch.equal(actual, weight.grad)
    moved = report.traffic()
    assert moved is None or (moved.tensors, moved.to_host_bytes) == (1, 4 * 64)  # the batch, and no weight


def test_an_input_changed_in_place_afterwards_is_an_error():
    owner, _ = attach_block(Block(), "deepspeed")
    x = torch.ones(4, 8)
    result = owner(x)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_an_input_that_was_moved_may_be_changed():
    plain = Block()
    owner, _ = attach_block(copy.deepcopy(plain), "offload")
    _, expected = gradients(plain, torch.ones(4, 8))
    torch.manual_seed(3)
    x = torch.ones(4, 8)
    result = owner(x)
    x.zero_()
    result.sum().backward()
    assert_same_gradients([parameter.grad for parameter in owner.parameters()], expected)


class Noting(nn.Module):
    """Notes the type it computes in, and which run it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.notes: list[tuple[bool, torch.dtype]] = []

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        self.notes.append((is_recomputing(), hidden.dtype))
        assert not only_saved_tensors_count()
        return (hidden.tanh() @ self.layer.weight.t()).float()


@every_mode
def test_autocast_is_that_of_the_forward(mode):
    plain = Noting()
    owner, _ = attach_block(copy.deepcopy(plain), mode)
    found = []
    for module in (plain, owner):
        with torch.autocast("cpu", torch.bfloat16):
            loss = module(torch.linspace(-1, 1, 32).view(4, 8)).sum()
        loss.backward()
        found.append([parameter.grad for parameter in module.parameters()])
    assert owner.block.notes == [(False, torch.bfloat16), (True, torch.bfloat16)]
    assert_same_gradients(found[1], found[0])


@every_mode
def test_autocast_around_backward_does_not_reach_the_second_run(mode):
    owner, _ = attach_block(Noting(), mode)
    loss = owner(torch.ones(4, 8)).sum()
    with torch.autocast("cpu", torch.bfloat16):
        loss.backward()
    assert owner.block.notes == [(False, torch.float32), (True, torch.float32)]
    assert not is_recomputing()


def test_the_mark_of_a_second_run_goes_when_it_fails():
    owner, _ = attach_block(Noting(), "own")
    loss = owner(torch.ones(4, 8)).sum()
    owner.block.layer.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    assert not is_recomputing()


class Observer(nn.Module):
    """Rounds to a range that follows what was seen, counts in a buffer and in an attribute."""

    range: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("range", torch.ones(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.range = 0.5 * self.range + 0.5 * x.detach().abs().amax()
            self.seen += 1
            self.calls += not is_recomputing()
        step = self.range / 7
        return x + ((x / step).round() * step - x).detach()


@every_mode
def test_state_moves_once_and_is_what_the_first_run_saw(mode):
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Linear(8, 8), nn.BatchNorm1d(8), Observer(), nn.Tanh(), Observer(), nn.Linear(8, 8)
    )
    owner, report = attach_block(copy.deepcopy(plain), mode)
    for step in range(3):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        _, expected = gradients(plain, x)
        _, actual = gradients(owner, x)
        assert_same_gradients(actual[:-1], expected[:-1])
    assert report.recomputes() == 3
    for (name, one), (_, other) in zip(owner.block.named_buffers(), plain.named_buffers(), strict=True):
        assert torch.equal(one, other), name
    assert int(owner.block[1].num_batches_tracked) == int(owner.block[2].seen) == owner.block[2].calls == 3


@pytest.mark.parametrize("mode", ["own", "offload"])
def test_autograd_grad_works_in_training_on_the_own_path(mode):
    model, inputs = build(streams=True), draw()
    parameters = list(model.parameters())

    def sensitivity() -> tuple[Tensor, ...]:
        torch.manual_seed(5)
        return torch.autograd.grad(model(inputs).square().mean(), parameters)

    expected = sensitivity()
    report = attach_recompute(model, MODES[mode])
    actual = sensitivity()
    assert report.recomputes() == len(report.blocks)
    assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))


def test_autograd_grad_with_deepspeed_works_in_evaluation_and_while_paused():
    model, inputs = build(streams=True), draw()
    reals = inputs.observed_reals.requires_grad_()

    def sensitivity() -> Tensor:
        torch.manual_seed(5)
        return torch.autograd.grad(model(inputs).square().mean(), reals)[0]

    expected = sensitivity()
    expected_in_evaluation = [model.eval(), sensitivity(), model.train()][1]
    report = attach_recompute(model)
    with pytest.raises(RuntimeError, match=r"not compatible with .grad()"):
        sensitivity()
    with report.paused():
        assert torch.equal(sensitivity(), expected)
    model.eval()
    assert torch.equal(sensitivity(), expected_in_evaluation)
    assert report.recomputes() == 0


@every_mode
def test_backward_twice(mode):
    plain = Block()
    owner, _ = attach_block(copy.deepcopy(plain), mode)
    found = []
    for module in (plain, owner):
        torch.manual_seed(3)
        loss = module(torch.ones(4, 8)).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        found.append([parameter.grad for parameter in module.parameters()])
    assert_same_gradients(found[1], found[0])


@every_mode
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph:UserWarning")
def test_second_derivatives(mode):
    plain = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    owner, _ = attach_block(copy.deepcopy(plain), mode)
    found = []
    for module in (plain, owner):
        x = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()
        module(x).sum().backward(create_graph=True)
        x.grad.square().sum().backward()
        found.append([parameter.grad.detach() for parameter in list(module.parameters())[:-1]])
    assert_same_gradients(found[1], found[0])


def blocks_behind_a_layer() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), Block(), Block(), Block()).train()


def detached_forward(model: nn.Sequential, x: Tensor) -> Tensor:
    """What is sometimes called checkpointing: each block's input is detached and kept."""
    hidden = model[0](x)
    for block in model[1:]:
        hidden = block(hidden.detach())
    return hidden


def test_detaching_loses_the_gradients_of_all_but_the_last_block():
    model = blocks_behind_a_layer()
    detached_forward(model, torch.ones(4, 8)).square().sum().backward()
    lost = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert lost == [name for name, _ in model.named_parameters() if not name.startswith("3.")]
    assert len(lost) == 10


@every_mode
def test_recomputing_loses_none(mode):
    plain = blocks_behind_a_layer()
    _, expected = gradients(plain, torch.ones(4, 8))
    twin, settings = blocks_behind_a_layer(), MODES[mode]
    report = attach_recompute(
        twin,
        RecomputeSettings(blocks=("1", "2", "3"), path=settings.path, offload=settings.offload, min_bytes=1),
    )
    _, actual = gradients(twin, torch.ones(4, 8))
    assert_same_gradients(actual, expected)
    assert report.recomputes() == 3
