import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_tft.config.batch import resolve_batch
from ds_tft.config.compression import CompressionTraining, everything
from ds_tft.config.deepspeed import read_deepspeed_settings
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.engine_config import engine_config
from ds_tft.config.validation import validate
from ds_tft.errors import ConfigError

# As in DeepSpeed's documentation, except quantize_weight_in_forward, quantization_period and static ranges.
DOCUMENTED = {
    "weight_quantization": {
        "shared_parameters": {
            "enabled": True,
            "quantizer_kernel": False,
            "schedule_offset": 0,
            "quantize_groups": 1,
            "quantize_verbose": False,
            "quantization_type": "symmetric",
            "rounding": "nearest",
            "quantize_weight_in_forward": True,
            "fp16_mixed_quantize": {"enabled": False, "quantize_change_ratio": 0.001},
        },
        "different_groups": {
            "wq1": {
                "params": {"start_bits": 8, "target_bits": 8, "quantization_period": 0},
                "modules": ["attention", "lstm"],
                "related_modules": None,
            },
            "wq2": {"params": {"start_bits": 8, "target_bits": 8}, "modules": ["_selection"]},
        },
    },
    "activation_quantization": {
        "shared_parameters": {
            "enabled": True,
            "quantization_type": "symmetric",
            "range_calibration": "static",
            "schedule_offset": 5,
        },
        "different_groups": {"aq1": {"params": {"bits": 8}, "modules": ["attention"]}},
    },
}
ON = {"shared_parameters": {"enabled": True}, "different_groups": {"all": {"modules": ["*"]}}}
OFF = {"shared_parameters": {"enabled": False}}
TO_WRITE = (
    'write "weight_quantization": {"shared_parameters": {"enabled": true}, '
    '"different_groups": {"all": {"modules": ["*"]}}}, or leave the section out'
)


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def read(raw, overrides=(), **flags):
        (tmp_path / "ds.json").write_text(json.dumps(raw))
        return read_deepspeed_settings("ds.json", overrides, **flags)

    return read


def changed(*path_and_value):
    """The documented section with one value changed; missing objects on the way are made."""
    *path, last, value = path_and_value
    raw = section = copy.deepcopy(DOCUMENTED)
    for step in path:
        section = section.setdefault(step, {})
    section[last] = value
    return raw


def weights(*path_and_value):
    return changed("weight_quantization", "shared_parameters", *path_and_value)


def weight_group(*path_and_value):
    return changed("weight_quantization", "different_groups", "wq1", *path_and_value)


def inputs(*path_and_value):
    return changed("activation_quantization", "shared_parameters", *path_and_value)


def input_group(*path_and_value):
    return changed("activation_quantization", "different_groups", "aq1", *path_and_value)


def refusal(section):
    with pytest.raises(ConfigError) as caught:
        validate(DeepSpeedSettings, {"compression_training": section}, "ds.json")
    return str(caught.value)


def test_the_documented_keys(read):
    section = read({"compression_training": DOCUMENTED})[0].compression_training
    group = section.weight_quantization.different_groups["wq1"]
    assert group.modules == ("attention", "lstm")
    assert group.params.quantization_period == 0
    assert section.weight_quantization.different_groups["wq2"].params.quantization_period == 1
    assert section.activation_quantization.shared_parameters.schedule_offset == 5


def test_what_is_left_out_is_what_is_supported(read):
    short = {"weight_quantization": ON, "activation_quantization": ON}
    long = copy.deepcopy(DOCUMENTED)
    long["weight_quantization"]["different_groups"] = {
        "all": {"params": {"quantization_period": 1}, "modules": "*"}
    }
    long["activation_quantization"]["different_groups"] = {"all": {"modules": "*"}}
    long["activation_quantization"]["shared_parameters"]["schedule_offset"] = 0
    assert read({"compression_training": short}) == read({"compression_training": long})


