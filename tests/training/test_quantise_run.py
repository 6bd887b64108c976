"""`launch/quantise.py` in this process: what it leaves, and how it goes on after it was stopped. Minutes."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from datasets import ROLES, panel
from int8_cases import INT8, differing, make_files, quantise_run, train_run, tuned

from ds_tft.export import INT8_EXPORT, WEIGHTS, read_export
from ds_tft.quantization.attach import Covered
from ds_tft.quantization.stored import build_stored
from ds_tft.training import int8_start
from ds_tft.training.checkpoint import CHECKPOINTS
from ds_tft.training.checkpoint_files import list_checkpoints
from ds_tft.training.int8 import FOLDER

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("process_group")]

TEN = (f"{INT8}fine_tune_steps=10", "training.checkpoint_every_steps=4", "training.keep_checkpoints=9")
"""Two epochs of 5 updates."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def model(files, tmp_path_factory, request):
    request.getfixturevalue("process_group")
    return train_run(files, tmp_path_factory.mktemp("runs") / "model")


@pytest.fixture(scope="module")
def finished(files, model, tmp_path_factory):
    return quantise_run(files, model, tmp_path_factory.mktemp("runs") / "finished", *TEN)


@pytest.fixture
def stopped(finished, tmp_path):
    """Makes a run folder as it was when the run was stopped after some updates of its fine-tuning."""

    def stopped(step):
        output = shutil.copytree(finished, tmp_path / "run")
        shutil.rmtree(output / INT8_EXPORT)
        for checkpoint in list_checkpoints(output / FOLDER / CHECKPOINTS):
            if int(checkpoint.name.removeprefix("step-")) > step:
                shutil.rmtree(checkpoint)
        return output

    return stopped


def bits(output):
    return (output / INT8_EXPORT / WEIGHTS).read_bytes()


def test_a_stopped_run_goes_on_to_the_same_bits(files, model, finished, stopped, capsys):
    output = stopped(4)
    quantise_run(files, model, output, *TEN, resume="auto")
    said = capsys.readouterr().out
    assert "ranges as measured before" in said
    assert "checkpoints/step-4: step 4, epoch 0" in said
    assert tuned(output).losses == tuned(finished).losses
    assert bits(output) == bits(finished)


def test_a_finished_run_has_nothing_left_to_do(files, model, finished, stopped, capsys):
    output = stopped(10)
    quantise_run(files, model, output, *TEN, resume="auto")
    assert "nothing is left to train" in capsys.readouterr().out
    assert bits(output) == bits(finished)


@pytest.mark.parametrize(
    ("steps", "kept"),
    [(6, 4), (14, 10)],
    ids=["shorter epochs", "longer epochs"],
)
def test_other_epochs_start_anew_and_say_so(files, model, stopped, capsys, steps, kept):
    """Update 4 of an epoch of 5 is no place in one of 6."""
    output = stopped(kept)
    quantise_run(files, model, output, f"{INT8}fine_tune_steps={steps}", resume="auto")
    said = capsys.readouterr().out
    assert "what was fine-tuned before is removed" in said
    assert f"ds_tft.int8.fine_tune_steps: 10 -> {steps}" in said
    assert len(tuned(output).losses) == steps


def test_a_start_is_whole_or_made_anew(files, model, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    none = f"{INT8}fine_tune_steps=0"
    with monkeypatch.context() as patch:
        patch.setattr(int8_start, "write_layer_errors", stop)
        with pytest.raises(KeyboardInterrupt):
            quantise_run(files, model, tmp_path / "run", none)
    quantise_run(files, model, tmp_path / "run", none, resume="auto")
    assert json.loads((tmp_path / "run" / FOLDER / int8_start.LAYERS).read_text())


# Data of all kinds, through both ways to an INT8 model.


def with_gaps_and_nan():
    columns = panel()
    columns["price"][::7] = np.nan
    columns["visits"][3::11] = np.inf
    columns["sales"][5::13] = np.nan
    return columns


def roles(**given):
    names = {name: ROLES[name] for name in ("time", "series", "target", "other_columns")}
    return names | {"calendar": "none"} | given


CASES = {
    "weights": {"data": ROLES | {"weight": "weight"}},
    "the target alone": {"data": roles()},
    "no statics": {"data": roles(known_reals=["price"])},
    "categories only": {
        "data": roles(
            static_categories=["city"], known_categories=["holiday"], observed_categories=["weather"]
        )
    },
    "NaN": {"columns": with_gaps_and_nan()},
    "two targets": {"data": ROLES | {"target": ["sales", "visits"], "observed_reals": []}},
    "strides": {"window": {"encoder_length": 8, "horizon": 3, "stride": 3}},
    "no validation": {"split": {"train": 0.8, "validation": 0.0}},
    "training only": {"split": {"train": 1.0, "validation": 0.0}},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_run_and_the_command_give_the_same_int8_model(tmp_path, case, capsys):
    files = make_files(tmp_path, **case)
    two = f"{INT8}fine_tune_steps=2"
    more = f"{INT8}calibration_windows=5000"  # than there are
    run = train_run(files, tmp_path / "run", two, more, use_int8=True)
    assert "calibration: 108 training windows" in capsys.readouterr().out or case.keys() & {"window", "split"}
    by_command = quantise_run(files, run, tmp_path / "command", two, more)
    one, other = tuned(run), tuned(by_command)
    assert one.losses == other.losses
    assert not differing(one.start, other.start)
    assert not differing(one.last, other.last)
    assert bits(run) == bits(by_command)
    description = read_export(run / INT8_EXPORT).description
    if one.best is None:  # the weights of the last update are exported
        int8 = description.int8
        covered = Covered(weights=frozenset(int8.weights), inputs=frozenset(int8.inputs))
        assert not differing(build_stored(description.size, covered, one.last).state_dict(), one.export)
    if not description.bounds.has("test"):
        assert not (run / "evaluation_int8.json").exists()
        return
    results = [json.loads((folder / "evaluation_int8.json").read_text()) for folder in (run, by_command)]
    assert results[0] == results[1]
