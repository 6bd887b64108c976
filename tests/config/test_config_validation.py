import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.run import RunSettings
from ds_tft.config.validation import located, validate
from ds_tft.errors import ConfigError


def refusal(raw, model=RunSettings):
    with pytest.raises(ConfigError) as caught:
        validate(model, raw, "run.json")
    return str(caught.value)


def test_lists_become_tuples_and_the_rest_is_default():
    settings = validate(RunSettings, {"model": {"quantiles": [0.2, 0.5]}}, "run.json")
    assert settings.model.quantiles == (0.2, 0.5)
    assert settings.training == RunSettings().training


@pytest.mark.parametrize("value", ["close", ["close"]])
def test_names_may_be_one_or_many(value):
    assert validate(RunSettings, {"data": {"target": value}}, "run.json").data.target == ("close",)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"model": {"hiden_size": 64}}, "model.hiden_size: unknown key; did you mean 'hidden_size'?"),
        ({"epochs": 3}, "epochs: unknown key; did you mean 'training.epochs'?"),
        ({"model": {"epochs": 3}}, "model.epochs: unknown key; did you mean 'training.epochs'?"),
        ({"scaling": {"target": {"kid": 3}}}, "scaling.target.kid: unknown key; did you mean 'kind'?"),
        ({"window": {"qqq": 3}}, "window.qqq: unknown key; known: encoder_length, "
         "evaluation_stride, horizon, min_encoder_length, stride"),
        ({"model": {"hidden_size": "64"}}, 'model.hidden_size: expected an integer, got "64"; write 64'),
        ({"model": {"hidden_size": "big"}},
         'model.hidden_size: expected an integer, got "big"; the default is 64'),
        ({"model": {"hidden_size": 2.5}},
         "model.hidden_size: expected an integer, got 2.5; the default is 64"),
        ({"model": {"hidden_size": True}},
         "model.hidden_size: expected an integer, got true; the default is 64"),
        ({"model": {"hidden_size": 0}}, "model.hidden_size: expected 1 or more, got 0; the default is 64"),
        ({"model": {"dropout": 1}}, "model.dropout: expected a number below 1, got 1; the default is 0.1"),
        ({"split": {"train": 1.5}}, "split.train: expected 1 or less, got 1.5; the default is 0.7"),
        ({"scaling": {"clip": 0}}, "scaling.clip: expected a number above 0, got 0; the default is 10.0"),
        ({"scaling": {"per_series": 1}},
         "scaling.per_series: expected true or false, got 1; the default is false"),
        ({"scaling": {"per_series": "True"}},
         'scaling.per_series: expected true or false, got "True"; write true'),
        ({"data": {"weight": 3}}, 'data.weight: expected text in double quotes, got 3; write "3"'),
        ({"model": {"quantiles": [0.1, 2]}}, "model.quantiles[1]: expected a number below 1, got 2"),
        ({"model": {"quantiles": 0.5}},
         "model.quantiles: expected a list, got 0.5; the default is [0.1, 0.5, 0.9]"),
        ({"data": {"gaps": "tolerant"}},
         "data.gaps: expected 'auto', 'fill', 'tolerate', 'split' or 'error', got \"tolerant\"; "
         "did you mean 'tolerate'?"),
        ({"data": {"missing": 5}},
         "data.missing: expected 'error', 'drop' or 'fill', got 5; the default is \"fill\""),
        ({"data": {"calendar": 5}},
         "data.calendar: expected 'auto' or 'none', or a list, got 5; the default is \"auto\""),
        ({"data": {"calendar": "non"}},
         "data.calendar: expected 'auto' or 'none', or a list, got \"non\"; did you mean 'none'?"),
        ({"split": {"test_start": True}},
         'split.test_start: expected text in double quotes, or an integer, got true; write "true"'),
        ({"model": 3}, "model: expected an object, got 3"),
        ({"model": {"hidden_size": 10, "num_heads": 4}},
         "model: hidden_size (10) must be a multiple of num_heads (4)"),
        ({"data": {"calendar": ["hour", "month", "hour"]}},
         "data: calendar has a feature twice: ['hour', 'month', 'hour']; name it once"),
    ],
)  # fmt: skip
def test_messages(raw, message):
    assert refusal(raw) == f"run.json: {message}"


