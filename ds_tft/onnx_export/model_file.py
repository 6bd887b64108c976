"""ONNX files on disk: they take their name once they are checked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from ds_tft.errors import ConfigError
from ds_tft.formatting import format_bytes

LARGEST_FILE = 2**31 - 1
"""Bytes of the largest message that the format allows."""
OPERATIONS = 2**24
"""More bytes than the operations of any model take."""


class FileBytes(NamedTuple):
    """Where the bytes of a file are."""

    total: int
    codes: int
    """Weights of 8 bits."""
    floats: int
    """Weights, scales and the like in floating point."""


def check_size(num_bytes: int) -> None:
    """Refuses what does not fit into one file, before it is put together: that fails without a reason.

    Args:
        num_bytes: Of tensors and texts.

    Raises:
        ConfigError: They are too many.
    """
    if num_bytes + OPERATIONS > LARGEST_FILE:
        raise ConfigError(
            f"--output: an ONNX file holds {format_bytes(LARGEST_FILE)} at most, got a model of "
            f"{format_bytes(num_bytes)}; lower model.hidden_size, or export the INT8 model"
        )


def save_model(model: onnx.ModelProto, path: Path) -> FileBytes:
    """Checks a model and writes it.

    Args:
        model: To write.
        path: Where to.

    Raises:
        ConfigError: The file cannot be written.
    """
    onnx.checker.check_model(model, full_check=True)
    content = model.SerializeToString()
    with _writing(path):
        path.write_bytes(content)
    return FileBytes(len(content), _count(model, "iu", 1), _count(model, "f", 4))


@contextmanager
def named_at_the_end(path: Path) -> Iterator[Path]:
    """Yields another name beside a path; the file gets its own in the end, or is removed after an error.

    Raises:
        ConfigError: It cannot get its name.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        yield unfinished
        with _writing(path):
            os.replace(unfinished, path)
    finally:
        with suppress(OSError):  # where nothing could be written, that was said already
            unfinished.unlink(missing_ok=True)


def _count(model: onnx.ModelProto, kinds: str, width: int) -> int:
    """Counts the bytes of constants of some kinds of numbers, `width` bytes each."""
    total = 0
    for tensor in model.graph.initializer:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        if dtype.kind in kinds and dtype.itemsize == width:
            total += int(np.prod(tensor.dims)) * width
    return total


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns what the system says about a file into a ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"--output: cannot write '{path}', got {error.strerror}; give another path or make room"
        ) from None
