"""The workload of the benchmarks, TFT-225, and the forms of the model that are compared.

TFT-225: 5 static, 210 observed and 10 known real inputs, encoder length 60, horizon 10, 4 heads, one LSTM layer,
dropout 0.1, quantiles 0.1, 0.5 and 0.9, fp32; hidden size 128 and batches of 32 unless said otherwise. A step is
the forward, the quantile loss, the backward and an update by AdamW.

Letters: B batch, L encoder length, K horizon steps, V variables of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, process_time
from types import MappingProxyType
from typing import NamedTuple

import torch
from peaks import peak_beside_states
from torch import Tensor

from ds_tft.config.deepspeed import read_deepspeed_settings
from ds_tft.memory.meter import kept_for_backward
from ds_tft.memory.passes import MemoryPasses, attach_passes
from ds_tft.model.inputs import ModelInputs, ModelSize
from ds_tft.model.loss import pinball_loss
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.training.engine import choose_device
from ds_tft.training.environment import prepare_environment

STATIC, KNOWN = 5, 10
CHECKPOINTING = "deepspeed.ds_tft.recompute=default"
FORMS = MappingProxyType(
    {
        "plain": ("deepspeed.ds_tft.streaming=false",),
        "streaming": (),
        "checkpointing": (CHECKPOINTING,),
        "offload": (CHECKPOINTING, "deepspeed.activation_checkpointing.cpu_checkpointing=true"),
    }
)
"""What is laid over the default DeepSpeed JSON, as by `--set`. All but the plain form stream."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Sizes of what is measured."""

    hidden_size: int = 128
    batch: int = 32
    variables: int = 225
    """Static, observed and known inputs together."""
    encoder_length: int = 60
    dropout: float = 0.1
    threads: int = 1
    """Torch threads on a CPU."""

    @property
    def size(self) -> ModelSize:
        """Shapes of the model."""
        return ModelSize(
            static_reals=STATIC,
            observed_reals=self.variables - STATIC - KNOWN,
            known_reals=KNOWN,
            encoder_length=self.encoder_length,
            hidden_size=self.hidden_size,
            dropout=self.dropout,
        )


class Seconds(NamedTuple):
    """How long something took."""

    wall: float
    cpu: float
    """Of all threads of the process. On a GPU it is the host's share only."""


class StepSeconds(NamedTuple):
    """How long the parts of a step took."""

    forward: Seconds
    backward: Seconds
    update: Seconds

    @property
    def step(self) -> Seconds:
        """All of it."""
        return Seconds(sum(part.wall for part in self), sum(part.cpu for part in self))


class Trial:
    """A model in one form, its optimizer and one batch.

    Args:
        workload: The sizes.
        form: One of `FORMS`.
        device: Where it runs.
    """

    def __init__(self, workload: Workload, form: str, device: torch.device) -> None:
        self.device = device
        self.model = build_model(workload, device)
        self.passes = attach_form(self.model, form, device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)  # as ds_configs
        self.inputs, self.labels = draw_batch(workload.size, workload.batch, device)

    def loss(self) -> Tensor:
        """Mean quantile loss of the batch, dropout on."""
        return loss_of(self.model.train(), self.inputs, self.labels)

    def step(self) -> None:
        """Forward, backward and update."""
        self.optimizer.zero_grad(set_to_none=True)
        self.loss().backward()
        self.optimizer.step()

    def step_seconds(self) -> StepSeconds:
        """The same, timed."""
        self.optimizer.zero_grad(set_to_none=True)
        with self._timed() as forward:
            loss = self.loss()
        with self._timed() as backward:
            loss.backward()
        with self._timed() as update:
            self.optimizer.step()
        return StepSeconds(forward(), backward(), update())

    def evaluation_seconds(self) -> Seconds:
        """A forecast, timed."""
        self.model.eval()
        with self._timed() as forecast, torch.no_grad():
            self.model(self.inputs)
        return forecast()

    def kept_bytes(self) -> int:
        """What autograd keeps on the device between forward and backward, without weights and batch."""
        return kept_for_backward(self.loss, [*self.model.parameters(), *self.inputs, self.labels])

    def host_bytes(self) -> int:
        """What a step moves to host memory."""
        recompute = self.passes.recompute
        if recompute is None:
            return 0
        recompute.reset()
        self.step()
        traffic = recompute.traffic()
        return 0 if traffic is None else traffic.to_host_bytes

    def peak_bytes(self) -> int:
        """Peak of live tensors in a step, less the states: weights, gradients and optimizer state."""
        self.step()  # makes the optimizer's state
        self.optimizer.zero_grad(set_to_none=True)
        return peak_beside_states(self.step, list(self.model.parameters()), self.device)

    @contextmanager
    def _timed(self) -> Iterator[Callable[[], Seconds]]:
        """Times what is done within; the result can be asked for afterwards."""
        start, end = now(self.device), Seconds(0.0, 0.0)
        yield lambda: Seconds(end.wall - start.wall, end.cpu - start.cpu)
        end = now(self.device)


def find_device() -> torch.device:
    """The GPU, where there is one. DeepSpeed is told where there is none."""
    return choose_device(prepare_environment())


def now(device: torch.device) -> Seconds:
    """The clocks, once a GPU has come this far."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return Seconds(perf_counter(), process_time())


def build_model(workload: Workload, device: torch.device) -> TemporalFusionTransformer:
    """Builds the plain model."""
    torch.manual_seed(0)
    return TemporalFusionTransformer(workload.size).to(device)


def attach_form(model: TemporalFusionTransformer, form: str, device: torch.device) -> MemoryPasses:
    """Attaches the memory passes of one of `FORMS`."""
    settings, _ = read_deepspeed_settings(None, FORMS[form])
    return attach_passes(model, settings, device)


def draw_batch(size: ModelSize, batch: int, device: torch.device) -> tuple[ModelInputs, Tensor]:
    """Draws inputs and labels (B, K, 1)."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    def none(*shape: int) -> Tensor:
        return torch.zeros(*shape, 0, dtype=torch.int64)

    length, steps = size.encoder_length, size.encoder_length + size.horizon
    inputs = ModelInputs(
        static_reals=draw(batch, size.static_reals),
        static_categories=none(batch),
        observed_reals=draw(batch, length, size.observed_reals),
        observed_categories=none(batch, length),
        known_reals=draw(batch, steps, size.known_reals),
        known_categories=none(batch, steps),
        encoder_lengths=torch.full((batch,), length),
    )
    return inputs.to(device, torch.float32), draw(batch, size.horizon, size.num_targets).to(device)


def loss_of(model: TemporalFusionTransformer, inputs: ModelInputs, labels: Tensor) -> Tensor:
    """Mean quantile loss."""
    total, weight = pinball_loss(model(inputs), labels, torch.ones_like(labels), model.size.quantiles)
    return total / weight
