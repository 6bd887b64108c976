from __future__ import annotations

import json

import numpy as np
import pytest

from ds_tft.training.metrics_file import MetricsFile, Rewound


def records(path):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_every_record_is_readable_at_once(path):
    file = MetricsFile(path)
    assert not path.exists()
    file.append(1, {"loss/train": 0.5, "best": True, "epoch": 0, "name": "a", "norm": None})
    assert records(path) == [
        {"step": 1, "loss/train": 0.5, "best": True, "epoch": 0, "name": "a", "norm": None}
    ]
    file.append(2, {"loss/train": np.float32(0.25)})
    assert records(path)[1] == {"step": 2, "loss/train": 0.25}
    file.close()


def test_nonfinite_values_are_null_and_named(path):
    file = MetricsFile(path)
    file.append(1, {"a": float("nan"), "b": float("inf"), "c": 1.0, "d": np.float32("-inf")})
    file.close()
    assert records(path) == [
        {"step": 1, "a": None, "b": None, "c": 1.0, "d": None, "nonfinite": ["a", "b", "d"]}
    ]


def test_rewinding_leaves_each_step_once(path):
    file = MetricsFile(path)
    for step in range(1, 9):
        file.append(step, {"loss": float(step)})
    assert file.rewind(5) == Rewound(later=3, unreadable=0)
    for step in range(6, 8):
        file.append(step, {"loss": -float(step)})
    file.close()
    assert [record["step"] for record in records(path)] == [1, 2, 3, 4, 5, 6, 7]
    assert [record["loss"] for record in records(path)][-2:] == [-6.0, -7.0]
    assert [entry.name for entry in path.parent.iterdir()] == ["metrics.jsonl"]


def test_rewinding_removes_what_a_killed_process_had_begun(path):
    path.write_text('{"step": 1, "loss": 0.5}\n[1]\n{"loss": 1}\n{"step": 2, "lo')
    file = MetricsFile(path)
    assert file.rewind(10) == Rewound(later=0, unreadable=3)
    file.append(2, {"loss": 0.25})
    file.close()
    assert records(path) == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]


def test_rewinding_nothing(path):
    assert MetricsFile(path).rewind(3) == Rewound(0, 0)
    assert not path.exists()
