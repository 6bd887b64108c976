from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import BaseModel

from ds_tft.config.run import RunSettings
from ds_tft.data.infer import infer_roles
from ds_tft.data.parquet import open_source
from ds_tft.data.prepare import prepare_training
from ds_tft.errors import ConfigError
from ds_tft.export import (
    DESCRIPTION,
    WEIGHTS,
    ModelDescription,
    find_export,
    load_weights,
    read_export,
    save_weights,
    write_export,
)
from ds_tft.model.inputs import ModelSize
from ds_tft.model.tft import TemporalFusionTransformer

SIZE = ModelSize(encoder_length=4, horizon=2, hidden_size=4, num_heads=2)


@pytest.fixture(scope="module")
def description(tmp_path_factory) -> ModelDescription:
    file = tmp_path_factory.mktemp("data") / "data.parquet"
    pq.write_table(pa.table({"time": range(40), "x": [row / 3 for row in range(40)]}), file)
    settings = RunSettings.model_validate_json(
        '{"data": {"target": "x"}, "window": {"encoder_length": 4, "horizon": 2}, '
        '"model": {"hidden_size": 4, "num_heads": 2}}'
    )
    source = open_source(str(file))
    data = prepare_training(source, infer_roles(source, settings.data), settings)
    return ModelDescription(
        settings=settings,
        size=SIZE,
        preprocessor=data.preprocessor,
        bounds=data.bounds,
        step=3,
        validation_loss=None,
    )


@pytest.fixture
def folder(tmp_path, description) -> Path:
    """A run folder with an export."""
    torch.manual_seed(0)
    write_export(tmp_path / "export", TemporalFusionTransformer(SIZE), description)
    return tmp_path


def test_what_is_read_is_what_was_written(folder, description):
    for path in (folder, folder / "export"):
        assert find_export(path) == folder / "export"
        loaded = read_export(path)
        assert loaded.description == description
        assert not loaded.model.training
    torch.manual_seed(0)
    for name, tensor in TemporalFusionTransformer(SIZE).state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor), name
    assert sorted(path.name for path in (folder / "export").iterdir()) == sorted([DESCRIPTION, WEIGHTS])


def test_weights_are_fp32_on_the_cpu_whatever_they_were(tmp_path):
    model = TemporalFusionTransformer(SIZE).to(torch.bfloat16)
    save_weights(model, tmp_path / WEIGHTS)
    plain = TemporalFusionTransformer(SIZE)
    load_weights(plain, tmp_path / WEIGHTS)
    for name, tensor in model.state_dict().items():
        assert torch.equal(plain.state_dict()[name], tensor.float()), name


def test_weights_may_be_read_by_whom_other_files_may(folder):
    export = find_export(folder)
    assert (export / WEIGHTS).stat().st_mode == (export / DESCRIPTION).stat().st_mode


def test_a_folder_without_an_export(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(
            ConfigError, match=r"no exported model, looked for '.*model.json'; give the folder"
        ):
            read_export(path)


def test_a_description_that_is_cut_off_or_no_object(folder):
    file = folder / "export" / DESCRIPTION
    for text in (file.read_text()[:500], "[1]", "\x00"):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"model.json: not readable as JSON, got .*; export the model"):
            read_export(folder)


def test_another_format_is_named_before_its_keys_are(folder):
    file = folder / "export" / DESCRIPTION
    file.write_text(json.dumps({"format": 2, "something": "new"}))
    with pytest.raises(ConfigError, match="format 2, this release reads 1; use the release that wrote it"):
        read_export(folder)


def test_a_description_with_a_wrong_value(folder):
    file = folder / "export" / DESCRIPTION
    content = json.loads(file.read_text())
    content["size"]["hidden_size"] = "wide"
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="model.json: size.hidden_size: Input should be a valid integer"):
        read_export(folder)


def test_weights_that_are_cut_off_missing_or_of_another_model(folder, tmp_path):
    file = folder / "export" / WEIGHTS
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match="not readable as safetensors"):
        read_export(folder)
    file.unlink()
    with pytest.raises(ConfigError, match="weights.safetensors: no such file"):
        read_export(folder)
    save_weights(TemporalFusionTransformer(ModelSize(hidden_size=8, num_heads=2)), file)
    with pytest.raises(ConfigError, match="weights do not fit model.json, got .*size mismatch"):
        read_export(folder)


def test_a_failed_write_leaves_the_older_export(folder, description, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError("no space")

    before = {path.name: path.read_bytes() for path in (folder / "export").iterdir()}
    monkeypatch.setattr("ds_tft.export.save_file", fail)
    with pytest.raises(OSError, match="no space"):
        write_export(folder / "export", TemporalFusionTransformer(SIZE), description)
    for name, content in before.items():
        assert (folder / "export" / name).read_bytes() == content


def test_every_part_of_the_description_refuses_unknown_keys(description):
    def parts(value: object) -> list[BaseModel]:
        if not isinstance(value, BaseModel):
            return []
        return [value, *(part for name in type(value).model_fields for part in parts(getattr(value, name)))]

    for part in parts(description):
        assert part.model_config.get("extra") == "forbid", type(part)


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        (("size", "hidden_size"), 8, "size.hidden_size is 8, and 4 follows from the rest; export"),
        (("size", "known_reals"), 7, "size.known_reals is 7, and 1 follows from the rest"),
        (("size", "num_heads"), 0, r"size: hidden_size, num_heads, .* must be at least 1, got 4, 0,"),
        (("size", "hidden_size"), -4, r"size: hidden_size, num_heads, .* must be at least 1, got -4,"),
        (("settings", "model", "quantiles"), [0.5], r"size.quantiles is \(0.1, 0.5, 0.9\), and \(0.5,\)"),
        (("preprocessor", "window", "horizon"), 3, "preprocessor.window and settings.window differ"),
        (("preprocessor", "target_scaler", "names"), ["y"], r"target_scaler must be of the columns \('x',\)"),
        (("preprocessor", "target_scaler", "scale"), [[0.0], [1.0]], "target_scaler: scale must be above 0"),
        (("preprocessor", "series_keys"), [["a"], ["b"]], "target_scaler must have rows for 2 series, got 2"),
        (("preprocessor", "layout", "roles", "series"), ["x"], r"categories must be \['x'\], got \[\]"),
    ],
)
def test_parts_that_do_not_fit_each_other(folder, path, value, match):
    file = folder / "export" / DESCRIPTION
    content = json.loads(file.read_text())
    part = content
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=f"model.json: .*{match}"):
        read_export(folder)
