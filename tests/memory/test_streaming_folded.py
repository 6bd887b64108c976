"""Streaming gives what the plain folded selection gives: results and every gradient, with little kept."""

from __future__ import annotations

import copy

import pytest
import torch
from recompute_cases import SIZE, draw
from streaming_cases import (
    GROUPS,
    Inputs,
    draw_inputs,
    largest_error,
    relative_error,
    results,
    streamed,
)
from torch import Tensor, nn

from ds_tft.errors import ConfigError
from ds_tft.memory.chunks import StreamingSettings
from ds_tft.memory.meter import kept_for_backward
from ds_tft.memory.peak import peak_live_bytes
from ds_tft.memory.recomputing import within_block
from ds_tft.memory.streaming import is_streamed, stream_variable_selection, unstream
from ds_tft.model.embedding import VariableEmbedding
from ds_tft.model.fold import build_folded
from ds_tft.model.folded import FoldedSelection

DOUBLE = 1e-12  # relative to the largest value of each tensor
CPU = torch.device("cpu")
CHUNKS = {
    "one variable": StreamingSettings(variables_per_chunk=1),
    "three variables": StreamingSettings(variables_per_chunk=3),
    "all variables": StreamingSettings(variables_per_chunk=100),
    "four rows of one variable": StreamingSettings(buffer_bytes=4 * 8 * 8),
    "default": StreamingSettings(),
}
PLACES = {"history with context": (True, (3, 5)), "history": (False, (3, 5)), "static": (False, (6,))}


