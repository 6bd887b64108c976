"""Products of 8-bit codes in float32 are those of whole numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ds_tft.memory.exact_product import LARGEST_CODE, LONGEST_SUM, SMALLEST_CODE, exact_bmm, exact_mm

LENGTHS = [1, 7, 128, LONGEST_SUM - 1, LONGEST_SUM, LONGEST_SUM + 1, 2 * LONGEST_SUM, 3 * LONGEST_SUM + 5]
EXTREMES = {
    "smallest times largest": (SMALLEST_CODE, LARGEST_CODE),
    "smallest times smallest weight": (SMALLEST_CODE, -LARGEST_CODE),
    "largest times largest": (LARGEST_CODE, LARGEST_CODE),
}


def draw(*shape: int, smallest: int = SMALLEST_CODE) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape) + shape[-1])
    return torch.randint(smallest, LARGEST_CODE + 1, shape, generator=generator).float()


def bmm(inputs: Tensor, weights: Tensor) -> Tensor:
    out = torch.full((*inputs.shape[:2], weights.shape[-1]), torch.nan)
    exact_bmm(inputs, weights, out)
    return out


@pytest.mark.parametrize("length", LENGTHS)
def test_a_product_of_random_codes_is_that_of_whole_numbers(length):
    inputs, weights = draw(9, length), draw(11, length, smallest=-LARGEST_CODE)
    assert torch.equal(exact_mm(inputs, weights).long(), inputs.long() @ weights.long().t())


@pytest.mark.parametrize("length", LENGTHS)
def test_a_stack_of_products_is_that_of_whole_numbers(length):
    inputs, weights = draw(3, 9, length), draw(3, length, 10, smallest=-LARGEST_CODE)
    assert torch.equal(bmm(inputs, weights).long(), torch.bmm(inputs.long(), weights.long()))


@pytest.mark.parametrize("codes", EXTREMES)
def test_the_longest_sum_holds_the_extremes(codes):
    first, second = EXTREMES[codes]
    inputs, weights = torch.full((2, LONGEST_SUM), float(first)), torch.full((3, LONGEST_SUM), float(second))
    inputs[0, 0] = weights[0, 0] = 1  # an odd sum: even ones pass 2**24 unharmed
    expected = inputs.long() @ weights.long().t()
    assert int(expected.abs().max()) <= 2**24
    assert torch.equal(exact_mm(inputs, weights).long(), expected)
    assert torch.equal(bmm(inputs.unsqueeze(0), weights.t().unsqueeze(0)).long()[0], expected)


@pytest.mark.parametrize("smallest", [64, 120])
def test_a_sum_beyond_what_float32_holds_is_that_of_whole_numbers_rounded_once(smallest):
    length = 2 * LONGEST_SUM
    inputs, weights = draw(40, length, smallest=smallest), draw(50, length, smallest=smallest)
    expected = inputs.long() @ weights.long().t()
    assert int(expected.min()) > 2**24
    assert torch.equal(exact_mm(inputs, weights), expected.float())
    assert torch.equal(bmm(inputs.unsqueeze(0), weights.t().unsqueeze(0))[0], expected.float())


def test_one_term_more_would_not_fit():
    codes = torch.full((LONGEST_SUM + 1,), SMALLEST_CODE)
    codes[0] += 1  # an odd sum
    total = int((codes * -LARGEST_CODE).sum())
    assert total > 2**24
    assert int(torch.tensor(total).float()) != total


def test_the_order_of_terms_does_not_matter():
    inputs, weights = draw(6, LONGEST_SUM), draw(4, LONGEST_SUM, smallest=-LARGEST_CODE)
    order = torch.randperm(LONGEST_SUM, generator=torch.Generator().manual_seed(0))
    assert torch.equal(exact_mm(inputs, weights), exact_mm(inputs[:, order], weights[:, order]))


def test_autocast_does_not_shorten_the_sums():
    inputs, weights = draw(6, 300), draw(4, 300, smallest=-LARGEST_CODE)
    expected = exact_mm(inputs, weights)
    with torch.autocast("cpu", torch.bfloat16):
        actual = exact_mm(inputs, weights)
    assert torch.equal(actual, expected)


def test_nothing_to_add_up_gives_zeros():
    assert torch.equal(exact_mm(torch.empty(2, 0), torch.empty(3, 0)), torch.zeros(2, 3))
    assert torch.equal(bmm(torch.empty(1, 2, 0), torch.empty(1, 0, 3)), torch.zeros(1, 2, 3))
