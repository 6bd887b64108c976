"""Histograms of magnitudes, one per group of values, whose state depends on which values were seen and nothing else.

The bins of a group divide 0 .. 2**e evenly, and `2**e` is the smallest power of two above its largest magnitude. When
a larger one comes the range doubles, as often as needed, and pairs of bins become one. All edges are exact in float32,
so a value ends in the bin that it would have been in from the start: order, batches and processes leave no trace.

Letters: G groups, C groups of one call, N values of a group in it, K bins.
"""

from __future__ import annotations

import torch
import torch.distributed
from torch import Tensor
from torch.distributed import ReduceOp

from ds_tft.memory.chunks import spans

SMALLEST_EXPONENT = -100
"""Of a range. Smaller magnitudes, down to subnormal ones, lie in its first bins."""
SMALLEST_NUM_BINS, LARGEST_NUM_BINS = 4, 2**16
"""With others, scale or width of some range would leave the normal numbers of float32."""
CHUNK_VALUES = 2**18
"""Values that are sorted into bins at once; they and what is computed of them stay in the cache of a core."""

MANTISSA_BITS = 23  # of float32
EXPONENT_BIAS = 127


class MagnitudeHistogram:
    """Counts magnitudes, in float32, for each of G groups.

    Threads may add at the same time as long as each has groups of its own.
    """

    def __init__(self, num_groups: int, device: torch.device, num_bins: int = 4096) -> None:
        """Starts empty.

        Args:
            num_groups: Groups, G.
            device: Of the values, and of everything here.
            num_bins: Bins of a group, K; a power of two.

        Raises:
            ValueError: It is none, or too large.
        """
        if not SMALLEST_NUM_BINS <= num_bins <= LARGEST_NUM_BINS or num_bins.bit_count() != 1:
            raise ValueError(
                f"num_bins: must be a power of two from {SMALLEST_NUM_BINS} to {LARGEST_NUM_BINS}, got {num_bins}; "
                "only then are the edges exact"
            )
        self.num_bins = num_bins
        self._doublings = num_bins.bit_length() - 1  # after which all bins are one
        self.counts = torch.zeros(num_groups, num_bins, dtype=torch.int64, device=device)
        """Finite values in each bin, (G, K); bin k holds `k * width <= magnitude < (k + 1) * width`."""
        self.exponents = torch.full((num_groups,), SMALLEST_EXPONENT, dtype=torch.int32, device=device)
        """The range of each group is 0 .. 2**exponent, (G,)."""
        self.largest = torch.zeros(num_groups, device=device)
        """Largest finite magnitude, exactly, (G,) float32; 0 where there is none."""
        self.not_finite = torch.zeros(num_groups, dtype=torch.int64, device=device)
        """Values that were left out, (G,)."""

    @property
    def finite(self) -> Tensor:
        """Values that were counted, (G,) int64."""
        return self.counts.sum(1)

    @property
    def width(self) -> Tensor:
        """Width of the bins, (G,) float64."""
        return _power_of_two(self.exponents - self._doublings).double()

    @property
    def last_bin(self) -> Tensor:
        """Bin of the largest magnitude, (G,) int64."""
        return (self.largest * self._bins_per_unit(slice(None))).long()

    @torch.no_grad()
    def add(self, values: Tensor, first_group: int = 0) -> None:
        """Counts values of some neighbouring groups.

        Args:
            values: Shape (C, N), of any floating-point type; what float32 cannot hold counts as not finite.
            first_group: Group of their first row.
        """
        if values.numel() == 0:
            return
        for rows in spans(len(values), max(1, CHUNK_VALUES // values.shape[1])):
            groups = slice(first_group + rows.start, first_group + rows.stop)
            for part in values.detach()[rows.slice].split(CHUNK_VALUES, dim=1):
                self._add_part(part.float(), groups)

    @torch.no_grad()
    def merge(self, other: MagnitudeHistogram) -> None:
        """Counts what another histogram has counted.

        Args:
            other: With as many groups and bins, on the same device; it is not changed.

        Raises:
            ValueError: It has others.
        """
        if self.counts.shape != other.counts.shape:
            raise ValueError(
                f"merge: needs a histogram of {tuple(self.counts.shape)} groups and bins, "
                f"got {tuple(other.counts.shape)}; make both alike"
            )
        everything = slice(None)
        self._widen(everything, other.exponents)
        self.counts += _merge_bins(other.counts, self.exponents - other.exponents, self._doublings)
        self.not_finite += other.not_finite
        torch.maximum(self.largest, other.largest, out=self.largest)

    @torch.no_grad()
    def all_reduce(self) -> None:
        """Merges the histograms of all processes; each of them must call it. Alone, nothing happens."""
        if not torch.distributed.is_initialized():
            return
        exponents = self.exponents.clone()
        torch.distributed.all_reduce(exponents, ReduceOp.MAX)
        self._widen(slice(None), exponents)
        torch.distributed.all_reduce(self.largest, ReduceOp.MAX)
        torch.distributed.all_reduce(self.counts)
        torch.distributed.all_reduce(self.not_finite)

    def count_above(self, clips: Tensor) -> Tensor:
        """Returns how many values of all groups together lie beyond the clip of their group.

        Exact for the clips of `ranges.py`, which are edges or the largest magnitude; otherwise a bin counts when it
        begins at the clip or beyond.

        Args:
            clips: One for each group, (G,).
        """
        first = (clips.double() / self.width).ceil()  # (G,)
        first = first.where(clips < self.largest, self.num_bins)
        bins = torch.arange(self.num_bins, device=clips.device)
        return self.counts.where(bins >= first.unsqueeze(1), 0).sum()

    def _add_part(self, values: Tensor, groups: slice) -> None:
        """Counts values (C, N) in float32, few enough for temporary tensors of that shape."""
        largest = torch.maximum(values.amax(1), -values.amin(1))  # (C,); neither hides what is not finite
        if not largest.isfinite().all():
            finite = values.isfinite()
            values = values.where(finite, 0.0)
            largest = values.abs().amax(1)
            left_out = finite.logical_not_().sum(1)
            self.not_finite[groups] += left_out
            self.counts[groups, 0] -= left_out  # they are about to be counted as zeros
        self.largest[groups] = torch.maximum(self.largest[groups], largest)
        self._widen(groups, _range_exponent(largest))
        # A product with a power of two is exact, and the conversion cuts off: bins of both signs mirror each other.
        bins = (values * self._bins_per_unit(groups).unsqueeze(1)).int().abs_()  # (C, N)
        num_groups = len(bins)
        if num_groups > 1:
            bins += (
                torch.arange(num_groups, dtype=bins.dtype, device=bins.device).unsqueeze(1) * self.num_bins
            )
        counts = torch.bincount(bins.flatten(), minlength=num_groups * self.num_bins)
        self.counts[groups] += counts.view(num_groups, self.num_bins)

    def _widen(self, groups: slice, exponents: Tensor) -> None:
        """Doubles the ranges of some groups until they reach `2**exponents`, (C,)."""
        own = self.exponents[groups]
        doublings = (exponents - own).clamp_min_(0)
        if doublings.any():
            self.counts[groups] = _merge_bins(self.counts[groups], doublings, self._doublings)
            self.exponents[groups] = own + doublings

    def _bins_per_unit(self, groups: slice) -> Tensor:
        """Returns `1 / width` of some groups, (C,) float32, a power of two."""
        return _power_of_two(self._doublings - self.exponents[groups])


def _range_exponent(largest: Tensor) -> Tensor:
    """Returns the exponent of the smallest range, a power of two, above the magnitudes, int32."""
    exponents = torch.frexp(largest).exponent.int()
    return exponents.where(largest > 0, SMALLEST_EXPONENT).clamp_min_(SMALLEST_EXPONENT)


def _power_of_two(exponents: Tensor) -> Tensor:
    """Returns `2**exponents` in float32, exactly; they must be those of normal numbers."""
    return ((exponents.int() + EXPONENT_BIAS) << MANTISSA_BITS).view(torch.float32)


def _merge_bins(counts: Tensor, doublings: Tensor, most: int) -> Tensor:
    """Returns the counts after doublings of the range, (C, K).

    Args:
        counts: Before, (C, K).
        doublings: How many, (C,).
        most: After how many all bins are one.
    """
    bins = torch.arange(counts.shape[1], device=counts.device).expand_as(counts)
    bins = bins >> doublings.clamp_max(most).unsqueeze(1)
    return torch.zeros_like(counts).scatter_add_(1, bins, counts)
