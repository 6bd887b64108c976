"""Streaming gives what the plain module gives: results and every gradient."""

from __future__ import annotations

import copy

import pytest
import torch
from streaming_cases import (
    GROUPS,
    Inputs,
    Owner,
    build,
    draw_inputs,
    largest_error,
    relative_error,
    results,
    share_masks,
    streamed,
)

from ds_tft.memory.chunks import StreamingSettings
from ds_tft.memory.streaming import unstream

DOUBLE = 1e-12  # relative to the largest value of each tensor
CHUNKS = {
    "one variable": StreamingSettings(variables_per_chunk=1),
    "three variables": StreamingSettings(variables_per_chunk=3),
    "all variables": StreamingSettings(variables_per_chunk=100),
    "four rows of one variable": StreamingSettings(buffer_bytes=4 * 8 * 8),
    "default": StreamingSettings(),
}
PLACES = {"history with context": (True, (3, 5)), "history": (False, (3, 5)), "static": (False, (6,))}


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", GROUPS)
def test_results_and_all_gradients_are_those_of_the_plain_module(kind, place, chunks, dropout):
    with_context, shape = PLACES[place]
    plain = build(kind, dropout=dropout, with_context=with_context)
    inputs = draw_inputs(plain, *shape, with_context=with_context)
    streaming = streamed(plain, CHUNKS[chunks])
    if dropout:
        share_masks(plain, streaming, inputs, seed=5)
    assert largest_error(results(streaming, inputs, 5), results(plain, inputs, 5)) < DOUBLE


def test_the_comparison_would_notice_other_masks():
    plain = build(dropout=0.2)
    inputs = draw_inputs(plain, 3, 5)
    streaming = streamed(plain)
    share_masks(plain, streaming, inputs, seed=5)
    assert largest_error(results(streaming, inputs, 6), results(plain, inputs, 6)) > 1e-2


@pytest.mark.parametrize("kind", ["reals", "categories", "both"])
def test_evaluation_is_the_same_whether_layers_are_merged_or_not(kind):
    plain = build(kind, dropout=0.3, with_context=True).eval()
    streaming = streamed(plain, StreamingSettings(variables_per_chunk=2))
    for rows in (2, 20):  # 4 and 40 rows: fewer and more than 2H
        inputs = draw_inputs(plain, 2, rows, with_context=True)
        with torch.no_grad():
            for actual, expected in zip(streaming(*inputs), plain(*inputs), strict=True):
                assert relative_error(actual, expected) < DOUBLE


def test_gradients_in_evaluation_mode_are_those_without_dropout():
    plain = build(dropout=0.3).eval()
    inputs = draw_inputs(plain, 3, 5)
    assert largest_error(results(streamed(plain), inputs), results(plain, inputs)) < DOUBLE


def test_hidden_size_one_where_the_weight_network_has_no_skip_projection():
    plain = build("both", hidden=1)
    assert plain.selection.weight_grn.skip is None
    inputs = draw_inputs(plain, 3, 5)
    expected, actual = results(plain, inputs), results(streamed(plain), inputs)
    # A layer norm over one value gives 0: the gradients that reach it vanish, but for rounding.
    for name in ("mixed", "weights"):
        assert relative_error(actual[name], expected[name]) < DOUBLE


def test_gradients_of_dropout_agree_with_finite_differences():
    streaming = streamed(
        build("both", hidden=4, dropout=0.3, with_context=True), StreamingSettings(variables_per_chunk=3)
    )
    streaming.selection.weight_grn.gated_norm.dropout.p = 0.0
    inputs = draw_inputs(streaming, 2, 2, with_context=True)
    parameters = list(streaming.parameters())

    def forward(reals, context, *_):
        torch.manual_seed(3)
        return streaming(reals, inputs.categories, context)

    assert torch.autograd.gradcheck(forward, (inputs.reals, inputs.context, *parameters), fast_mode=True)


