import json
import subprocess
import sys

import pytest

from ds_tft.config.overrides import parse_set
from ds_tft.config.resolve import RunFlags, read_run_settings
from ds_tft.config.run import RunSettings
from ds_tft.errors import ConfigError


@pytest.fixture
def run_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = {"training": {"epochs": 20}, "model": {"hidden_size": 32}, "data": {"target": ["close"]}}
    (tmp_path / "run.json").write_text(json.dumps(content))
    return "run.json"


def refusal(path, overrides=(), flags=RunFlags()):  # noqa: B008
    with pytest.raises(ConfigError) as caught:
        read_run_settings(path, overrides, flags)
    return str(caught.value)


def test_without_a_file_all_is_default():
    assert read_run_settings(None) == (RunSettings(), [])


def test_command_line_over_file_over_defaults(run_json):
    settings, lines = read_run_settings(
        run_json, ["model.dropout=0", "data.time=open_time", "model.quantiles=[0.5]"], RunFlags(epochs=50)
    )
    assert settings.model.hidden_size == 32
    assert settings.model.num_heads == 4
    assert settings.model.dropout == 0
    assert settings.model.quantiles == (0.5,)
    assert settings.data.time == "open_time"
    assert settings.training.epochs == 50
    assert lines == [
        "model.dropout: 0.1 (default) -> 0 (--set)",
        'data.time: null (default) -> "open_time" (--set)',
        "model.quantiles: [0.1, 0.5, 0.9] (default) -> [0.5] (--set)",
        "training.epochs: 20 (run.json) -> 50 (--epochs)",
    ]


def test_all_flags(run_json):
    settings, lines = read_run_settings(run_json, (), RunFlags(targets=("a", "b"), epochs=3, seed=7))
    assert settings.data.target == ("a", "b")
    assert (settings.training.epochs, settings.training.seed) == (3, 7)
    assert lines[0] == 'data.target: ["close"] (run.json) -> ["a", "b"] (--target)'
    assert lines[2] == "training.seed: 0 (default) -> 7 (--seed)"


def test_equal_values_are_no_override(run_json):
    assert (
        read_run_settings(run_json, ["data.target=close"], RunFlags(targets=("close",), epochs=20))[1] == []
    )


def test_resolved_settings_reproduce_the_run(run_json, tmp_path):
    settings, _ = read_run_settings(
        run_json, ["data.series=[]", "split.test_start=5", "split.validation_start=4"]
    )
    (tmp_path / "resolved.json").write_text(settings.model_dump_json())
    assert read_run_settings("resolved.json") == (settings, [])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b=3", 3),
        ("a.b=3.5", 3.5),
        ("a.b=true", True),
        ("a.b=null", None),
        ('a.b="3"', "3"),
        ("a.b=close", "close"),
        ("a.b=1min", "1min"),
        ("a.b=2020-01-01", "2020-01-01"),
        ("a.b=x=y", "x=y"),
        ("a.b= [1, 2] ", [1, 2]),
        ("a.b=True", "True"),
    ],
)
def test_values_are_json_or_bare_words(text, value):
    override = parse_set(text)
    assert override.path == ("a", "b")
    assert override.value == value
    assert type(override.value) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model.dropout", "--set model.dropout: no '='; write --set section.key=value"),
        ("=3", "--set =3: a name is missing before '='; write --set section.key=value"),
        ("model..x=3", "--set model..x=3: a name is missing before '='; write --set section.key=value"),
        ("data.time=", "--set data.time=: no value after '='; write null for none"),
        ("training.seed=NaN",
         "--set training.seed: not a JSON value, got NaN; write a finite number or null"),
        ("model.hiden_size=3", "--set: model.hiden_size: unknown key; did you mean 'hidden_size'?"),
        ("epochs=3", "--set: epochs: unknown key; did you mean 'training.epochs'?"),
        ("model.dropout=0,1", '--set: model.dropout: expected a number, got "0,1"; the default is 0.1'),
        ("training.epochs.x=3", "--set: training.epochs.x: 'training.epochs' is no section, got 20; "
                                "set 'training.epochs' itself"),
        ("model.num_heads=5", "run.json, --set: model: hidden_size (32) must be a multiple of num_heads (5)"),
    ],
)  # fmt: skip
def test_bad_set(run_json, text, message):
    assert refusal(run_json, [text]) == message


def test_broken_json_is_no_bare_word(run_json):
    message = refusal(run_json, ["model.quantiles=[0.1, 0.5"])
    assert message.startswith("--set model.quantiles:1:10: not valid JSON")


def test_a_flag_is_named_as_the_place(run_json):
    message = refusal(run_json, (), RunFlags(epochs=0))
    assert message == "--epochs: training.epochs: expected 1 or more, got 0; the default is 20"


def test_one_key_twice_on_the_command_line(run_json):
    message = refusal(run_json, ["training.epochs=3"], RunFlags(epochs=4))
    assert message == "--set, --epochs: training.epochs: got both 3 and 4; give it once"
    message = refusal(run_json, ["data.weight=a", "data.weight=b"])
    assert message == '--set: data.weight: got both "a" and "b"; give it once'
    read_run_settings(run_json, ["training.epochs=4"], RunFlags(epochs=4))


def test_deepspeed_overrides_are_left_alone(run_json):
    assert read_run_settings(run_json, ["deepspeed.gradient_clipping=0.5"]) == read_run_settings(run_json)


def test_settings_load_without_torch_and_deepspeed():
    code = (
        "import sys, ds_tft.config.resolve, ds_tft.config.deepspeed; "
        "print({'torch', 'deepspeed', 'numpy', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
