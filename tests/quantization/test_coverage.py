"""The table of what is quantised: nothing of a model is missing in it, and nothing is in it twice."""

from __future__ import annotations

import pytest
import torch
from quantization_cases import EVERYTHING, KINDS, SIZES, build
from rich.console import Console

from ds_tft.config.int8 import Int8Plan, ModuleRule
from ds_tft.errors import ConfigError
from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.inputs import ModelSize
from ds_tft.quantization.attach import Covered, attach_quantisation
from ds_tft.quantization.coverage import Coverage, cover, describe_coverage
from ds_tft.quantization.sites import find_sites


def plan(weights: tuple[str, ...] = (".",), activations: tuple[str, ...] = (".",)) -> Int8Plan:
    return Int8Plan(
        weights=(ModuleRule("weights", weights),),
        activations=(ModuleRule("activations", activations),) if activations else (),
        weight_offset=0,
        activation_offset=0,
        verbose=False,
    )


def described(
    covered: Covered | None = None, size: ModelSize = EVERYTHING, *, verbose: bool = False
) -> Coverage:
    model = build(size)
    stream_variable_selection(model)
    quantisation = attach_quantisation(model, covered or Covered.all_of(model))
    return describe_coverage(model, quantisation, verbose=verbose)


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_all_parameters_are_counted_once(size, verbose):
    coverage = described(size=SIZES[size], verbose=verbose)
    model = build(SIZES[size])
    assert coverage.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert coverage.quantised == sum(site.num_weights for site in find_sites(model))
    assert coverage.share == coverage.quantised / coverage.parameters


def test_the_rest_is_named_by_kind_with_a_reason():
    model = build()
    rows = {row.name: row for row in described().rows}
    assert rows.keys() == KINDS | {"biases", "layer norms", "lines of real variables"}
    assert all(bool(row.reason) == (name not in KINDS) for name, row in rows.items())
    norms = [p for name, p in model.named_parameters() if ".norm" in name]
    lines = [p for name, p in model.named_parameters() if name.endswith("hidden_lines")]
    lines += [
        p for name, p in model.named_parameters() if name.endswith(("_embedding.weight", "_embedding.bias"))
    ]
    assert rows["layer norms"].parameters == sum(parameter.numel() for parameter in norms)
    assert rows["lines of real variables"].parameters == sum(parameter.numel() for parameter in lines)


def test_ranges_are_counted_per_variable():
    rows = {row.name: row for row in described(verbose=True).rows}
    assert rows["history_selection.gate"].ranges == EVERYTHING.num_observed + EVERYTHING.num_known
    assert (
        rows["history_selection.weights.hidden"].ranges == EVERYTHING.observed_reals + EVERYTHING.known_reals
    )
    assert rows["lstm_encoder.lstm"].ranges == 1
    assert rows["known_embedding"].ranges is None
    kinds = {row.name: row for row in described().rows}
    assert kinds["LSTM"].ranges == kinds["LSTM"].modules == 2
    assert kinds["category tables"].ranges is None


def test_what_no_pattern_names_is_shown_with_its_reason():
    covered = cover(plan(("^lstm_",), ()), build())
    coverage = described(covered)
    rows = {row.name: row for row in coverage.rows}
    assert rows["LSTM"].ranges is None
    named = {site.name for site in find_sites(build()) if site.name.startswith("lstm_")}
    assert named == {"lstm_encoder.lstm", "lstm_decoder.lstm", "lstm_gate.gate"}
    assert rows["other weights"].modules == len(find_sites(build())) - len(named)
    assert rows["other weights"].reason == "no pattern names them"
    assert 0 < coverage.share < 0.5


def test_patterns_choose_modules():
    model = build()
    everything = cover(plan(), model)
    sites = find_sites(model)
    assert everything.weights == {site.name for site in sites}
    assert everything.inputs == {site.name for site in sites if site.num_steps}
    some = cover(plan(("^attention", "lstm$"), (r"\.query$",)), model)
    assert some.weights == {
        "attention.query",
        "attention.key",
        "attention.value",
        "attention.output",
        "attention_gate.gate",
        "lstm_encoder.lstm",
        "lstm_decoder.lstm",
    }
    assert some.inputs == {"attention.query"}
    assert cover(plan(("^attention",), (".",)), model).inputs == cover(plan(("^attention",)), model).weights
    assert cover(plan((".",), ()), model).inputs == frozenset()


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(ConfigError, match="weights.*lstn"):
        cover(plan(("^lstn",)), build())


def test_the_table_shows_bits_ranges_shares_and_reasons():
    console = Console(width=160, record=True, file=None, force_terminal=False, quiet=False)
    with console.capture() as captured:
        console.print(described().table())
    text = captured.get()
    lines = {line[:24].strip(): line.split() for line in text.splitlines()}
    assert "INT8 coverage" in text
    assert lines["LSTM"][-3:] == ["int8", "int8", "2"]
    assert lines["category tables"][-2:] == ["int8", "fp32"]
    assert lines["biases"][-3:] == ["fp32", "only", "added"]
    assert lines["variable networks"][-4].endswith("%")


def test_a_stored_model_is_as_small_as_the_table_says():
    model = build()
    stream_variable_selection(model)
    quantisation = attach_quantisation(model, Covered.all_of(model))
    coverage = describe_coverage(model, quantisation)
    quantisation.store()
    codes = [tensor for tensor in model.state_dict().values() if tensor.dtype == torch.int8]
    assert sum(tensor.numel() for tensor in codes) == coverage.quantised
    assert (
        sum(parameter.numel() for parameter in model.parameters()) == coverage.parameters - coverage.quantised
    )
