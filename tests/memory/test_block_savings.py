"""What recomputing each block frees."""

from __future__ import annotations

import pytest
import torch
from recompute_cases import build, draw
from torch import nn

from ds_tft.errors import ConfigError
from ds_tft.memory.block_savings import measure_blocks, refuse_useless
from ds_tft.memory.recompute import DEFAULT_BLOCKS, is_recomputed
from ds_tft.memory.streaming import is_streamed
from ds_tft.model.inputs import ModelSize


def test_savings_are_counted_in_bytes():
    model = nn.Sequential(
        nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)), nn.Tanh()
    )
    x = torch.ones(4, 8)
    (saving,) = measure_blocks(model, lambda: model(x), ["1"], [x])
    # kept: the block's input, its hidden values, the last result; recomputed, the hidden values are gone
    assert saving.plain_bytes == 4 * (8 + 32 + 8) * 4
    assert saving.recomputed_bytes == 4 * (8 + 8) * 4
    assert saving.saved_bytes == 4 * 32 * 4
    refuse_useless([saving])


def test_the_default_blocks_free_most_of_it_and_each_of_them_something():
    size = ModelSize(static_reals=2, observed_reals=40, known_reals=4, encoder_length=30, hidden_size=32)
    model, inputs = build(streams=True, size=size), draw(size, 16)
    numbers = torch.get_rng_state()
    others = ["static_encoder", "future_selection", "attention_gate", "output_gate", "static_selection"]
    savings = {
        each.block: each
        for each in measure_blocks(model, lambda: model(inputs), [*DEFAULT_BLOCKS, *others], inputs)
    }
    refuse_useless(list(savings.values()))
    assert torch.equal(torch.get_rng_state(), numbers)
    default = sum(savings[block].saved_bytes for block in DEFAULT_BLOCKS)
    assert default > 0.7 * savings["attention"].plain_bytes
    assert default > 10 * sum(savings[block].saved_bytes for block in others)
    assert not any(is_recomputed(module) for module in model.modules())
    assert is_streamed(model.history_selection)


@pytest.mark.parametrize("block", ["quantile_head", "known_embedding"])
def test_a_block_that_frees_nothing_is_refused(block):
    model, inputs = build(streams=True), draw()
    savings = measure_blocks(model, lambda: model(inputs), ["attention", block], inputs)
    with pytest.raises(
        ConfigError, match=f"recomputing '{block}' frees no memory, got .* KiB kept .* remove it"
    ):
        refuse_useless(savings)


def test_the_model_is_as_before_where_a_forward_fails():
    model = build()

    def fail() -> None:
        if any(is_recomputed(module) for module in model.modules()):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        measure_blocks(model, fail, ["attention"])
    assert not any(is_recomputed(module) for module in model.modules())
