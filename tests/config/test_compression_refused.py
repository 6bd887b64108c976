"""What DeepSpeed's compression had and this package has not: each key and value has its reason, in one line."""

from __future__ import annotations

import copy

import pytest

from ds_tft.config.compression import everything
from ds_tft.config.deepspeed_refused import NAMES, SECTIONS, refuse_known
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.validation import validate
from ds_tft.errors import ConfigError

SECTION = "compression_training"
WEIGHTS = (SECTION, "weight_quantization", "shared_parameters")
INPUTS = (SECTION, "activation_quantization", "shared_parameters")
TO_THE_END = "what is quantised stays so to the end; remove it"
SYMMETRIC = "a zero point was measured to gain nothing; use symmetric"
KEYS = {
    (SECTION, "sparse_pruning"): "zeros save neither memory nor time here; use weight_quantization",
    (SECTION, "row_pruning"): "zeros save neither memory nor time here; use weight_quantization",
    (SECTION, "head_pruning"): "heads are few from the start; use model.num_heads in the run JSON",
    (SECTION, "channel_pruning"): "it prunes convolutions, and the model has none; remove it",
    (
        SECTION,
        "layer_reduction",
    ): "it takes layers out of a deep model; use model.lstm_layers in the run JSON",
    (*WEIGHTS, "schedule_offset_end"): TO_THE_END,
    (*INPUTS, "schedule_offset_end"): TO_THE_END,
}
VALUES = {
    (*WEIGHTS, "quantization_type", "asymmetric"): SYMMETRIC,
    (*INPUTS, "quantization_type", "asymmetric"): SYMMETRIC,
    (*WEIGHTS, "rounding", "stochastic"):
        "training runs the arithmetic of the INT8 model, which rounds to the nearest; use nearest",
    (*INPUTS, "range_calibration", "dynamic"):
        "ranges are measured once and stay, as the INT8 model needs them; use static",
}  # fmt: skip


def refused(table):
    """What a table of refusals has about this section."""
    return {(*path, name) for path, names in table.items() if SECTION in path for name in names}


def refusal(path, value):
    """The message about a section that is complete but for one value."""
    raw = {SECTION: copy.deepcopy(everything())}
    *above, last = path
    section = raw
    for step in above:
        section = section[step]
    section[last] = value
    with pytest.raises(ConfigError) as caught:
        refuse_known(raw, "ds.json")
    return str(caught.value)


def test_nothing_is_refused_that_is_not_expected_here():
    assert refused(SECTIONS) == set(KEYS)
    assert refused(NAMES) == set(VALUES)


@pytest.mark.parametrize("path", KEYS, ids=".".join)
@pytest.mark.parametrize("value", [{"shared_parameters": {"enabled": False}}, None, 3], ids=repr)
def test_keys_whatever_their_value(path, value):
    assert refusal(path, value) == f"ds.json: {'.'.join(path)}: not supported, {KEYS[path]}"


@pytest.mark.parametrize("path", VALUES, ids=".".join)
def test_values_in_any_case(path):
    *key, value = path
    for given in (value, value.upper()):
        expected = f'ds.json: {".".join(key)}: not supported, got "{given}"; {VALUES[path]}'
        assert refusal(key, given) == expected


@pytest.mark.parametrize("part", ["weight_quantization", "activation_quantization"])
@pytest.mark.parametrize("inside", [(), ("shared_parameters",), ("different_groups", "all"),
                                    ("different_groups", "all", "params")], ids=".".join)  # fmt: skip
def test_unknown_keys_at_every_depth(part, inside):
    raw = {SECTION: copy.deepcopy(everything())}
    section = raw[SECTION][part]
    for step in inside:
        section = section.setdefault(step, {})
    section["bit_width"] = 8
    with pytest.raises(ConfigError) as caught:
        validate(DeepSpeedSettings, raw, "ds.json")
    message = str(caught.value)
    assert message.startswith(f"ds.json: {'.'.join((SECTION, part, *inside))}.bit_width: unknown key; ")
    assert "\n" not in message


@pytest.mark.parametrize("bits", [1, 2, 4, 7, 16, 32, 0, -8])
def test_other_bits_than_8(bits):
    places = {
        "weight_quantization": ("start_bits", "target_bits"),
        "activation_quantization": ("bits",),
    }
    for part, keys in places.items():
        for key in keys:
            raw = {SECTION: copy.deepcopy(everything())}
            raw[SECTION][part]["different_groups"]["all"]["params"] = {key: bits}
            with pytest.raises(ConfigError) as caught:
                validate(DeepSpeedSettings, raw, "ds.json")
            assert str(caught.value) == (
                f"ds.json: {SECTION}.{part}.different_groups.all.params.{key}: not supported, got {bits}; codes are "
                "stored and multiplied as INT8; write 8"
            )
