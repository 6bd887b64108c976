from __future__ import annotations

import pytest
import torch
from model_cases import SMALL, random_inputs

from ds_tft.model.inputs import ModelSize


def test_to_converts_reals_only_and_keeps_lengths() -> None:
    inputs = random_inputs(SMALL)
    moved = inputs.to(torch.device("cpu"), torch.bfloat16)
    assert {moved.static_reals.dtype, moved.observed_reals.dtype, moved.known_reals.dtype} == {torch.bfloat16}
    assert moved.known_categories.dtype == torch.int64
    assert moved.encoder_lengths is inputs.encoder_lengths


def test_to_leaves_the_lengths_on_the_cpu() -> None:
    moved = random_inputs(SMALL).to(torch.device("meta"), torch.float32)
    assert moved.known_reals.device.type == "meta"
    assert moved.encoder_lengths.device.type == "cpu"


def test_counts_of_variables() -> None:
    assert (SMALL.num_static, SMALL.num_observed, SMALL.num_known) == (4, 4, 4)


@pytest.mark.parametrize(("observed", "known"), [(0, 1), (1, 0)])
def test_history_and_time_index_are_required(observed: int, known: int) -> None:
    with pytest.raises(ValueError, match=f"must be at least 1.*got {observed} and {known}"):
        ModelSize(observed_reals=observed, known_reals=known)


def test_heads_must_divide_the_hidden_size() -> None:
    with pytest.raises(ValueError, match=r"hidden_size \(10\) must be a multiple of num_heads \(4\)"):
        ModelSize(hidden_size=10, num_heads=4)
