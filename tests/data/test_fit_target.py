import numpy as np
import pytest
from datasets import panel, prepare


def prepared(tmp_path, sales):
    return prepare(tmp_path, panel() | {"sales": sales})


@pytest.mark.parametrize(
    ("sales", "anchor"),
    [
        (np.cumsum(np.random.default_rng(0).normal(size=180)), "last"),  # a random walk
        (np.repeat([0.0, 50.0, 100.0], 60) + np.random.default_rng(0).normal(size=180), "mean"),  # noise
        (np.tile([0.0, 10.0], 90) + np.random.default_rng(0).normal(size=180), "mean"),  # last is off by 10
    ],
)
def test_auto_takes_the_anchor_around_which_labels_vary_least(tmp_path, sales, anchor):
    data = prepared(tmp_path, sales)
    assert data.preprocessor.target_scaler.anchor == anchor
    assert any(f"anchor {anchor} (training labels vary" in line for line in data.lines)


def test_a_pattern_longer_than_the_window_is_measured_from_the_centre(tmp_path):
    wave = 10 * np.sin(np.arange(180) * np.pi / 4.5) ** 3
    encoder_half_a_wave = {"encoder_length": 4, "horizon": 4}
    data = prepare(tmp_path, panel() | {"sales": wave}, window=encoder_half_a_wave)
    assert data.preprocessor.target_scaler.anchor == "none"
    assert any("anchor none (training labels vary" in line for line in data.lines)


def test_what_is_given_is_done(tmp_path):
    given = prepare(tmp_path, panel(), scaling={"target": {"anchor": "none"}})
    assert given.preprocessor.target_scaler.anchor == "none"
    assert "target: transform none, anchor none (given)" in given.lines
