"""This model in the form that `bench_peers.py` measures beside the public ones.

    bench_peers.py run --models pf,nf,darts --module streaming=benchmarks/peer_module.py:build \
        --module checkpointing=benchmarks/peer_module.py:build_checkpointed

Every `build...` takes the benchmark's sizes, any of them. The engine does its own steps; for the others the
benchmark does.

Letters: B batch, L encoder length, K horizon steps, V variables, Q quantiles.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout, where the package is not installed

from workload import CHECKPOINTING, attach_form

from ds_tft.config.batch import resolve_batch
from ds_tft.config.deepspeed import engine_config, read_deepspeed_settings
from ds_tft.model.inputs import ModelInputs, ModelSize
from ds_tft.model.loss import pinball_loss
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.training.engine import build_engine as start_engine
from ds_tft.training.engine import choose_device, start_process_group
from ds_tft.training.environment import prepare_environment

ENGINE = (
    CHECKPOINTING,
    "deepspeed.scheduler=null",
    "deepspeed.gradient_clipping=0",
    "deepspeed.optimizer.params.weight_decay=0",
)
"""Stage 1 with plain Adam, as the benchmark's: no schedule, no clipping, no decay; the rate is 0.001."""


class LabelledBatch(NamedTuple):
    """A batch with what came."""

    inputs: ModelInputs
    labels: Tensor  # (B, K, 1)


class PeerModel(nn.Module):
    """Takes the benchmark's batches. Its forecasts are those of the only target, (B, K, Q)."""

    def __init__(self, cfg: Mapping[str, Any], form: str) -> None:
        super().__init__()
        self.model = build_model(cfg)
        attach_form(self.model, form, torch.device(cfg["device"]))

    def prepare_batch(self, batch: Mapping[str, Tensor]) -> ModelInputs:
        """Lays the batch out once, untimed."""
        return lay_out(batch)

    def forward(self, inputs: ModelInputs) -> Tensor:
        """Returns the forecast (B, K, Q)."""
        prediction: Tensor = self.model(inputs)
        return prediction[:, :, 0]


class PeerEngine:
    """The model in a DeepSpeed engine, with checkpointing, which does whole steps."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        device = choose_device(prepare_environment())
        start_process_group(device)
        settings, _ = read_deepspeed_settings(None, ENGINE)
        model = build_model(cfg)
        attach_form(model, "checkpointing", device)
        batch = resolve_batch(settings, 1, cfg["batch"])
        count = sum(parameter.numel() for parameter in model.parameters())
        self.engine = start_engine(model, engine_config(settings, batch, 1, count))
        self.optimizer = self.engine.optimizer

    def train(self) -> None:
        """Switches dropout on."""
        self.engine.train()

    def parameters(self) -> Iterator[nn.Parameter]:
        """What is trained."""
        parameters: Iterator[nn.Parameter] = self.engine.module.parameters()
        return parameters

    def buffers(self) -> Iterator[Tensor]:
        """What the engine holds beside parameters and optimizer state: its own copies of the weights."""
        yield from self.optimizer.single_partition_of_fp32_groups

    def prepare_batch(self, batch: Mapping[str, Tensor]) -> LabelledBatch:
        """Lays the batch out once, untimed."""
        return LabelledBatch(lay_out(batch), batch["target"].unsqueeze(-1))

    def bench_step(self, batch: LabelledBatch) -> Tensor:
        """Forward, backward and update; returns the mean loss over B, K and Q."""
        prediction = self.engine(batch.inputs)
        quantiles = self.engine.module.size.quantiles
        total, weight = pinball_loss(prediction, batch.labels, torch.ones_like(batch.labels), quantiles)
        loss: Tensor = total / weight
        self.engine.backward(loss)
        self.engine.step()
        return loss.detach()


def build_model(cfg: Mapping[str, Any]) -> TemporalFusionTransformer:
    """Builds the plain model in the benchmark's sizes."""
    torch.manual_seed(cfg["seed"])
    size = ModelSize(
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
    return TemporalFusionTransformer(size).to(cfg["device"])


def lay_out(batch: Mapping[str, Tensor]) -> ModelInputs:
    """Returns the benchmark's batch as the model takes it."""
    observed, known = batch["observed"], batch["known"]
    rows, length = observed.shape[:2]

    def none(*shape: int) -> Tensor:
        return torch.empty(*shape, 0, dtype=torch.int64, device=observed.device)

    return ModelInputs(
        static_reals=batch["static"],
        static_categories=none(rows),
        observed_reals=observed,
        observed_categories=none(rows, length),
        known_reals=known,
        known_categories=none(rows, known.shape[1]),
        encoder_lengths=torch.full((rows,), length),
    )


def build_plain(cfg: Mapping[str, Any]) -> PeerModel:
    """The readable reference: variable selection computes and keeps everything."""
    return PeerModel(cfg, "plain")


def build(cfg: Mapping[str, Any]) -> PeerModel:
    """Streaming variable selection, as in training by default."""
    return PeerModel(cfg, "streaming")


def build_checkpointed(cfg: Mapping[str, Any]) -> PeerModel:
    """The default blocks recomputed."""
    return PeerModel(cfg, "checkpointing")


def build_offloaded(cfg: Mapping[str, Any]) -> PeerModel:
    """What recomputed blocks keep is in host memory."""
    return PeerModel(cfg, "offload")


def build_engine(cfg: Mapping[str, Any]) -> PeerEngine:
    """Through DeepSpeed: stage 1, checkpointing on."""
    return PeerEngine(cfg)
