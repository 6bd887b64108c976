from __future__ import annotations

import pytest
import torch
from streaming_cases import build, draw_inputs, streamed

from ds_tft.memory.chunks import StreamingSettings
from ds_tft.memory.dropout_mask import SeededDropout, draw_seed

CPU = torch.device("cpu")


def masks(probability, seed, *shapes, dtype=torch.float32):
    dropout = SeededDropout(probability, seed, CPU)
    return [dropout.draw(torch.empty(shape, dtype=dtype)) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_masks_are_zeros_and_ones_and_the_same_in_every_type(dtype):
    (mask,) = masks(0.3, 1, (3, 50, 7), dtype=dtype)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(mask.float(), masks(0.3, 1, (3, 50, 7))[0])


@pytest.mark.parametrize(
    ("probability", "kept_levels"), [(0.1, 58982), (0.5, 32768), (0.9, 6554), (1e-9, 65535), (1 - 1e-9, 1)]
)
def test_keep_probability_is_a_whole_number_of_65536ths(probability, kept_levels):
    dropout = SeededDropout(probability, 0, CPU)
    assert dropout.keep_probability == kept_levels / 65536
    assert dropout.scale * dropout.keep_probability == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_as_many_values_are_kept_as_stated(probability):
    (mask,) = masks(probability, 3, (4, 500, 500))
    keep = SeededDropout(probability, 3, CPU).keep_probability
    assert mask.mean().item() == pytest.approx(keep, abs=5 * (keep * (1 - keep) / 1e6) ** 0.5)


def test_neighbouring_values_are_independent():
    (mask,) = masks(0.5, 4, (1, 1000, 1000))
    signs = (2 * mask - 1).flatten()
    for distance in (1, 2, 3, 4, 1000):  # 1 to 3: numbers cut from the same 64 bits
        assert abs((signs[distance:] * signs[:-distance]).mean().item()) < 5e-3


def test_the_seed_fixes_the_masks_and_each_call_goes_on():
    first, second = masks(0.3, 1, (2, 40), (2, 40))
    assert torch.equal(first, masks(0.3, 1, (2, 40))[0])
    assert not torch.equal(first, second)
    assert not torch.equal(first, masks(0.3, 2, (2, 40))[0])


@pytest.mark.parametrize("width", [40, 41, 42, 43])
def test_variables_together_or_one_by_one_get_the_same_masks(width):
    (together,) = masks(0.3, 1, (3, width))
    assert torch.equal(together, torch.cat(masks(0.3, 1, (1, width), (1, width), (1, width))))


def test_seeds_come_from_the_global_generator():
    torch.manual_seed(5)
    seeds = [draw_seed(), draw_seed()]
    torch.manual_seed(5)
    assert [draw_seed(), draw_seed()] == seeds
    assert seeds[0] != seeds[1]


def test_manual_seed_governs_a_streaming_selection_whatever_its_chunks():
    plain = build("both", dropout=0.3)
    inputs = draw_inputs(plain, 4, 6)
    mixes = []
    for settings in (None, StreamingSettings(variables_per_chunk=2), StreamingSettings(buffer_bytes=400)):
        model = streamed(plain, settings)
        torch.manual_seed(1)
        first, _ = model(*inputs)
        second, _ = model(*inputs)
        assert (first - second).abs().max() > 1e-3
        mixes.append(first)
    for mixed in mixes[1:]:
        torch.testing.assert_close(mixed, mixes[0], rtol=1e-12, atol=1e-13)


def test_the_mean_over_masks_is_the_result_without_dropout_where_it_is_linear():
    """The gate's values are linear in what dropout leaves: halves of a symmetric pair average out."""
    (mask,) = masks(0.25, 7, (1, 200_000))
    dropout = SeededDropout(0.25, 7, CPU)
    assert (mask * dropout.scale).mean().item() == pytest.approx(1, abs=5e-3)