class Owner(nn.Module):
    """A folded selection and its embeddings, as a model would own them."""

    def __init__(self, kind: str, hidden: int, with_context: bool) -> None:
        super().__init__()
        self.groups = nn.ModuleList(VariableEmbedding(*group, hidden) for group in GROUPS[kind])
        self.selection = FoldedSelection(tuple(self.groups), hidden, with_context=with_context)

    def forward(
        self, reals: Tensor, categories: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return self.selection(reals, categories, context)


def build(
    kind: str = "both",
    *,
    hidden: int = 8,
    with_context: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Owner:
    """A folded selection whose biases and norms are not at their initial zeros and ones."""
    torch.manual_seed(0)
    owner = Owner(kind, hidden, with_context).to(torch.float64)
    with torch.no_grad():
        for parameter in owner.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return owner.to(dtype)


def reference_results(plain: Owner, inputs: Inputs) -> dict[str, Tensor]:
    """What the plain module gives in float64 for the same parameters and inputs."""
    precise = Inputs(
        inputs.reals.detach().double().requires_grad_(),
        inputs.categories,
        None if inputs.context is None else inputs.context.detach().double().requires_grad_(),
    )
    return results(copy.deepcopy(plain).double(), precise)


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", GROUPS)
def test_results_and_all_gradients_are_those_of_the_plain_module(kind, place, chunks):
    with_context, shape = PLACES[place]
    plain = build(kind, with_context=with_context)
    inputs = draw_inputs(plain, *shape, with_context=with_context)
    streaming = streamed(plain, CHUNKS[chunks])
    assert is_streamed(streaming.selection)
    assert largest_error(results(streaming, inputs), results(plain, inputs)) < DOUBLE


@pytest.mark.parametrize("lengths", [None, [6, 2, 4, 1]], ids=["whole", "padded"])
@pytest.mark.parametrize("chunks", CHUNKS)
def test_so_it_is_inside_the_whole_model(chunks, lengths):
    torch.manual_seed(0)
    plain = build_folded(SIZE).double()
    streaming = copy.deepcopy(plain)
    stream_variable_selection(streaming, CHUNKS[chunks])
    inputs = draw(lengths=lengths).to(CPU, torch.float64)
    found = []
    for model in (plain, streaming):
        prediction = model(inputs)
        prediction.sin().sum().backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        found.append({"prediction": prediction.detach(), **gradients})
    assert largest_error(found[1], found[0]) < DOUBLE


@pytest.mark.parametrize("name", ["hidden_lines", "hidden_table", "gate.weight", "weights.skip.table"])
def test_the_comparison_would_notice_another_parameter(name):
    plain = build(with_context=True)
    inputs = draw_inputs(plain, 3, 5, with_context=True)
    streaming = streamed(plain)
    with torch.no_grad():
        streaming.selection.get_parameter(name)[1] *= 1.001
    assert largest_error(results(streaming, inputs), results(plain, inputs)) > 1e-5


@pytest.mark.parametrize("kind", GROUPS)
def test_evaluation_gives_the_same_bits_as_training(kind):
    streaming = streamed(build(kind, with_context=True))
    inputs = draw_inputs(streaming, 3, 40, with_context=True)  # more rows than 2H
    trained = streaming.train()(*inputs)
    with torch.no_grad():
        evaluated = streaming.eval()(*inputs)
    assert all(torch.equal(one, other) for one, other in zip(trained, evaluated, strict=True))


def test_within_a_recomputed_block_it_gives_the_same_bits():
    streaming = streamed(build(with_context=True))
    inputs = draw_inputs(streaming, 3, 5, with_context=True)
    expected = results(streaming, inputs)
    with within_block():
        actual = results(streaming, inputs)
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items() if tensor is not None)


def test_hidden_size_one():
    plain = build(hidden=1)
    inputs = draw_inputs(plain, 3, 5)
    expected, actual = results(plain, inputs), results(streamed(plain), inputs)
    # A layer norm over one value gives 0: the gradients that reach it vanish, but for rounding.
    for name in ("mixed", "weights"):
        assert relative_error(actual[name], expected[name]) < DOUBLE


def test_gradients_agree_with_finite_differences():
    streaming = streamed(build(hidden=4, with_context=True), StreamingSettings(variables_per_chunk=3))
    inputs = draw_inputs(streaming, 2, 2, with_context=True)

    def forward(reals: Tensor, context: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        return streaming(reals, inputs.categories, context)

    parameters = (inputs.reals, inputs.context, *streaming.parameters())
    assert torch.autograd.gradcheck(forward, parameters, fast_mode=True)


def test_single_precision_is_no_worse_than_plain():
    plain = build(hidden=32, with_context=True, dtype=torch.float32)
    inputs = draw_inputs(plain, 16, 20, with_context=True, dtype=torch.float32)
    reference = reference_results(plain, inputs)
    error = largest_error(results(streamed(plain), inputs), reference)
    assert error < 2e-5
    assert error < 2 * largest_error(results(plain, inputs), reference)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_about_as_good_as_plain(dtype):
    plain = build(hidden=32, with_context=True, dtype=dtype)
    inputs = draw_inputs(plain, 16, 20, with_context=True, dtype=dtype)
    reference = reference_results(plain, inputs)
    actual, expected = results(streamed(plain), inputs), results(plain, inputs)
    assert {tensor.dtype for tensor in actual.values()} == {dtype}
    assert largest_error(actual, reference) < 2 * largest_error(expected, reference)


def test_chunks_of_whole_variables_give_the_same_bits():
    plain = build()
    inputs = draw_inputs(plain, 4, 4)
    expected = results(streamed(plain, CHUNKS["all variables"]), inputs)
    for chunks in ("one variable", "three variables"):
        actual = results(streamed(plain, CHUNKS[chunks]), inputs)
        for name, tensor in expected.items():
            if ".gate." in name and ".weights." not in name:  # one variable's own: no sum over variables
                assert torch.equal(actual[name], tensor), (chunks, name)
        assert largest_error(actual, expected) < 1e-14


@pytest.mark.parametrize("threads", [2, 5])
def test_any_number_of_threads_gives_the_same(threads):
    plain = build(with_context=True)
    inputs = draw_inputs(plain, 4, 6, with_context=True)
    streaming = streamed(plain, StreamingSettings(buffer_bytes=4 * 8 * 8))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = results(streaming, inputs)
        torch.set_num_threads(threads)
        actual = results(streaming, inputs)
    finally:
        torch.set_num_threads(before)
    assert largest_error(actual, expected) < 1e-13


def test_a_fifteenth_is_kept_and_the_workspace_is_that_of_a_chunk(monkeypatch):
    monkeypatch.setitem(GROUPS, "wide", ((110, ()), (10, ())))
    plain = build("wide", hidden=32, with_context=True, dtype=torch.float32)
    buffer = 4 * 160 * 32 * 4  # four variables
    streaming = copy.deepcopy(plain)
    report = stream_variable_selection(streaming, StreamingSettings(buffer_bytes=buffer))
    inputs = draw_inputs(plain, 8, 20, with_context=True, dtype=torch.float32)
    inputs = inputs._replace(reals=inputs.reals.detach(), context=inputs.context.detach())
    held = [
        kept_for_backward(lambda owner=owner: owner(*inputs), excluded=[*owner.parameters(), *inputs])
        for owner in (plain, streaming)
    ]
    assert held[0] > 15 * held[1]

    def forward() -> None:
        with torch.no_grad():
            streaming(*inputs)

    forward()
    # Beside the chunks' buffers: a few tensors of shape (R, V).
    assert peak_live_bytes(forward, CPU) < report.selections[0].workspace_bytes(160) + 4 * 160 * 120 * 4


def test_nothing_is_renamed_and_undone_it_is_the_plain_module_again():
    plain = build(with_context=True)
    twin = streamed(plain)
    assert twin.state_dict().keys() == plain.state_dict().keys()
    unstream(twin)
    inputs = draw_inputs(plain, 3, 5, with_context=True)
    actual, expected = results(twin, inputs), results(plain, inputs)
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


def test_a_copy_streams_its_own_parameters():
    streaming = streamed(build())
    twin = copy.deepcopy(streaming)
    inputs = draw_inputs(streaming, 3, 5)
    expected, _ = twin(*inputs)
    with torch.no_grad():
        streaming.selection.gate.weight.zero_()
    assert torch.equal(twin(*inputs)[0], expected)
    assert not torch.equal(streaming(*inputs)[0], expected)


def test_streaming_twice_is_refused():
    streaming = streamed(build())
    with pytest.raises(ConfigError, match="the forward of 'selection' must be its own"):
        stream_variable_selection(streaming)
