import json

import pytest

from ds_tft.config.compression import everything
from ds_tft.config.deepspeed import read_deepspeed_settings
from ds_tft.config.int8 import Int8Plan, Int8Settings, ModuleRule, check_schedule, int8_plan, unmatched
from ds_tft.errors import ConfigError

WEIGHTS = "compression_training.weight_quantization"
ACTIVATIONS = "compression_training.activation_quantization"
NAMES = ("known_embedding", "lstm_encoder.lstm", "attention.query", "attention.key", "quantile_head")


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def read(raw, **flags):
        (tmp_path / "ds.json").write_text(json.dumps(raw))
        return read_deepspeed_settings("ds.json", **flags)[0]

    return read


def int8(**section):
    return {"ds_tft": {"int8": section}}


def quantisation(groups, **shared):
    named = {name: {"modules": patterns} for name, patterns in groups.items()}
    return {"shared_parameters": {"enabled": True, **shared}, "different_groups": named}


def plan(weights, activations=(), weight_offset=0, activation_offset=0):
    return Int8Plan(
        weights=tuple(ModuleRule(f"w{index}", patterns) for index, patterns in enumerate(weights)),
        activations=tuple(ModuleRule(f"a{index}", patterns) for index, patterns in enumerate(activations)),
        weight_offset=weight_offset,
        activation_offset=activation_offset,
        verbose=False,
    )


def test_defaults(read):
    section = read({}, use_int8=True).ds_tft.int8
    assert section == Int8Settings(
        calibration="percentile",
        percentile=99.99,
        calibration_windows=1024,
        fine_tune_steps="auto",
        learning_rate="auto",
    )


def test_values_that_are_given(read):
    given = {"calibration_windows": 64, "fine_tune_steps": 10, "learning_rate": 1, "percentile": 100}
    section = read(int8(**given), use_int8=True).ds_tft.int8
    assert {name: getattr(section, name) for name in given} == given
    assert isinstance(section.learning_rate, float)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"calibration": "mse", "percentile": 99.9},
         ": percentile has no effect with calibration 'mse', got 99.9; leave it out"),
        ({"calibration": "min_max", "percentile": 99.99},
         ": percentile has no effect with calibration 'min_max', got 99.99; leave it out"),
        ({"fine_tune_steps": 0, "learning_rate": 0.001},
         ": learning_rate has no effect with fine_tune_steps 0, got 0.001; leave it out"),
        ({"percentile": 50}, ".percentile: expected a number above 50, got 50; the default is 99.99"),
        ({"percentile": 100.1}, ".percentile: expected 100 or less, got 100.1; the default is 99.99"),
        ({"calibration": "minmax"},
         ".calibration: expected 'percentile', 'min_max' or 'mse', got \"minmax\"; did you mean 'min_max'?"),
        ({"calibration_windows": 0},
         ".calibration_windows: expected 1 or more, got 0; the default is 1024"),
        ({"fine_tune_steps": -1},
         ".fine_tune_steps: expected 0 or more, or 'auto', got -1; the default is \"auto\""),
        ({"fine_tune_steps": True},
         ".fine_tune_steps: expected an integer, or 'auto', got true; the default is \"auto\""),
        ({"learning_rate": 0},
         ".learning_rate: expected a number above 0, or 'auto', got 0; the default is \"auto\""),
        ({"calibration_window": 3},
         ".calibration_window: unknown key; did you mean 'calibration_windows'?"),
    ],
)  # fmt: skip
def test_messages(read, section, message):
    with pytest.raises(ConfigError) as caught:
        read(int8(**section), use_int8=True)
    assert str(caught.value) == f"ds.json: ds_tft.int8{message}"


@pytest.mark.parametrize("section", [{}, {"calibration": "percentile"}, {"fine_tune_steps": 3}])
def test_the_section_without_int8_would_do_nothing(read, section):
    with pytest.raises(ConfigError) as caught:
        read(int8(**section))
    assert str(caught.value) == (
        "ds.json: ds_tft.int8 has no effect without compression_training; give --use-int8, or leave it out"
    )
    assert read(int8(**section) | {"compression_training": everything()}).quantises


@pytest.mark.parametrize(
    ("raw", "flag"),
    [
        ({}, False),
        ({"ds_tft": {"streaming": True}}, False),
        ({}, True),
        (int8(calibration="mse"), True),
        (int8(fine_tune_steps=0, percentile=99), True),
    ],
)
def test_settings_as_saved_are_read_again(read, raw, flag):
    settings = read(raw, use_int8=flag)
    for exclude_unset in (False, True):
        saved = settings.model_dump(mode="json", exclude_unset=exclude_unset)
        assert read(saved) == settings
    assert ("int8" in settings.model_dump()["ds_tft"]) == flag


def test_a_percentile_without_effect_is_not_saved():
    assert "percentile" not in Int8Settings(calibration="mse").model_dump()
    assert Int8Settings().model_dump()["percentile"] == 99.99


def test_no_plan_without_int8(read):
    assert int8_plan(read({})) is None


