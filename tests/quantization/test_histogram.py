"""Histograms of magnitudes: the state is that of exact arithmetic, however the values come."""

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from histogram_cases import CPU, assert_same_state, expected_state, histogram_of, run_processes, state
from hypothesis import given
from hypothesis import strategies as st

from ds_tft.quantization.histogram import CHUNK_VALUES, MagnitudeHistogram

LARGEST = torch.finfo(torch.float32).max
SMALLEST = 2.0**-149
NUM_GROUPS = 3

numbers = st.one_of(
    st.floats(width=32),  # of all sizes, infinite and NaN too
    st.floats(-4, 4, width=32),
    st.integers(-128, 127).map(lambda exponent: 2.0**exponent),  # on edges
)
lists = st.lists(st.tuples(*[numbers] * NUM_GROUPS), max_size=12)


def columns(rows) -> torch.Tensor:
    """Values (G, N)."""
    return torch.tensor(rows, dtype=torch.float32).view(-1, NUM_GROUPS).t()


def varied(seed: int = 0, count: int = 500) -> torch.Tensor:
    """Groups of very different size, one with values that are not finite and one of zeros, (6, N)."""
    values = torch.randn(6, count, generator=torch.Generator().manual_seed(seed))
    values *= torch.tensor([1.0, 1e-20, 3e30, 1e3, 1.0, 0.0]).unsqueeze(1)
    values[4, ::7] = torch.nan
    values[4, 3::11] = -torch.inf
    return values


@given(rows=lists, num_bins=st.sampled_from([4, 16, 4096]))
def test_bins_are_those_of_exact_arithmetic(rows, num_bins):
    values = columns(rows)
    assert_same_state(state(histogram_of(values, num_bins)), expected_state(values, num_bins))


@given(data=st.data(), rows=lists)
def test_order_and_batches_leave_no_trace(data, rows):
    shuffled = data.draw(st.permutations(rows))
    batches = data.draw(st.lists(st.integers(0, len(rows)), max_size=4))
    expected = state(histogram_of(columns(rows), 64))
    assert_same_state(state(histogram_of(columns(shuffled), 64, batches=batches)), expected)


@given(one=lists, other=lists)
def test_merging_equals_adding_all(one, other):
    first, second = histogram_of(columns(one), 64), histogram_of(columns(other), 64)
    before = state(second)
    first.merge(second)
    assert_same_state(state(first), state(histogram_of(columns(one + other), 64)))
    assert_same_state(state(second), before)


@pytest.mark.parametrize("shape", [(3, CHUNK_VALUES + 1000), (200, 2000)], ids=["values", "groups"])
def test_more_than_is_counted_at_once_in_whatever_layout(shape):
    sizes = 10.0 ** torch.linspace(-3, 3, shape[0])
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * sizes.unsqueeze(1)
    histogram = histogram_of(values)
    for row, counts, exponent in zip(values, histogram.counts, histogram.exponents, strict=True):
        expected, _ = np.histogram(row.abs().double(), 4096, (0, 2.0 ** int(exponent)))
        assert np.array_equal(counts, expected)
    strided = values.t().contiguous().t()
    assert not strided.is_contiguous()
    assert_same_state(state(histogram_of(strided)), state(histogram))


@pytest.mark.parametrize("num_bins", [4, 2**16])
def test_fewest_and_most_bins_at_both_ends_of_the_numbers(num_bins):
    values = torch.tensor([[LARGEST, LARGEST / 3, 1.0], [2.0**-100, 2.0**-110, 0.0], [2.0**127, 0.0, 1.0]])
    assert_same_state(state(histogram_of(values, num_bins)), expected_state(values, num_bins))


def test_groups_are_added_to_one_by_one():
    values = varied()
    histogram = MagnitudeHistogram(6, CPU)
    histogram.add(values[2:5], 2)
    untouched = [0, 1, 5]
    assert histogram.counts[untouched].sum() == 0
    assert histogram.largest[untouched].tolist() == [0.0] * 3
    histogram.add(values[5:], 5)
    histogram.add(values[:2], 0)
    assert_same_state(state(histogram), state(histogram_of(values)))


