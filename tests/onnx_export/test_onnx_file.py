"""The file takes its name once it is whole and checked; what cannot be written is said in one line."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx_cases import floating, int8, tensors, written

from ds_tft.errors import ConfigError
from ds_tft.onnx_export.graph import Graph
from ds_tft.onnx_export.model_file import LARGEST_FILE, OPERATIONS, check_size, named_at_the_end, save_model
from ds_tft.onnx_export.network import write_network


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Lets this process write no larger file, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_name_comes_at_the_end(tmp_path):
    path = tmp_path / "a.onnx"
    path.write_text("before")
    with named_at_the_end(path) as unfinished:
        unfinished.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


def write_then_fail(path):
    path.write_text("after")
    raise KeyError


def test_after_an_error_there_is_what_was_there_before(tmp_path):
    path = tmp_path / "a.onnx"
    path.write_text("before")
    with pytest.raises(KeyError), named_at_the_end(path) as unfinished:
        write_then_fail(unfinished)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_without_room(tmp_path):
    path = tmp_path / "a.onnx"
    content = write_network(floating()).model("made", "0", {})
    with (
        pytest.raises(ConfigError) as caught,
        largest_file(1000),
        named_at_the_end(path) as unfinished,
    ):
        save_model(content, unfinished)
    assert str(caught.value) == (
        f"--output: cannot write '{tmp_path}/.a.onnx.unfinished', got File too large; give another path or make room"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_too_long(tmp_path):
    path = tmp_path / f"{'a' * 250}.onnx"
    with (
        pytest.raises(ConfigError, match="got File name too long; give another path"),
        named_at_the_end(path) as unfinished,
    ):
        save_model(write_network(floating()).model("made", "0", {}), unfinished)


def write_both(path, folder):
    path.write_text("after")
    folder.mkdir()


def test_a_name_that_a_folder_took_meanwhile(tmp_path):
    path = tmp_path / "a.onnx"
    with (
        pytest.raises(ConfigError, match=f"cannot write '{path}', got Is a directory"),
        named_at_the_end(path) as unfinished,
    ):
        write_both(unfinished, path)
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_too_large():
    check_size(LARGEST_FILE - OPERATIONS)
    with pytest.raises(ConfigError) as caught:
        check_size(LARGEST_FILE - OPERATIONS + 1)
    assert str(caught.value) == (
        "--output: an ONNX file holds 2.000 GiB at most, got a model of 1.984 GiB; lower model.hidden_size, or "
        "export the INT8 model"
    )


def test_the_operations_take_less_than_what_is_left_for_them(tmp_path):
    graph = write_network(floating())
    assert graph.model("made", "0", {}).ByteSize() - graph.nbytes < OPERATIONS / 100


def test_bytes_by_kind(tmp_path):
    path = tmp_path / "a.onnx"
    found = save_model(write_network(int8()).model("made", "0", {}), path)
    constants = tensors(path).values()
    assert found.total == path.stat().st_size
    assert found.codes == sum(values.nbytes for values in constants if values.dtype in (np.int8, np.uint8))
    assert found.floats == sum(values.nbytes for values in constants if values.dtype.kind == "f")
    whole = save_model(write_network(floating()).model("made", "0", {}), path)
    assert whole.codes == 0
    assert 0 < found.codes < whole.floats / 3


def test_a_file_is_checked_before_it_is_written(tmp_path):
    graph = Graph()
    graph.output("y", graph.one("MatMul", graph.input("x", ("n", 2), np.float32), "none"), ("n", 2))
    with pytest.raises(onnx.checker.ValidationError):
        save_model(graph.model("wrong", "0", {}), tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


def test_the_same_model_makes_the_same_file(tmp_path):
    first = written(int8(), tmp_path).read_bytes()
    assert written(int8(), tmp_path).read_bytes() == first