def test_the_plan_of_the_flag(read):
    everywhere = [
        (ModuleRule(f"{section}.different_groups.all.modules", ("*",)),) for section in (WEIGHTS, ACTIVATIONS)
    ]
    assert int8_plan(read({}, use_int8=True)) == Int8Plan(
        weights=everywhere[0],
        activations=everywhere[1],
        weight_offset=0,
        activation_offset=0,
        verbose=False,
    )


def test_the_plan_of_a_section(read):
    section = {
        "weight_quantization": quantisation(
            {"first": ["lstm", "^attention"], "my group": ["head$"]}, schedule_offset=2, quantize_verbose=True
        ),
        "activation_quantization": quantisation({"all": ["*"]}, schedule_offset=3),
    }
    assert int8_plan(read({"compression_training": section})) == Int8Plan(
        weights=(
            ModuleRule(f"{WEIGHTS}.different_groups.first.modules", ("lstm", "^attention")),
            ModuleRule(f'{WEIGHTS}.different_groups."my group".modules', ("head$",)),
        ),
        activations=(ModuleRule(f"{ACTIVATIONS}.different_groups.all.modules", ("*",)),),
        weight_offset=2,
        activation_offset=3,
        verbose=True,
    )


def test_activations_that_are_off_leave_inputs_alone(read):
    off = quantisation({"all": ["no such module"]}, schedule_offset=3, enabled=False)
    section = {"weight_quantization": quantisation({"all": ["*"]}), "activation_quantization": off}
    found = int8_plan(read({"compression_training": section}))
    assert found.activations == ()
    assert found.activation_offset == 0


@pytest.mark.parametrize(
    ("patterns", "matched"),
    [
        (("*",), NAMES),
        (("attention",), ("attention.query", "attention.key")),
        (("key$", "^lstm"), ("lstm_encoder.lstm", "attention.key")),
        (("query|head",), ("attention.query", "quantile_head")),
        (("^key",), ()),
    ],
)
def test_patterns_are_searched_for(patterns, matched):
    assert tuple(name for name in NAMES if ModuleRule("here", patterns).matches(name)) == matched


@pytest.mark.parametrize(
    ("offsets", "steps"), [((0, 0), 0), ((0, 0), 1), ((9, 9), 10), ((0, 4), 5), ((4, 0), 5)]
)
def test_schedules_that_switch_on(offsets, steps):
    check_schedule(plan([("*",)], [("*",)], *offsets), steps)


@pytest.mark.parametrize(
    ("offsets", "steps", "message"),
    [
        ((10, 0), 10,
         f"{WEIGHTS}.shared_parameters.schedule_offset: the fine-tuning has 10 updates and would end before it "
         "quantises, got 10; lower it, or raise ds_tft.int8.fine_tune_steps"),
        ((9, 11), 10,
         f"{ACTIVATIONS}.shared_parameters.schedule_offset: the fine-tuning has 10 updates and would end before "
         "it quantises, got 11; lower it, or raise ds_tft.int8.fine_tune_steps"),
        ((1, 0), 0,
         f"{WEIGHTS}.shared_parameters.schedule_offset: it counts updates of the fine-tuning, and "
         "ds_tft.int8.fine_tune_steps is 0, got 1; leave it out"),
        ((0, 2), 0,
         f"{ACTIVATIONS}.shared_parameters.schedule_offset: it counts updates of the fine-tuning, and "
         "ds_tft.int8.fine_tune_steps is 0, got 2; leave it out"),
    ],
)  # fmt: skip
def test_schedules_that_never_switch_on(offsets, steps, message):
    with pytest.raises(ConfigError) as caught:
        check_schedule(plan([("*",)], [("*",)], *offsets), steps)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("weights", "activations"),
    [
        ([("*",)], [("*",)]),
        ([("attention", "lstm"), ("head",)], [("key",)]),
        ([("attention.key",)], [("attention",)]),
        ([("embedding",)], []),
    ],
)
def test_patterns_that_quantise_something(weights, activations):
    unmatched(plan(weights, activations), NAMES, NAMES[1:])


@pytest.mark.parametrize(
    ("weights", "activations", "message"),
    [
        ([("lstm",), ("key", "atention")], [],
         "w1[1]: matches no module, got \"atention\"; did you mean 'attention'?"),
        ([("encoder$",)], [],
         'w0[0]: matches no module, got "encoder$"; did you mean \'lstm_encoder\'?'),
        ([("9",)], [],
         'w0[0]: matches no module, got "9"; known: attention, known_embedding, lstm_encoder, quantile_head'),
        ([("*",)], [("*", "atention")],
         "a0[1]: matches no module, got \"atention\"; did you mean 'attention'?"),
        ([("lstm",)], [("*",), ("query",)],
         'a1[0]: matches only modules whose weights stay in floating point, got "query"; name them in '
         "compression_training.weight_quantization too"),
        ([("*",)], [("*", "embedding")],
         "a0[1]: matches only tables, which look rows up and have no range of inputs, got \"embedding\"; "
         "remove it"),
    ],
)  # fmt: skip
def test_patterns_that_quantise_nothing(weights, activations, message):
    with pytest.raises(ConfigError) as caught:
        unmatched(plan(weights, activations), NAMES, NAMES[1:])
    assert str(caught.value) == message
