import json

import pytest
from loops import make_data

from ds_tft.config.deepspeed_sections import TensorBoard
from ds_tft.errors import ConfigError
from ds_tft.training.run_folder import (
    check_same_run,
    choose_folder,
    fingerprint,
    refuse_used_folder,
    tensorboard_folder,
    write_settings,
)

SETTINGS = {
    "arguments": {"parquet": "a.parquet", "resume": None, "epochs": 3},
    "data": {"target": ["close"]},
    "model": {"hidden_size": 8, "quantiles": (0.1, 0.5)},
    "training": {"epochs": 3, "seed": 0, "windows_per_epoch": None},
    "layout": {"observed": ["a", "b"]},
    "prepared": {"scalers": "12ab"},
    "processes": 1,
    "engine": {
        "train_batch_size": 32,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
        "zero_optimization": {"stage": 1},
    },
}


def changed(path, value):
    settings = json.loads(json.dumps(SETTINGS))
    section = settings
    for name in path[:-1]:
        section = section[name]
    section[path[-1]] = value
    return settings


@pytest.fixture
def folder(tmp_path):
    write_settings(tmp_path / "run", SETTINGS)
    return tmp_path / "run"


def test_the_folder_is_the_one_asked_for_or_named_after_the_time():
    assert str(choose_folder("some/where")) == "some/where"
    assert str(choose_folder(None)).startswith("runs/20")
    with pytest.raises(ConfigError, match=r"--output-dir: empty, got ''; give a folder, or leave it out"):
        choose_folder("")
    with pytest.raises(
        ConfigError, match=r"--output-dir: not a printable name, got 'a\\udcff'; give another"
    ):
        choose_folder("a\udcff")
    assert str(choose_folder("é 日本 '$(x)'")) == "é 日本 '$(x)'"


def test_a_folder_that_holds_a_run_is_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"--output-dir: '.*run' already holds a run.*--resume auto"):
        refuse_used_folder(folder)
    refuse_used_folder(tmp_path / "new")


def test_a_folder_that_cannot_be_written_is_a_users_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--output-dir: cannot write to '.*file/run'.*give another folder"):
        write_settings(tmp_path / "file" / "run", SETTINGS)


def test_the_same_settings_are_the_same_run(folder):
    assert check_same_run(folder, SETTINGS) == ()
    assert json.loads((folder / "settings.json").read_text())["model"]["quantiles"] == [0.1, 0.5]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("data", "target"), ["open"]),
        (("model", "hidden_size"), 16),
        (("model", "quantiles"), (0.1, 0.9)),
        (("layout", "observed"), ["b", "a"]),
        (("prepared", "scalers"), "34cd"),
        (("training", "seed"), 1),
        (("training", "windows_per_epoch"), 100),
        (("engine", "train_batch_size"), 64),
        (("engine", "optimizer", "type"), "SGD"),
        (("engine", "zero_optimization", "stage"), 2),
        (("engine", "bf16"), {"enabled": True}),
        (("engine", "scheduler"), {"type": "WarmupLR"}),
    ],
)
def test_what_a_checkpoint_depends_on_must_stay(folder, path, value):
    with pytest.raises(ConfigError, match=rf"--resume: .*{'.'.join(path)}: .* -> .*set them back, or start"):
        check_same_run(folder, changed(path, value))


def test_every_key_that_must_stay_is_named_in_one_line(folder):
    settings = changed(("model", "hidden_size"), 16)
    settings["layout"]["observed"] = ["a"]
    settings["training"]["epochs"] = 9
    with pytest.raises(ConfigError) as caught:
        check_same_run(folder, settings)
    message = str(caught.value)
    assert 'layout.observed: ["a", "b"] -> ["a"]; model.hidden_size: 8 -> 16' in message
    assert "epochs" not in message
    assert "\n" not in message


def test_other_changes_are_carried_out_and_said(folder):
    settings = changed(("engine", "optimizer", "params", "lr"), 0.01)
    settings["training"]["epochs"] = 5
    settings["arguments"] |= {"resume": "auto", "epochs": 5, "parquet": "b.parquet"}
    assert set(check_same_run(folder, settings)) == {
        'arguments.parquet: "a.parquet" -> "b.parquet"',
        "engine.optimizer.params.lr: 0.001 -> 0.01",
        "training.epochs: 3 -> 5",
    }


@pytest.mark.parametrize("content", [None, "{", ""])
def test_a_folder_without_readable_settings_cannot_be_resumed(tmp_path, content):
    if content is not None:
        (tmp_path / "settings.json").write_text(content)
    with pytest.raises(ConfigError, match=r"--resume: '.*settings.json' is not readable.*run's own folder"):
        check_same_run(tmp_path, SETTINGS)


def test_events_go_where_the_deepspeed_json_says(tmp_path):
    assert tensorboard_folder(TensorBoard(), tmp_path) == tmp_path / "tensorboard"
    assert tensorboard_folder(TensorBoard(job_name="tft"), tmp_path) == tmp_path / "tensorboard" / "tft"
    named = TensorBoard(output_path=str(tmp_path / "events"), job_name="tft")
    assert tensorboard_folder(named, tmp_path) == tmp_path / "events" / "tft"


def test_a_fingerprint_notices_other_values(tmp_path):
    from datasets import panel, prepare

    first = fingerprint(make_data(tmp_path))
    assert first == fingerprint(make_data(tmp_path))
    assert first["windows"] == {"train": 108, "validation": 21}
    columns = panel()
    columns["visits"] = columns["visits"].copy()
    columns["visits"][3] += 1e-3
    assert fingerprint(prepare(tmp_path, columns)) != first
