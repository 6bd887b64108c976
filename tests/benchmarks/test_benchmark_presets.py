"""The made inputs of the GPU check, and how a run is read."""

import json
from pathlib import Path

import pytest
from gpu_presets import PRESETS, ROOT, read_run, run_preset, write_inputs

from ds_tft.config.resolve import read_run_settings
from ds_tft.data.infer import infer_roles
from ds_tft.data.parquet import open_source
from ds_tft.data.prepare import prepare_training
from ds_tft.model_size import derive_size


def test_inputs_are_225(tmp_path):
    write_inputs(tmp_path)
    settings, _ = read_run_settings(str(tmp_path / "run.json"))
    source = open_source(str(tmp_path / "shops.parquet"))
    data = prepare_training(source, infer_roles(source, settings.data), settings)
    size = derive_size(data.preprocessor, settings)
    assert (size.static_reals, size.observed_reals, size.known_reals, size.hidden_size) == (5, 210, 10, 128)
    assert len(data.windows["train"]) > 256


def test_every_preset_is_tried():
    assert [path.name for path in PRESETS] == sorted(
        path.name for path in (ROOT / "ds_configs").glob("*.json")
    )


def test_a_run_is_read(tmp_path):
    records = [
        {"step": 1, "throughput/seconds_per_step": 2.0, "memory/host_rss_peak_mib": 10.0},
        {"step": 2, "throughput/seconds_per_step": 1.0, "memory/cuda_reserved_peak_mib": 30.0},
        {"step": 3, "throughput/seconds_per_step": 1.5, "memory/cuda_reserved_peak_mib": 20.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "step-2.png").write_bytes(b"")
    run = read_run("zero1", tmp_path)
    assert (run.peak_tag, run.peak_mib) == ("memory/cuda_reserved_peak_mib", 30.0)
    assert (run.step_seconds, run.traces, run.memory_tags) == (1.5, 1, 0)


def test_a_run_that_fails_says_why(tmp_path):
    write_inputs(tmp_path)
    wrong = Path(tmp_path / "wrong.json")
    wrong.write_text('{"zero_optimisation": {"stage": 1}}')
    run = run_preset(wrong, tmp_path, 4.0)
    assert run.code != 0
    assert "zero_optimi" in run.said


@pytest.mark.slow
def test_a_preset_trains(tmp_path):
    write_inputs(tmp_path)
    small = ("--set", "model.hidden_size=8", "--set", "training.windows_per_epoch=64")
    run = run_preset(ROOT / "ds_configs" / "zero1.json", tmp_path, 4.0, small)
    assert run.code == 0, run.said
    assert run.memory_tags > 0
    assert run.step_seconds > 0