def test_settings_as_saved_are_read_again(read):
    settings, _ = read({"compression_training": DOCUMENTED})
    saved = settings.compression_training.model_dump(mode="json")
    assert read({"compression_training": saved})[0] == settings


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, f": nothing is enabled; {TO_WRITE}"),
        ({"weight_quantization": OFF}, f": nothing is enabled; {TO_WRITE}"),
        ({"weight_quantization": {"different_groups": ON["different_groups"]}},
         f": nothing is enabled; {TO_WRITE}"),
        ({"weight_quantization": OFF, "activation_quantization": ON},
         ": activation_quantization is enabled and weight_quantization is not, and INT8 inputs are multiplied "
         "by INT8 weights; enable both, or weight_quantization alone"),
        ({"weight_quantization": {"shared_parameters": {"enabled": True}}},
         ".weight_quantization: enabled, and different_groups names no modules; "
         'write {"all": {"modules": ["*"]}} for all'),
        (changed("activation_quantization", "different_groups", {}),
         ".activation_quantization: enabled, and different_groups names no modules; "
         'write {"all": {"modules": ["*"]}} for all'),
        (weights("quantizer_kernel", True),
         ".weight_quantization.shared_parameters.quantizer_kernel: not supported, got true; it was a kernel of "
         "DeepSpeed's fp16 optimizer and is no longer in it; write false"),
        (weights("quantize_groups", 64),
         ".weight_quantization.shared_parameters.quantize_groups: not supported, got 64; every output channel "
         "has a scale of its own; write 1"),
        (weights("quantize_weight_in_forward", False),
         ".weight_quantization.shared_parameters.quantize_weight_in_forward: not supported, got false; false "
         "quantised in DeepSpeed's fp16 optimizer, which no longer does; write true"),
        (weights("fp16_mixed_quantize", "enabled", True),
         ".weight_quantization.shared_parameters.fp16_mixed_quantize.enabled: not supported, got true; it "
         "blended codes with fp16 weights, and the INT8 model has codes only; write false"),
        (weights("schedule_offset", -1),
         ".weight_quantization.shared_parameters.schedule_offset: expected 0 or more, got -1; the default is 0"),
        (weights("rounding", "neerest"),
         ".weight_quantization.shared_parameters.rounding: expected 'nearest', got \"neerest\"; "
         "did you mean 'nearest'?"),
        (weights("enabled", "true"),
         '.weight_quantization.shared_parameters.enabled: expected true or false, got "true"; write true'),
        (weight_group("params", "start_bits", 12),
         ".weight_quantization.different_groups.wq1.params.start_bits: not supported, got 12; codes are stored "
         "and multiplied as INT8; write 8"),
        (weight_group("params", "target_bits", 4),
         ".weight_quantization.different_groups.wq1.params.target_bits: not supported, got 4; codes are stored "
         "and multiplied as INT8; write 8"),
        (weight_group("params", "quantization_period", 50),
         ".weight_quantization.different_groups.wq1.params.quantization_period: not supported, got 50; it "
         "counts updates between two numbers of bits, and there is one; leave it out"),
        (weight_group("params", "start_bits", "8"),
         ".weight_quantization.different_groups.wq1.params.start_bits: expected an integer, got \"8\"; write 8"),
        (input_group("params", "bits", 4),
         ".activation_quantization.different_groups.aq1.params.bits: not supported, got 4; codes are stored "
         "and multiplied as INT8; write 8"),
        (weight_group("modules", []),
         '.weight_quantization.different_groups.wq1.modules: names no module, got []; write ["*"] for all'),
        (weight_group("modules", ["attention", "lstm("]),
         ".weight_quantization.different_groups.wq1.modules[1]: not a regular expression (missing ), "
         'unterminated subpattern at position 4), got "lstm("; write "*" for all modules, or a part of a name'),
        (weight_group("modules", "*lstm"),
         ".weight_quantization.different_groups.wq1.modules: not a regular expression (nothing to repeat at "
         'position 0), got "*lstm"; write "*" for all modules, or a part of a name'),
        (weight_group("modules", [""]),
         ".weight_quantization.different_groups.wq1.modules[0]: an empty pattern matches every module; "
         'write "*" if that is meant'),
        (weight_group("modules", 3),
         ".weight_quantization.different_groups.wq1.modules: expected a list, got 3; the default is [\"*\"]"),
        (weight_group("related_modules", [["lstm"]]),
         '.weight_quantization.different_groups.wq1.related_modules: not supported, got [["lstm"]]; it serves '
         "pruning; remove it"),
        (input_group("related_modules", []),
         ".activation_quantization.different_groups.aq1.related_modules: not supported, got []; it serves "
         "pruning; remove it"),
        (changed("weight_quantization", "different_groups", "wq1", 3),
         ".weight_quantization.different_groups.wq1: expected an object, got 3"),
        (changed("weight_quantisation", {}),
         ".weight_quantisation: unknown key; did you mean 'weight_quantization'?"),
        (weight_group("moduls", ["*"]),
         ".weight_quantization.different_groups.wq1.moduls: unknown key; did you mean 'modules'?"),
        (weight_group("start_bits", 8),
         ".weight_quantization.different_groups.wq1.start_bits: unknown key; did you mean "
         "'compression_training.weight_quantization.different_groups.NAME.params.start_bits'?"),
        (input_group("params", "bit", 8),
         ".activation_quantization.different_groups.aq1.params.bit: unknown key; did you mean 'bits'?"),
    ],
)  # fmt: skip
def test_messages(section, message):
    assert refusal(section) == f"ds.json: compression_training{message}"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (changed("sparse_pruning", {"shared_parameters": {"enabled": True}}),
         "sparse_pruning: not supported, zeros save neither memory nor time here; use weight_quantization"),
        (changed("head_pruning", {}),
         "head_pruning: not supported, heads are few from the start; use model.num_heads in the run JSON"),
        (weights("quantization_type", "asymmetric"),
         'weight_quantization.shared_parameters.quantization_type: not supported, got "asymmetric"; a zero '
         "point was measured to gain nothing; use symmetric"),
        (weights("rounding", "stochastic"),
         'weight_quantization.shared_parameters.rounding: not supported, got "stochastic"; training runs the '
         "arithmetic of the INT8 model, which rounds to the nearest; use nearest"),
        (weights("schedule_offset_end", 9),
         "weight_quantization.shared_parameters.schedule_offset_end: not supported, what is quantised stays so "
         "to the end; remove it"),
        (inputs("range_calibration", "dynamic"),
         'activation_quantization.shared_parameters.range_calibration: not supported, got "dynamic"; ranges '
         "are measured once and stay, as the INT8 model needs them; use static"),
    ],
)  # fmt: skip
def test_what_deepspeed_had_and_this_package_does_not(read, section, message):
    with pytest.raises(ConfigError) as caught:
        read({"compression_training": section})
    assert str(caught.value) == f"ds.json: compression_training.{message}"


