"""The models of other folders' tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

for _folder in ("quantization", "forecast"):
    sys.path.insert(0, str(Path(__file__).parents[1] / _folder))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Models of a few numbers: threads would mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