def test_item_of_a_union_is_placed_by_its_index():
    message = refusal({"data": {"calendar": ["month", "hourr"]}})
    assert message.startswith("run.json: data.calendar[1]: expected 'minute', 'hour', ")
    assert message.endswith("got \"hourr\"; did you mean 'hour'?")


def test_long_values_are_cut():
    message = refusal({"model": {"hidden_size": "x" * 5000}})
    assert len(message) < 150


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"optimizer": {"type": "adamw"}},
         "optimizer.type: expected 'AdamW', 'Adam', 'SGD', 'AdamW8bit', got \"adamw\"; did you mean 'AdamW'?"),
        ({"optimizer": {}}, 'optimizer.type: missing; write one of "AdamW", "Adam", "SGD", "AdamW8bit"'),
        ({"optimizer": {"type": "AdamW", "params": {"lrr": 1}}},
         "optimizer.params.lrr: unknown key; did you mean 'lr'?"),
        ({"optimizer": {"type": "AdamW", "params": {"momentum": 0.9}}},
         "optimizer.params.momentum: unknown key; another type has it, this one has: "
         "adam_w_mode, betas, eps, fused, lr, torch_adam, weight_decay"),
        ({"optimizer": {"type": "AdamW", "params": {"betas": [0.9]}}},
         "optimizer.params.betas: expected a list of 2, got [0.9]; the default is [0.9, 0.999]"),
        ({"optimizer": {"type": "AdamW", "params": {"betas": [0, 0, 0]}}},
         "optimizer.params.betas: expected a list of 2, got [0, 0, 0]; the default is [0.9, 0.999]"),
        ({"train_batch_size": 2.5},
         "train_batch_size: expected an integer, or 'auto', got 2.5; the default is \"auto\""),
        ({"train_batch_size": 0},
         "train_batch_size: expected 1 or more, or 'auto', got 0; the default is \"auto\""),
        ({"train_batch_size": "2"}, "train_batch_size: expected an integer, or 'auto', got \"2\"; write 2"),
    ],
)  # fmt: skip
def test_messages_inside_typed_sections(raw, message):
    assert refusal(raw, DeepSpeedSettings) == f"run.json: {message}"


def test_the_origin_of_a_value_replaces_the_file():
    origins = {("training", "epochs"): "--epochs", ("model", "dropout"): "--set"}
    with pytest.raises(ConfigError, match=r"^--epochs: training\.epochs: expected 1 or more, got 0;"):
        validate(RunSettings, {"training": {"epochs": 0}}, "run.json", origins)
    assert located(("model",), "odd", "run.json", origins) == "run.json, --set: model: odd"
    assert located(("window", "stride"), "odd", "run.json", origins) == "run.json: window.stride: odd"


def test_first_of_several_problems_is_one_line():
    message = refusal({"model": {"dropout": 2}, "training": {"epochs": 0}})
    assert message == "run.json: model.dropout: expected a number below 1, got 2; the default is 0.1"


def keys(model):
    for name, field in model.model_fields.items():
        yield name
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if hasattr(part, "model_fields"):
                yield from keys(part)


def raw_json(model):
    names = st.sampled_from(sorted({*keys(model), "type", "params", "unknown"}))
    scalars = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.floats(-3, 3),
        st.sampled_from(["auto", "AdamW", "x", "1"]),
    )
    values = st.recursive(
        scalars,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    )
    return st.dictionaries(names, values, max_size=4)


@pytest.mark.parametrize("model", [RunSettings, DeepSpeedSettings])
@given(data=st.data())
def test_any_json_gives_settings_or_one_plain_line(model, data):
    raw = data.draw(raw_json(model))
    try:
        settings = validate(model, raw, "x.json")
    except ConfigError as error:
        message = str(error)
        assert message.startswith("x.json: ")
        assert "\n" not in message
        assert not re.search(r"pydantic|Input should|https?://|literal\[|constrained-", message)
    else:
        assert validate(model, json.loads(settings.model_dump_json()), "x.json") == settings