@pytest.mark.parametrize("pattern", ["a{99999999999}", "(" * 5000 + ")" * 5000])
def test_patterns_too_large_to_compile(pattern):
    message = refusal(weight_group("modules", [pattern]))
    assert message.startswith(
        "ds.json: compression_training.weight_quantization.different_groups.wq1.modules[0]: not a regular "
    )
    assert len(message) < 400


def test_inputs_may_stay_in_floating_point(read):
    for section in ({"weight_quantization": ON}, {"weight_quantization": ON, "activation_quantization": OFF}):
        settings, _ = read({"compression_training": section})
        assert settings.quantises
        assert not settings.compression_training.activation_quantization.shared_parameters.enabled


@pytest.mark.parametrize("raw", [{}, {"compression_training": None}])
def test_the_flag_means_everything_where_the_file_names_nothing(read, raw):
    settings, lines = read(raw, use_int8=True)
    assert settings.compression_training == CompressionTraining.model_validate(everything())
    for section in (settings.compression_training.weight_quantization,
                    settings.compression_training.activation_quantization):  # fmt: skip
        assert section.shared_parameters.enabled
        assert [group.modules for group in section.different_groups.values()] == [("*",)]
    source = "ds.json" if raw else "default"
    assert lines == [
        f'compression_training: null ({source}) -> {{"weight_quantization": {{"shared_parameters": '
        '{"enabled":... (--use-int8)'
    ]
    assert not read(raw)[0].quantises


def test_the_flag_adds_nothing_to_what_the_file_says(read):
    raw = {"compression_training": {"weight_quantization": ON}}
    assert read(raw, use_int8=True) == read(raw)
    assert read(raw, use_int8=True)[1] == []


