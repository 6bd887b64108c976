from __future__ import annotations

import pytest
import torch
from streaming_cases import build, draw_inputs, streamed

from ds_tft.memory.chunks import StreamingSettings
from ds_tft.memory.dropout_mask import SeededDropout, draw_seed

CPU = torch.device("cpu")


def draw(probability, seed, *shape, first=0, dtype=torch.float32):
    return SeededDropout(probability, seed, CPU).draw(first, torch.empty(shape, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_masks_are_zeros_and_ones_and_the_same_in_every_type(dtype):
    mask = draw(0.3, 1, 3, 50, 7, dtype=dtype)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(mask.float(), draw(0.3, 1, 3, 50, 7))


@pytest.mark.parametrize(
    ("probability", "kept_levels"), [(0.1, 58982), (0.5, 32768), (0.9, 6554), (1e-9, 65535), (1 - 1e-9, 1)]
)
def test_keep_probability_is_a_whole_number_of_65536ths(probability, kept_levels):
    dropout = SeededDropout(probability, 0, CPU)
    assert dropout.keep_probability == kept_levels / 65536
    assert dropout.scale * dropout.keep_probability == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("probability", [1e-9, 0.1, 0.5, 0.9, 1 - 1e-9])  # the outer ones: one level of 65536
def test_as_many_values_are_kept_as_stated(probability):
    mask = draw(probability, 3, 16, 500, 500)
    keep = SeededDropout(probability, 3, CPU).keep_probability
    assert mask.double().mean().item() == pytest.approx(keep, abs=5 * (keep * (1 - keep) / 4e6) ** 0.5)


def test_neighbouring_values_are_independent():
    signs = (2 * draw(0.5, 4, 4, 500, 500) - 1).flatten()
    for distance in (1, 2, 3, 4, 500, 250_000):  # within 64 bits, a step on, a variable on
        assert abs((signs[distance:] * signs[:-distance]).mean().item()) < 5e-3


def test_the_seed_fixes_the_masks():
    assert torch.equal(draw(0.3, 1, 2, 10, 4), draw(0.3, 1, 2, 10, 4))
    assert not torch.equal(draw(0.3, 1, 2, 10, 4), draw(0.3, 2, 2, 10, 4))
    assert torch.equal(draw(0.3, 2**63 - 2, 3, 10, 4), draw(0.3, 2**63 - 2, 3, 10, 4))  # the largest


@pytest.mark.parametrize("hidden", [8, 9, 10, 11])
def test_a_variables_mask_does_not_depend_on_which_others_are_drawn_with_it(hidden):
    together = draw(0.3, 1, 3, 20, hidden)
    assert not torch.equal(together[0], together[1])
    for variable in range(3):
        assert torch.equal(together[variable], draw(0.3, 1, 1, 20, hidden, first=variable)[0])


def test_rows_in_several_calls_get_the_masks_of_one_call():
    dropout = SeededDropout(0.3, 1, CPU)
    parts = [dropout.draw(2, torch.empty(1, rows, 8), begin=rows == 7) for rows in (7, 7 + 1, 5)]
    assert torch.equal(torch.cat(parts, 1), draw(0.3, 1, 1, 20, 8, first=2))


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
