from __future__ import annotations

import math
import sys
import time

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ds_tft.errors import ConfigError
from ds_tft.training.tensorboard import TensorBoardWriter


def scalars(folder, tag):
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    if tag not in accumulator.Tags()["scalars"]:
        return []
    return [(event.step, pytest.approx(event.value)) for event in accumulator.Scalars(tag)]


def test_values_are_written_by_tag_and_step(tmp_path):
    with TensorBoardWriter(tmp_path) as writer:
        writer.write(10, {"loss/train": 0.5, "optimizer/learning_rate": 1e-3})
        writer.write(20, {"loss/train": 0.25})
    assert scalars(tmp_path, "loss/train") == [(10, 0.5), (20, 0.25)]
    assert scalars(tmp_path, "optimizer/learning_rate") == [(10, 1e-3)]


def test_values_are_readable_after_the_flush_interval_while_the_run_goes_on(tmp_path):
    writer = TensorBoardWriter(tmp_path, flush_seconds=0.1)
    writer.write(1, {"loss/train": 0.5})
    deadline = time.monotonic() + 10
    while not scalars(tmp_path, "loss/train") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert scalars(tmp_path, "loss/train") == [(1, 0.5)]
    writer.close()


def test_an_error_loses_nothing(tmp_path):
    def run():
        with TensorBoardWriter(tmp_path, flush_seconds=600) as writer:
            writer.write(1, {"loss/train": 0.25})
            writer.write(2, {"loss/train": math.nan})
            raise MemoryError

    with pytest.raises(MemoryError):
        run()
    (first, second) = scalars(tmp_path, "loss/train")
    assert first == (1, 0.25)
    assert second[0] == 2


def test_flush_writes_at_once(tmp_path):
    writer = TensorBoardWriter(tmp_path, flush_seconds=600)
    writer.write(1, {"loss/train": 0.25})
    writer.flush()
    assert scalars(tmp_path, "loss/train") == [(1, 0.25)]
    writer.close()
    writer.close()


def test_figures_and_texts_are_written(tmp_path):
    figure = Figure(figsize=(2, 1), dpi=50)
    FigureCanvasAgg(figure)
    with TensorBoardWriter(tmp_path) as writer:
        writer.figure(3, "trace/timeline", figure)
        writer.text(4, "trace/out_of_memory", "step 4")
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    (image,) = accumulator.Images("trace/timeline")
    assert (image.step, image.width, image.height) == (3, 100, 50)
    (text,) = accumulator.Tensors("trace/out_of_memory/text_summary")
    assert text.step == 4
    assert b"step 4" in text.tensor_proto.SerializeToString()


def test_a_resumed_run_shows_each_step_once(tmp_path):
    with TensorBoardWriter(tmp_path) as writer:
        for step in range(1, 9):
            writer.write(step, {"loss/train": float(step)})
    with TensorBoardWriter(tmp_path, resumed_step=5) as writer:
        for step in (6, 7):
            writer.write(step, {"loss/train": -float(step)})
    expected = [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.0), (6, -6.0), (7, -7.0)]
    assert scalars(tmp_path, "loss/train") == expected


def test_other_processes_write_and_import_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # importing it now fails
    with TensorBoardWriter(tmp_path, enabled=False) as writer:
        writer.write(1, {"loss/train": 0.5})
        writer.figure(1, "trace/timeline", Figure())
        writer.text(1, "trace/out_of_memory", "step 1")
        writer.flush()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_users_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"tensorboard.output_path: cannot write to '.*file', got .*; give"):
        TensorBoardWriter(tmp_path / "file")