def test_threads_add_to_groups_of_their_own():
    values = varied(count=20_000)
    histogram = MagnitudeHistogram(6, CPU)

    def add(group: int) -> None:
        for part in values[group : group + 1].split(1000, dim=1):
            histogram.add(part, group)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(add, range(6)))
    assert_same_state(state(histogram), state(histogram_of(values)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_count_as_in_float32(dtype):
    values = varied().to(dtype)
    assert_same_state(state(histogram_of(values)), state(histogram_of(values.float())))


def test_smallest_and_largest_numbers():
    values = torch.tensor([[0.0, -0.0, 0.0], [SMALLEST, -SMALLEST, 0.0], [LARGEST, -LARGEST, 1.0]])
    histogram = histogram_of(values)
    assert histogram.largest.tolist() == [0.0, SMALLEST, LARGEST]
    assert histogram.exponents.tolist() == [-100, -100, 128]
    assert histogram.width.tolist() == [2.0**-112, 2.0**-112, 2.0**116]
    assert histogram.last_bin.tolist() == [0, 0, 4095]
    assert histogram.counts[:, 0].tolist() == [3, 3, 1]
    assert histogram.counts[:, -1].tolist() == [0, 0, 2]


def test_what_is_not_finite_is_counted_and_left_out():
    values = torch.tensor(
        [[1.0, torch.nan, -torch.inf, 0.0], [2.0, 3.0, 4.0, torch.inf], [1.0, 2.0, 3.0, 4.0]]
    )
    histogram = histogram_of(values)
    assert histogram.not_finite.tolist() == [2, 1, 0]
    assert histogram.finite.tolist() == [2, 3, 4]
    assert histogram.largest.tolist() == [1.0, 4.0, 4.0]
    assert histogram.counts[0, 0] == 1
    beyond_float32 = histogram_of(torch.tensor([[1e300, -1e300, 5.0]], dtype=torch.float64))
    assert (beyond_float32.not_finite.item(), beyond_float32.largest.item()) == (2, 5.0)


@pytest.mark.parametrize("shape", [(0, 5), (6, 0)])
def test_adding_nothing_changes_nothing(shape):
    histogram = histogram_of(varied())
    before = state(histogram)
    histogram.add(torch.empty(shape), 0)
    assert_same_state(state(histogram), before)


def test_values_are_left_as_they_are_and_not_kept():
    values = varied()
    parameter = torch.nn.Parameter(values.clone())
    histogram = histogram_of(parameter)
    assert torch.equal(parameter.detach().nan_to_num(), values.nan_to_num())
    before = state(histogram)
    parameter.data.mul_(2)
    assert_same_state(state(histogram), before)
    assert not any(tensor.requires_grad for tensor in before.values())


def test_values_above_a_clip():
    values = torch.tensor([[0.5, 1.0, 1.5, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    histogram = histogram_of(values, 8)  # bins of 0.5
    above = [
        int(histogram.count_above(torch.tensor([clip, 1.0]))) for clip in (0.5, 1.0, 1.25, 2.5, 3.0, 9.0)
    ]
    assert above == [5, 4, 3, 1, 0, 0]  # what lies on an edge is in the bin that begins there
    assert int(histogram_of(values).count_above(torch.tensor([1e-30, 1e-30]))) == 5


def test_alone_nothing_is_reduced(process_group):
    histogram = histogram_of(varied())
    before = state(histogram)
    histogram.all_reduce()
    assert_same_state(state(histogram), before)


def differing() -> torch.Tensor:
    """Values of which each half has groups with the larger range."""
    values = varied()
    values[3, 250:] *= 1e6
    values[1, :250] *= 1e5
    return values


def reduce_half(rank: int) -> dict[str, torch.Tensor]:
    """What a process of two knows in the end. The second never sees the last group, of zeros."""
    histogram = MagnitudeHistogram(6, CPU)
    histogram.add(differing()[: 6 - rank].chunk(2, dim=1)[rank], 0)
    histogram.all_reduce()
    return state(histogram)


def test_two_processes_know_what_one_would(tmp_path):
    expected = state(histogram_of(differing()))
    expected["counts"][5, 0] = 250
    for found in run_processes(2, reduce_half, tmp_path):
        assert_same_state(found, expected)


@pytest.mark.parametrize("num_bins", [0, 2, 3, 1000, 2**17, -4])
def test_bins_without_exact_edges_are_refused(num_bins):
    message = (
        f"num_bins: must be a power of two from 4 to 65536, got {num_bins}; only then are the edges exact"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        MagnitudeHistogram(1, CPU, num_bins)


def test_merging_unlike_histograms_is_refused():
    message = "merge: needs a histogram of (2, 4096) groups and bins, got (3, 4096); make both alike"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        MagnitudeHistogram(2, CPU).merge(MagnitudeHistogram(3, CPU))
