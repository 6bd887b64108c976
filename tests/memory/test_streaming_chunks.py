from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ds_tft.memory.chunks import (
    CPU_BUFFER_BYTES,
    CUDA_BUFFER_BYTES,
    StreamingSettings,
    choose_chunk_size,
    spans,
)

CPU = torch.device("cpu")
SIZES = st.integers(1, 5000)


@given(total=st.integers(0, 500), size=st.integers(1, 600))
def test_spans_cover_everything_once_in_order(total, size):
    numbers = [number for span in spans(total, size) for number in range(span.start, span.stop)]
    assert numbers == list(range(total))
    assert all(1 <= span.size <= size for span in spans(total, size))


@given(variables=st.integers(1, 400), rows=SIZES, limit=SIZES, bytes_per_row=st.integers(1, 64))
def test_a_chunk_fits_the_buffer_and_is_not_split_without_need(variables, rows, limit, bytes_per_row):
    size = choose_chunk_size(StreamingSettings(buffer_bytes=limit), variables, rows, bytes_per_row, CPU)
    assert 1 <= size.variables <= variables
    assert 1 <= size.rows <= rows
    assert size.variables * size.rows * bytes_per_row <= max(limit, bytes_per_row)
    if rows * bytes_per_row <= limit:
        assert size.rows == rows  # rows are cut only where one variable is too large
        largest = limit // (rows * bytes_per_row)
        assert len(list(spans(variables, size.variables))) == len(list(spans(variables, largest)))
    else:
        assert size.variables == 1


def test_parts_are_about_equal():
    settings = StreamingSettings(buffer_bytes=600)
    assert choose_chunk_size(settings, 700, 1, 1, CPU).variables == 350  # not 600 and 100
    assert choose_chunk_size(settings, 5, 700, 1, CPU) == (1, 350)


def test_a_given_number_of_variables_takes_all_rows():
    settings = StreamingSettings(variables_per_chunk=3)
    assert choose_chunk_size(settings, 10, 10**6, 1024, CPU) == (3, 10**6)
    assert choose_chunk_size(settings, 2, 10, 1024, CPU) == (2, 10)


def test_the_default_follows_the_device():
    assert StreamingSettings().limit(CPU) == CPU_BUFFER_BYTES
    assert StreamingSettings().limit(torch.device("cuda", 0)) == CUDA_BUFFER_BYTES
    assert StreamingSettings(buffer_bytes=5).limit(CPU) == 5