def test_single_precision_is_no_worse_than_plain():
    plain = build("both", hidden=32, with_context=True, dtype=torch.float32)
    inputs = draw_inputs(plain, 16, 20, with_context=True, dtype=torch.float32)
    reference = reference_results(plain, inputs)
    plain_error = largest_error(results(plain, inputs), reference)
    error = largest_error(results(streamed(plain), inputs), reference)
    assert error < 2e-5
    assert error < 2 * plain_error


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_about_as_good_as_plain(dtype):
    plain = build("both", hidden=32, with_context=True, dtype=dtype)
    inputs = draw_inputs(plain, 16, 20, with_context=True, dtype=dtype)
    reference = reference_results(plain, inputs)
    actual, expected = results(streamed(plain), inputs), results(plain, inputs)
    assert {tensor.dtype for tensor in actual.values()} == {dtype}
    assert largest_error(actual, reference) < 2 * largest_error(expected, reference)


def test_half_precision_with_rows_in_several_chunks():
    plain = build("both", hidden=32, dtype=torch.bfloat16)
    inputs = draw_inputs(plain, 16, 20, dtype=torch.bfloat16)
    reference = reference_results(plain, inputs)
    tiled = results(streamed(plain, StreamingSettings(buffer_bytes=100 * 32 * 4)), inputs)
    assert largest_error(tiled, reference) < 2 * largest_error(results(plain, inputs), reference)


def test_sums_of_half_precision_are_taken_in_single_precision():
    plain = build("one real", hidden=32, dtype=torch.bfloat16)
    with torch.no_grad():
        plain.selection.variable_grns.gate_weight.zero_()  # what is left adds, subtracts and normalises
    inputs = draw_inputs(plain, 16, 20, dtype=torch.bfloat16)
    mixed, _ = streamed(plain)(*inputs)
    error = relative_error(mixed, reference_results(plain, inputs)["mixed"])
    assert error < 2**-8  # one rounding of the gated value and one of the result


def test_autocast_takes_the_products_of_the_networks_in_its_type():
    plain = build("one real", hidden=32, dtype=torch.float32)  # no weight network, which has products, too
    inputs = draw_inputs(plain, 16, 20, dtype=torch.float32)
    expected, _ = streamed(plain)(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        actual, _ = streamed(plain)(*inputs)
    assert 1e-4 < relative_error(actual, expected) < 3e-2


def test_autocast_is_about_as_good_as_plain_autocast():
    plain = build("both", hidden=32, with_context=True, dtype=torch.float32)
    inputs = draw_inputs(plain, 16, 20, with_context=True, dtype=torch.float32)
    reference = reference_results(plain, inputs)
    streaming = streamed(plain)
    with torch.autocast("cpu", torch.bfloat16):
        # Backward under autocast, too: the arithmetic must not change with where backward is called.
        actual, expected = results(streaming, inputs), results(plain, inputs)
    assert actual["mixed"].dtype == torch.float32
    assert largest_error(actual, reference) < 1.5 * largest_error(expected, reference)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_chunks_of_whole_variables_give_the_same_bits(dropout):
    plain = build("both", dropout=dropout)
    inputs = draw_inputs(plain, 4, 4)
    expected = results(streamed(plain, CHUNKS["all variables"]), inputs)
    for chunks in ("one variable", "three variables"):
        actual = results(streamed(plain, CHUNKS[chunks]), inputs)
        for name, tensor in expected.items():
            if "variable_grns" in name:  # one variable's own: no sum over variables
                assert torch.equal(actual[name], tensor), (chunks, name)
        assert largest_error(actual, expected) < 1e-14
    tiled = results(streamed(plain, CHUNKS["four rows of one variable"]), inputs)
    assert largest_error(tiled, expected) < 1e-13


@pytest.mark.parametrize("threads", [2, 5])
def test_any_number_of_threads_gives_the_same(threads):
    plain = build("both", dropout=0.2, with_context=True)
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
    for name, tensor in expected.items():
        if "variable_grns" in name:
            assert torch.equal(actual[name], tensor), name
    assert largest_error(actual, expected) < 1e-13


def test_undone_it_is_the_plain_module_again():
    plain = build(dropout=0.2)
    twin = streamed(plain)
    unstream(twin)
    inputs = draw_inputs(plain, 3, 5)
    actual, expected = results(twin, inputs), results(plain, inputs)
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


def reference_results(plain: Owner, inputs: Inputs) -> dict[str, torch.Tensor]:
    """What the plain module gives in float64 for the same parameters and inputs."""
    precise = Inputs(
        inputs.reals.detach().double().requires_grad_(),
        inputs.categories,
        None if inputs.context is None else inputs.context.detach().double().requires_grad_(),
    )
    return results(copy.deepcopy(plain).double(), precise)
