"""This model in the form that `bench_peers.py` measures beside the public ones.

    bench_peers.py run --models pf --module plain=benchmarks/peer_module.py:build_plain \
        --module streaming=benchmarks/peer_module.py:build

Letters: B batch, L encoder length, K horizon steps, V variables, Q quantiles.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout, where the package is not installed

from ds_tft.memory.streaming import stream_variable_selection
from ds_tft.model.inputs import ModelInputs, ModelSize
from ds_tft.model.tft import TemporalFusionTransformer


class PeerModel(nn.Module):
    """Takes the benchmark's batches. Its forecasts are those of the only target, (B, K, Q)."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(cfg["seed"])
        self.model = TemporalFusionTransformer(
            ModelSize(
                static_reals=cfg["n_static"],
                observed_reals=cfg["n_observed"],
                known_reals=cfg["n_known"],
                encoder_length=cfg["enc_len"],
                horizon=cfg["horizon"],
                quantiles=tuple(cfg["quantiles"]),
                hidden_size=cfg["hidden"],
                num_heads=cfg["heads"],
                lstm_layers=cfg["lstm_layers"],
                dropout=cfg["dropout"],
            )
        )

    def prepare_batch(self, batch: Mapping[str, Tensor]) -> ModelInputs:
        """Lays the batch out once, untimed."""
        observed, known = batch["observed"], batch["known"]
        rows = observed.shape[0]

        def none(*shape: int) -> Tensor:
            return torch.empty(*shape, 0, dtype=torch.int64, device=observed.device)

        return ModelInputs(
            static_reals=batch["static"],
            static_categories=none(rows),
            observed_reals=observed,
            observed_categories=none(rows, observed.shape[1]),
            known_reals=known,
            known_categories=none(rows, known.shape[1]),
            encoder_lengths=torch.full((rows,), observed.shape[1]),
        )

    def forward(self, inputs: ModelInputs) -> Tensor:
        """Returns the forecast (B, K, Q)."""
        prediction: Tensor = self.model(inputs)
        return prediction[:, :, 0]


def build_plain(cfg: Mapping[str, Any]) -> nn.Module:
    """The readable reference: variable selection computes and keeps everything."""
    return PeerModel(cfg).to(cfg["device"])


def build(cfg: Mapping[str, Any]) -> nn.Module:
    """Streaming variable selection, as in training by default."""
    peer = PeerModel(cfg).to(cfg["device"])
    stream_variable_selection(peer.model)
    return peer
