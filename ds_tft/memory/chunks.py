"""How streamed variable selection is cut: by variables, and by rows where one variable alone is too large.

Letters: V variables, R rows (batch x time), H hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ds_tft.errors import ConfigError

MIB = 2**20
CUDA_BUFFER_BYTES = 16 * MIB  # large enough for a kernel to take longer than its launch
CPU_BUFFER_BYTES = MIB  # a few of them stay in the second-level cache
BUFFERS = 11
"""Buffers of a chunk at most, each of `variables x rows x hidden` values: those of `buffers.py`, the bits of
the dropout mask (half of one), and one for what an operation returns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamingSettings:
    """How large the chunks are. The results do not depend on it beyond rounding."""

    buffer_bytes: int | None = None
    """Largest size of one buffer of a chunk; a chunk has about ten, and on a CPU each thread has a chunk.
    `None` takes 16 MiB on CUDA and 1 MiB on a CPU."""
    variables_per_chunk: int | None = None
    """Variables of a chunk, with all rows, whatever the size. `None` derives both from `buffer_bytes`."""

    def __post_init__(self) -> None:
        for name in ("buffer_bytes", "variables_per_chunk"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(
                    f"streaming.{name}: must be at least 1, got {value}; leave it out for the default"
                )
        if self.buffer_bytes is not None and self.variables_per_chunk is not None:
            raise ConfigError(
                f"streaming: buffer_bytes ({self.buffer_bytes}) and variables_per_chunk "
                f"({self.variables_per_chunk}) both fix the chunks; give one of them"
            )

    def limit(self, device: torch.device) -> int:
        """Returns the largest size of a buffer in bytes."""
        if self.buffer_bytes is not None:
            return self.buffer_bytes
        return CUDA_BUFFER_BYTES if device.type == "cuda" else CPU_BUFFER_BYTES


class ChunkSize(NamedTuple):
    """Largest chunk of a selection."""

    variables: int
    rows: int


class Span(NamedTuple):
    """Numbers `start .. stop - 1`."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many."""
        return self.stop - self.start

    @property
    def slice(self) -> slice:
        """To index with."""
        return slice(self.start, self.stop)


def choose_chunk_size(
    settings: StreamingSettings, num_variables: int, num_rows: int, bytes_per_row: int, device: torch.device
) -> ChunkSize:
    """Chooses how many variables, or failing that how many rows of one variable, a chunk has.

    Args:
        settings: The limit, or the number of variables.
        num_variables: Variables of the selection, V.
        num_rows: Rows of the batch, R.
        bytes_per_row: Bytes of one row of one variable, H values.
        device: Where it is computed.
    """
    if settings.variables_per_chunk is not None:
        return ChunkSize(min(settings.variables_per_chunk, num_variables), num_rows)
    rows = max(1, settings.limit(device) // bytes_per_row)  # of any variables
    if rows < num_rows:
        return ChunkSize(1, _even_size(num_rows, rows))
    return ChunkSize(_even_size(num_variables, rows // max(1, num_rows)), num_rows)


def spans(total: int, size: int) -> Iterator[Span]:
    """Cuts `0 .. total - 1` into spans of `size`, the last one perhaps shorter."""
    for start in range(0, total, size):
        yield Span(start, min(start + size, total))


def _even_size(total: int, largest: int) -> int:
    """Returns the size of parts of `total` that is at most `largest` and leaves the parts about equal."""
    return max(1, math.ceil(total / max(1, math.ceil(total / largest))))
