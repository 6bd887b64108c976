from __future__ import annotations

import pytest

from ds_tft.formatting import format_bytes, format_number, format_seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.23456, "1.235"),
        (1.0, "1.000"),
        (-0.0123456, "-0.01235"),
        (0.00016987, "0.0001699"),
        (0.000016987, "1.699e-05"),
        (0.99996, "1.000"),
        (9999.6, "10,000"),
        (12345.6, "12,350"),
        (1_234_567.0, "1,235,000"),
        (3e15, "3.000e+15"),
        (0.0, "0"),
        (float("nan"), "n/a"),
        (float("-inf"), "-inf"),
    ],
)
def test_four_significant_digits(value, text):
    assert format_number(value) == text


def test_bytes_use_powers_of_1024():
    assert format_bytes(0) == "0 B"
    assert format_bytes(1024) == "1.000 KiB"
    assert format_bytes(55 * 2**20) == "55.00 MiB"
    assert format_bytes(3.5 * 2**30) == "3.500 GiB"
    assert format_bytes(2**20 - 1) == "1,024 KiB"


def test_durations():
    assert format_seconds(0.0000123) == "12.30 us"
    assert format_seconds(0.25) == "250.0 ms"
    assert format_seconds(59) == "59.00 s"
    assert format_seconds(90) == "1.500 min"
    assert format_seconds(86400) == "24.00 h"