def test_the_flag_does_not_complete_an_empty_section(read):
    with pytest.raises(ConfigError, match=r"^ds\.json: compression_training: nothing is enabled; write "):
        read({"compression_training": {}}, use_int8=True)


def test_overrides_reach_into_groups(read):
    raw = {"compression_training": {"weight_quantization": ON}}
    key = "compression_training.weight_quantization.different_groups"
    settings, lines = read(raw, [f"deepspeed.{key}.all.modules=lstm", f"deepspeed.{key}.more.modules=gate"])
    groups = settings.compression_training.weight_quantization.different_groups
    assert [group.modules for group in groups.values()] == [("lstm",), ("gate",)]
    assert lines == [
        f'{key}.all.modules: ["*"] (ds.json) -> "lstm" (--set)',
        f'{key}.more.modules: ["*"] (default) -> "gate" (--set)',
    ]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"zero_optimization": {"stage": 3}, "ds_tft": {"streaming": False}},
         "compression_training needs whole weights to quantise, and zero_optimization.stage 3 partitions them; "
         "use stage 2"),
        ({"zero_optimization": {"stage": 3}},
         "compression_training needs whole weights to quantise, and zero_optimization.stage 3 partitions them; "
         "use stage 2"),
        ({"ds_tft": {"streaming": False}},
         "compression_training quantises the streaming form of the variable selection, and ds_tft.streaming is "
         "false; leave it out"),
    ],
)  # fmt: skip
def test_what_int8_does_not_go_with(read, raw, message):
    with pytest.raises(ConfigError) as caught:
        read(raw, use_int8=True)
    assert str(caught.value) == f"ds.json, --use-int8: {message}"
    with pytest.raises(ConfigError) as caught:
        read(raw | {"compression_training": DOCUMENTED})
    assert str(caught.value) == f"ds.json: {message}"


@pytest.mark.parametrize(
    "raw",
    [
        {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
        {"zero_optimization": {"stage": 1}, "fp16": {"enabled": True}},
        {"ds_tft": {"recompute": "default", "compress_kept": "int8"}},
        {"activation_checkpointing": {"cpu_checkpointing": True}},
    ],
)
def test_what_int8_goes_with(read, raw):
    assert read(raw, use_int8=True)[0].quantises


def test_deepspeed_never_sees_it(read):
    raw = {"compression_training": DOCUMENTED, "ds_tft": {"int8": {"fine_tune_steps": 3}}}
    settings, _ = read(raw)
    plain, _ = read({})
    batch = resolve_batch(settings, 1, 16)
    config = engine_config(settings, batch, 100, 5000)
    assert config == engine_config(plain, batch, 100, 5000)
    assert "quantiz" not in json.dumps(config)


def test_deepspeed_would_refuse_it():
    runtime_config = pytest.importorskip("deepspeed.runtime.config")
    settings, _ = read_deepspeed_settings(None, use_int8=True)
    config = engine_config(settings, resolve_batch(settings, 1, 16), 100, 5000)
    runtime_config.DeepSpeedConfig(copy.deepcopy(config))
    with pytest.raises(runtime_config.DeepSpeedConfigError, match="compression"):
        runtime_config.DeepSpeedConfig(config | {"compression_training": everything()})


def leaves(value, path=()):
    """Paths of every value in a JSON."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from leaves(below, (*path, key))
    yield path


PATHS = [path for path in leaves(DOCUMENTED) if path]
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 20), st.floats(-3, 20), st.text(max_size=5),
    st.lists(st.text(max_size=4), max_size=3), st.just({}),
    st.sampled_from(["asymmetric", "dynamic", "stochastic", "*", ["*", "lstm"], [None]]),
)  # fmt: skip


@given(path=st.sampled_from(PATHS), value=VALUES)
def test_any_value_anywhere_gives_settings_or_one_plain_line(path, value):
    raw = {"compression_training": changed(*path, value)}
    try:
        settings = validate(DeepSpeedSettings, raw, "x.json")
    except ConfigError as error:
        message = str(error)
        assert message.startswith("x.json: compression_training")
        assert "\n" not in message
        assert "pydantic" not in message
        assert "Input should" not in message
    else:
        assert validate(DeepSpeedSettings, json.loads(settings.model_dump_json()), "x.json") == settings
