import pytest

from ds_tft.config.deepspeed_refused import NAMES, SECTIONS, refuse_known
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.validation import section_at
from ds_tft.errors import ConfigError


def nested(path, value):
    for step in reversed(path):
        value = {step: value}
    return value


def refusal(raw):
    with pytest.raises(ConfigError) as caught:
        refuse_known(raw, "ds.json")
    return str(caught.value)


@pytest.mark.parametrize(("path", "reasons"), SECTIONS.items(), ids=lambda part: ".".join(part) or "top")
def test_every_key_in_the_table(path, reasons):
    section = section_at(DeepSpeedSettings, nested((*path, "type"), "AdamW"), path)
    for key, reason in reasons.items():
        message = refusal(nested(path, {key: None}))
        assert message == f"ds.json: {'.'.join((*path, key))}: not supported, {reason}"
        assert key not in section.model_fields


@pytest.mark.parametrize(("path", "reasons"), NAMES.items(), ids=lambda part: ".".join(part))
def test_every_name_in_the_table_whatever_its_case(path, reasons):
    for name, reason in reasons.items():
        message = refusal(nested(path, name.upper()))
        assert message == f'ds.json: {".".join(path)}: not supported, got "{name.upper()}"; {reason}'


def test_reasons_say_what_to_do():
    for reasons in (*SECTIONS.values(), *NAMES.values()):
        for reason in reasons.values():
            assert reason.startswith("use ") or "; " in reason


def test_stage_3_tuning():
    message = refusal({"zero_optimization": {"stage": 3, "stage3_max_live_parameters": 1}})
    assert message.startswith(
        "ds.json: zero_optimization.stage3_max_live_parameters: not supported, it tunes stage 3;"
    )


@pytest.mark.parametrize(
    "raw", [{}, {"optimizer": 3}, {"optimizer": {"type": 3}}, {"zero_optimization": None}]
)
def test_everything_else_is_left_to_validation(raw):
    refuse_known(raw, "ds.json")


def test_removed_keys_are_those_deepspeed_refuses():
    config = pytest.importorskip("deepspeed.runtime.config")
    refused = set(SECTIONS[()]) | set(DeepSpeedSettings.model_fields)
    assert set(config._REMOVED_TOP_LEVEL_CONFIG_KEYS) <= refused
    assert set(config._REMOVED_ZERO_CONFIG_KEYS) <= set(SECTIONS[("zero_optimization",)])


def test_every_zero_key_of_deepspeed_is_supported_or_explained():
    zero = pytest.importorskip("deepspeed.runtime.zero.config").DeepSpeedZeroConfig
    names = {field.alias or name for name, field in zero.model_fields.items()}
    supported = section_at(DeepSpeedSettings, {}, ("zero_optimization",)).model_fields
    unexplained = names - set(supported) - set(SECTIONS[("zero_optimization",)])
    assert not {name for name in unexplained if not name.startswith("stage3_")}
