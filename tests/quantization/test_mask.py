"""One bit per value, eight to a byte."""

from __future__ import annotations

import pytest
import torch

from ds_tft.quantization.mask import pack, unpack

SHAPES = [(0,), (1,), (7,), (8,), (9,), (3, 5), (2, 3, 4), (1, 8, 2), (5, 0), (101, 13)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_is_packed_comes_back(shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) > 0.4
    packed = pack(mask)
    assert packed.dtype == torch.uint8
    assert packed.shape == (-(-mask.numel() // 8),)
    assert torch.equal(unpack(packed, mask.shape), mask)


@pytest.mark.parametrize("length", range(1, 18))
def test_every_bit_has_its_place(length):
    for place in range(length):
        mask = torch.zeros(length, dtype=torch.bool)
        mask[place] = True
        assert torch.equal(unpack(pack(mask), mask.shape), mask)
    full = torch.ones(length, dtype=torch.bool)
    assert torch.equal(unpack(pack(full), full.shape), full)


def test_a_view_that_is_not_contiguous_is_packed_in_its_own_order():
    mask = torch.rand(6, 10, generator=torch.Generator().manual_seed(0)).t() > 0.5
    assert torch.equal(unpack(pack(mask), mask.shape), mask)
