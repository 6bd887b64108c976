"""The same weights in pytorch-forecasting's Temporal Fusion Transformer give the same forecasts.

Where the two architectures differ (docs/model.md lists it), either the weights are chosen so that the
difference has no effect, or the part in question is exchanged in the peer.
"""

from __future__ import annotations

import pytest
import torch
from model_cases import build, random_inputs, randomise
from torch import Tensor, nn

from ds_tft.model.inputs import ModelSize
from ds_tft.model.tft import TemporalFusionTransformer

pytestmark = pytest.mark.slow
pytest.importorskip(
    "pytorch_forecasting", reason="pytorch_forecasting is not installed; pip install 'ds_tft[parity]'"
)

from forecasting_peer import adapt, batch_for_peer, build_peer, copy_model, peer_order  # noqa: E402

# Each selection has as many variables as hidden units: with fewer, the peer narrows its weight network.
REALS = ModelSize(
    static_reals=8,
    observed_reals=9,
    known_reals=8,
    encoder_length=6,
    horizon=4,
    hidden_size=8,
    num_heads=2,
    lstm_layers=2,
    dropout=0.0,
)
MIXED = ModelSize(
    static_reals=6,
    static_categories=(3, 4),
    observed_reals=7,
    observed_categories=(5,),
    known_reals=7,
    known_categories=(4, 2),
    encoder_length=6,
    horizon=4,
    hidden_size=8,
    num_heads=4,
    dropout=0.0,
)


def build_randomised(size: ModelSize) -> TemporalFusionTransformer:
    model = build(size, torch.float64).eval()
    randomise(model)
    return model


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_untouched_peer_agrees_where_the_weight_networks_are_constant() -> None:
    model = build_randomised(REALS)
    for selection in (model.static_selection, model.history_selection, model.future_selection):
        nn.init.zeros_(selection.weight_grn.gated_norm.norm.weight)
    peer = build_peer(REALS).eval()
    copy_model(model, peer)
    inputs = random_inputs(REALS, lengths=[6, 2, 6, 5], dtype=torch.float64)
    ours, theirs = model(inputs), peer(batch_for_peer(inputs)).prediction
    # The untouched peer lets every step see the whole horizon, as ours does at the last one.
    close(ours[:, -1, 0], theirs[:, -1])
    assert ours.std() > 0.1


@pytest.mark.parametrize("size", [REALS, MIXED], ids=["reals", "mixed"])
@pytest.mark.parametrize("lengths", [[6, 6, 6, 6], [6, 2, 1, 5]], ids=["full", "padded"])
def test_adapted_peer_agrees_in_all_outputs_and_gradients(size: ModelSize, lengths: list[int]) -> None:
    model, peer = build_randomised(size), build_peer(size).eval()
    adapt(peer, size)
    copy_model(model, peer)
    inputs = random_inputs(size, lengths=lengths, dtype=torch.float64)
    reals = [inputs.static_reals, inputs.observed_reals, inputs.known_reals]
    for tensor in reals:
        tensor.requires_grad_()
    ours, theirs = model.interpret(inputs), peer(batch_for_peer(inputs))

    close(ours.prediction[:, :, 0], theirs.prediction)
    present = torch.arange(6) < torch.tensor(lengths).unsqueeze(1)
    num_observed, num_known = size.observed_reals, size.known_reals
    history = peer_order(num_observed + num_known, size.num_observed + size.num_known)
    close(
        ours.static_weights[:, peer_order(size.static_reals, size.num_static)], theirs.static_variables[:, 0]
    )
    close(ours.history_weights[present][:, history], theirs.encoder_variables[:, :, 0][present])
    close(ours.future_weights[..., peer_order(num_known, size.num_known)], theirs.decoder_variables[:, :, 0])
    close(ours.attention.transpose(1, 2)[..., :6], theirs.encoder_attention)
    close(ours.attention.transpose(1, 2)[..., 6:], theirs.decoder_attention)

    direction = torch.randn_like(theirs.prediction)
    expected = torch.autograd.grad((theirs.prediction * direction).sum(), reals)
    actual = torch.autograd.grad((ours.prediction[:, :, 0] * direction).sum(), reals)
    for ours_gradient, their_gradient in zip(actual, expected, strict=True):
        close(ours_gradient, their_gradient)
        assert ours_gradient.abs().max() > 1e-3
