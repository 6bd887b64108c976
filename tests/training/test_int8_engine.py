"""Fine-tuning with fake quantisation under DeepSpeed: the same arithmetic, however an update is carried out."""

from __future__ import annotations

import math
import shutil

import pytest
import torch
from datasets import panel
from int8_cases import INT8, SMALL, differing, gap, make_files, quantise_run, train_run, tuned

from ds_tft.data.batches import BatchBuilder
from ds_tft.data.forecast_data import prepare_forecast
from ds_tft.data.parquet import open_source
from ds_tft.data.windows import find_windows
from ds_tft.export import INT8_EXPORT, read_export
from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.fold import build_folded
from ds_tft.quantization.attach import Covered, attach_quantisation
from ds_tft.quantization.stored import build_stored

pytestmark = pytest.mark.usefixtures("process_group")

STEPS = 3
RATE = f"{INT8}learning_rate=0.001"  # so that every validation is better
SHORT_RUN = (f"{INT8}fine_tune_steps={STEPS}", RATE)
ORDER = 1e-5  # of the way that the weights went: sums in another order
BF16_LOSS = 0.01  # relative; 2e-3 was seen
BF16_FORECASTS = 0.02  # of their spread


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"), panel(rows=100), model=SMALL)


@pytest.fixture(scope="module")
def model(files, tmp_path_factory, request):
    request.getfixturevalue("process_group")
    return train_run(files, tmp_path_factory.mktemp("runs") / "model", batch_size=64)


@pytest.fixture(scope="module")
def usual(files, model, tmp_path_factory):
    """The run folder with ZeRO stage 1, one micro-batch, nothing recomputed, fp32."""
    return quantise_run(files, model, tmp_path_factory.mktemp("runs") / "usual", *SHORT_RUN, batch_size=64)


@pytest.fixture
def tune(files, model, usual, tmp_path):
    """Fine-tunes from the same start with other settings."""

    def tune(*overrides):
        output = tmp_path / "run"
        shutil.rmtree(output, ignore_errors=True)
        quantise_run(files, model, output, *SHORT_RUN, *overrides, start=usual, batch_size=64)
        return tuned(output)

    return tune


def covered_by(description):
    """The modules that an export has as INT8."""
    int8 = description.int8
    return Covered(weights=frozenset(int8.weights), inputs=frozenset(int8.inputs))


def forecasts(files, output, weights=None):
    """Forecasts of the exported model; with `weights`, those of the model that is fine-tuned."""
    loaded = read_export(output / INT8_EXPORT)
    description, model = loaded.description, loaded.model
    if weights is not None:
        model = build_folded(description.size)
        stream_variable_selection(model)
        quantisation = attach_quantisation(model, covered_by(description))
        model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        quantisation.turn(weights=True, inputs=True)
    found = prepare_forecast(open_source(str(files / "panel.parquet")), description.preprocessor, 0)
    windows, _ = find_windows(found.table, description.settings.window, description.bounds)
    builder = BatchBuilder(found.table, description.settings.window, description.preprocessor.target_scaler)
    batch = builder.build(windows["test"], torch.arange(len(windows["test"])).numpy())
    with torch.no_grad():
        return model.eval()(batch.inputs)


def test_every_weight_learns_and_no_range_moves(usual):
    run = tuned(usual)
    assert len(run.losses) == STEPS
    assert all(map(math.isfinite, run.losses))
    ranges = {name for name in run.start if name.endswith("input_step")}
    assert len(ranges) > 30
    learnt = {name for name, tensor in run.start.items() if tensor.numel() and name not in ranges}
    assert set(differing(run.start, run.last)) == learnt
    for name in ranges:
        assert torch.equal(run.export[name], run.start[name])


def test_the_export_forecasts_what_the_last_fine_tuned_weights_do(files, usual):
    run = tuned(usual)
    assert read_export(usual / INT8_EXPORT).description.int8.fine_tuned_steps == STEPS  # the last was best
    assert not differing(run.last, run.best)
    exported = forecasts(files, usual)
    assert torch.equal(exported, forecasts(files, usual, run.last))
    assert not torch.equal(exported, forecasts(files, usual, run.start))


def test_zero_stages_1_and_2_are_bit_equal(tune, usual):
    expected, run = tuned(usual), tune("deepspeed.zero_optimization.stage=2")
    assert run.losses == expected.losses
    assert not differing(run.last, expected.last)
    assert not differing(run.export, expected.export)


@pytest.mark.slow
def test_zero_stage_0_rounds_elsewhere_only(tune, usual):
    """It clips and updates tensor by tensor, the others all weights in one piece."""
    expected, run = tuned(usual), tune("deepspeed.zero_optimization.stage=0")
    assert run.losses == pytest.approx(expected.losses, abs=1e-6)
    assert gap(expected.start, expected.last, run.last) < ORDER


def test_accumulation_changes_the_order_of_sums_only(tune, usual):
    expected, run = tuned(usual), tune("deepspeed.gradient_accumulation_steps=4")
    assert run.losses == pytest.approx(expected.losses, abs=1e-6)
    assert 0 < gap(expected.start, expected.last, run.last) < ORDER


@pytest.mark.parametrize(
    "override",
    [
        "deepspeed.activation_checkpointing.cpu_checkpointing=true",
        pytest.param("deepspeed.ds_tft.recompute=default", marks=pytest.mark.slow),
    ],
    ids=["recomputed and offloaded", "recomputed"],
)
def test_recomputing_changes_no_bit(tune, usual, capsys, override):
    expected, run = tuned(usual), tune(override)
    said = capsys.readouterr().out
    assert "recompute: off" not in said
    assert "blocks ran again" in said
    assert run.losses == expected.losses
    assert not differing(run.last, expected.last)
    assert not differing(run.export, expected.export)


def test_bf16_is_near_fp32(files, tune, usual, tmp_path):
    expected, run = tuned(usual), tune("deepspeed.bf16.enabled=true")
    assert run.losses != expected.losses
    assert run.losses == pytest.approx(expected.losses, rel=BF16_LOSS)
    steps = [name for name in run.start if name.endswith("input_step")]
    assert all(torch.equal(run.last[name], run.start[name]) for name in steps)
    exact, found = forecasts(files, usual), forecasts(files, tmp_path / "run")
    assert 0 < float((found - exact).square().mean().sqrt() / exact.std()) < BF16_FORECASTS


@pytest.mark.slow
def test_the_start_is_exported_in_full_where_nothing_was_better(files, model, usual, tmp_path):
    """In bf16 the engine had its weights rounded."""
    far = (f"{INT8}fine_tune_steps={STEPS}", f"{INT8}learning_rate=10.0", "deepspeed.scheduler=null")
    output = quantise_run(
        files, model, tmp_path / "run", *far, "deepspeed.bf16.enabled=true", start=usual, batch_size=64
    )
    run, description = tuned(output), read_export(output / INT8_EXPORT).description
    assert description.int8.line == "INT8, not fine-tuned"
    assert differing(run.best, run.start)
    stored = build_stored(description.size, covered_by(description), run.start)
    assert not differing(run.export, stored.state_dict())
