"""The benchmark of forecasting: its forms are one model, its ratios those of what was timed, its goals told."""

from __future__ import annotations

import inference
import pytest
import torch
from inference import BF16, FOLDED, INT8, PLAIN, STREAMING
from workload import Workload, draw_batch

from ds_tft.memory.streaming import is_streamed
from ds_tft.model.fold import is_folded

CPU = torch.device("cpu")
TINY = Workload(hidden_size=8, variables=20, encoder_length=6, batch=16)
FORMS = [PLAIN, STREAMING, FOLDED, BF16, INT8]


@pytest.fixture(autouse=True)
def _keep_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def forms():
    return inference.build_forms(TINY, CPU, plain_batch=4)


def rows(output):
    """Cells of the rows of all tables, headings included."""
    lines = [line.strip() for line in output.splitlines() if line.strip().startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_forms_are_one_model(forms):
    assert list(forms) == FORMS
    distances = inference.distances(forms, inference.inputs_of(forms, TINY, CPU, 16))
    assert distances[PLAIN] == 0
    assert distances[STREAMING] < 1e-5
    assert distances[FOLDED] < 1e-5
    assert 1e-4 < distances[BF16] < 0.1
    assert 1e-4 < distances[INT8] < 0.3


def test_forms_are_what_their_names_say(forms):
    streamed = {name: any(is_streamed(part) for part in form.model.modules()) for name, form in forms.items()}
    assert streamed == {PLAIN: False, STREAMING: True, FOLDED: True, BF16: True, INT8: True}
    folded = [name for name, form in forms.items() if is_folded(form.model)]
    assert folded == [FOLDED, BF16, INT8]
    assert {parameter.dtype for parameter in forms[BF16].model.parameters()} == {torch.bfloat16}
    assert forms[INT8].model.history_selection.gate.weight.dtype == torch.int8
    assert not any(form.model.training for form in forms.values())


def test_the_plain_form_takes_a_batch_in_parts(forms):
    inputs, _ = draw_batch(TINY.size, 10, CPU)
    plain = forms[PLAIN]
    assert [len(part.static_reals) for part in plain.parts(inputs)] == [4, 4, 2]
    assert [len(part.static_reals) for part in forms[FOLDED].parts(inputs)] == [10]
    with torch.no_grad():
        whole = plain.model(inputs)
    assert torch.allclose(plain.forecast(inputs), whole, atol=1e-5)


def test_a_turn_has_as_many_windows_whatever_the_batch(forms, monkeypatch):
    seen = []
    monkeypatch.setattr(inference.Form, "forecast", lambda _, inputs: seen.append(len(inputs.static_reals)))
    for batch, calls in ((1, 32), (16, 2), (32, 1), (40, 1)):
        seen.clear()
        times = inference.take_turns(forms, inference.inputs_of(forms, TINY, CPU, batch), CPU, rounds=3)
        assert seen == [batch] * calls * 3 * len(FORMS)
        assert [len(times[name]) for name in FORMS] == [3] * len(FORMS)


def test_speeds_are_medians_of_the_ratios_of_rounds():
    times = {PLAIN: [3.0, 4.0, 50.0], FOLDED: [1.0, 1.0, 1.0], INT8: [3.0, 8.0, 100.0]}
    assert inference.faster(times, FOLDED) == 4
    assert inference.faster(times, INT8) == 0.5
    assert inference.faster(times, PLAIN) == 1


def test_goals_are_those_of_large_and_small_batches():
    slow = {PLAIN: [1.0], FOLDED: [0.34], INT8: [1.01]}
    fast = {PLAIN: [1.0], FOLDED: [0.33], INT8: [1.0]}
    for times, said in ((slow, "MISS"), (fast, "pass")):
        goals = inference.speed_goals({1: times, 32: times}, "1 thread")
        assert [(goal.what, goal.said) for goal in goals] == [
            ("INT8 / plain, windows/s, batch 1", said),
            ("folded / plain, windows/s, batch 32", said),
            ("INT8 / plain, windows/s, batch 32", said),
        ]
    assert goals[1].row == ("folded / plain, windows/s, batch 32", "1 thread", "at least 3", "3.030", "pass")


@pytest.mark.parametrize(("stored", "said"), [(12, ["pass", "pass"]), (13, ["MISS", "MISS"])])
def test_goals_of_bytes(stored, said):
    goals = inference.size_goals({PLAIN: 100, FOLDED: 42, INT8: stored})
    assert [goal.said for goal in goals] == said
    assert [goal.row[2] for goal in goals] == ["at most 0.12", "at most 0.3"]


def test_bytes_count_codes_once_and_scales_too():
    module = torch.nn.Module()
    module.register_buffer("codes", torch.zeros(3, 5, dtype=torch.int8))
    module.register_buffer("scale", torch.zeros(3))
    assert inference.weight_bytes(module) == 15 + 12


def test_the_script_prints_every_form_and_goal(capsys):
    arguments = ["--hidden-size", "8", "--variables", "20", "--batches", "16", "32"]
    code = inference.main([*arguments, "--threads", "1", "2", "--rounds", "1"])
    output = capsys.readouterr().out
    assert all(line in output for line in ("machine: ", "versions: Python", "date: "))
    printed = rows(output)
    tables = [row for row in printed if row[0] in ("form", "1 thread: windows/s", "2 threads: windows/s")]
    assert tables == [
        ["form", "weights MiB", "off by", "peak MiB, batch 16", "peak MiB, batch 32"],
        ["1 thread: windows/s", "batch 16", "/ plain", "batch 32", "/ plain"],
        ["2 threads: windows/s", "batch 16", "/ plain", "batch 32", "/ plain"],
    ]
    for name in FORMS:
        numbers = [float(cell) for row in printed if row[0] == name for cell in row[3:]]
        assert len(numbers) == 2 + 2 * 2
        assert min(numbers) > 0
    goals = [row for row in printed if row[-1] in ("pass", "MISS")]
    assert [row[1] for row in goals] == ["", "", *["1 thread"] * 3, *["2 threads"] * 3]
    assert "MISS" in [row[-1] for row in goals], "a model this small is more than its matrices"
    assert code == 1
