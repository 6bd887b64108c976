"""What quantised training keeps for backward, and the workspace that it takes."""

from __future__ import annotations

import copy

import pytest
import torch
from quantization_cases import Quantised, attach, build, draw

from ds_tft.memory.checkpoint_path import CheckpointPath
from ds_tft.memory.meter import KeptForBackward
from ds_tft.memory.peak import peak_live_bytes
from ds_tft.memory.recompute import attach_recompute
from ds_tft.memory.recompute_settings import RecomputeSettings
from ds_tft.model.inputs import ModelSize
from ds_tft.quantization.layer import LayerQuantiser

SIZE = ModelSize(
    static_categories=(3,),
    observed_reals=60,
    known_reals=8,
    known_categories=(12, 7),
    encoder_length=30,
    horizon=5,
    hidden_size=32,
    num_heads=4,
    dropout=0.0,
)
BATCH = 16
PASSES = {"streaming": False, "streaming and recomputation": True}
MOST = 1.05


@pytest.fixture(scope="module")
def quantised() -> Quantised:
    return attach(build(SIZE))


def prepared(quantised: Quantised, recomputes: bool, dtype: torch.dtype) -> Quantised:
    twin = copy.deepcopy(quantised)
    twin.model.to(dtype).train()
    if recomputes:
        attach_recompute(twin.model, RecomputeSettings(path=CheckpointPath.OWN))
    return twin


@pytest.mark.parametrize("inputs", [False, True], ids=["weights", "weights and inputs"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("passes", PASSES)
def test_no_more_is_kept_than_in_floating_point(quantised, passes, dtype, inputs):
    model, quantisation = prepared(quantised, PASSES[passes], dtype)
    batch = draw(SIZE, BATCH, dtype=dtype)
    kept = []
    for on in (False, True):
        quantisation.turn(weights=on, inputs=on and inputs)
        with KeptForBackward([*model.parameters(), *model.buffers(), *batch]) as meter:
            loss = model(batch).square().sum()
        kept.append(meter.bytes)
        del loss
    assert kept[0] > 100_000
    assert kept[1] <= MOST * kept[0]


def test_the_count_would_notice_rounded_copies_of_the_inputs(quantised, monkeypatch):
    model, quantisation = prepared(quantised, False, torch.float32)
    batch = draw(SIZE, BATCH)
    kept = []
    for copies in (False, True):
        if copies:
            # Without a switch for weights each layer rounds its inputs to a copy.
            monkeypatch.setattr(LayerQuantiser, "quantises_weights", property(lambda _: False))
        quantisation.turn(weights=copies, inputs=copies)
        with KeptForBackward([*model.parameters(), *model.buffers(), *batch]) as meter:
            loss = model(batch).square().sum()
        kept.append(meter.bytes)
        del loss
    assert kept[1] > MOST * kept[0]


@pytest.mark.parametrize("passes", PASSES)
def test_the_peak_of_an_update_is_about_that_of_floating_point(quantised, passes):
    model, quantisation = prepared(quantised, PASSES[passes], torch.float32)
    batch = draw(SIZE, BATCH)

    def update() -> None:
        model.zero_grad(set_to_none=True)
        model(batch).square().sum().backward()

    peaks = []
    for on in (False, True):
        quantisation.turn(weights=on, inputs=on)
        update()
        peaks.append(peak_live_bytes(update, torch.device("cpu")))
    assert peaks[1] <= MOST * peaks[0]


def test_without_gradients_nothing_is_kept(quantised):
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda packed: packed), torch.no_grad():
        quantised.model.train()(draw(SIZE, 2))
        quantised.model.eval()(draw(SIZE, 2))
    assert saved == []
