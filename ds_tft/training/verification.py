"""Checks the memory passes on one batch: the losses and gradients of each against those without it, and its cost.

Streaming changes the order of additions and draws dropout masks of its own: it is compared with the plain
model without dropout, in the model's precision and in float64. What comes on top of it must change nothing, and
is compared with dropout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.data.batches import Batch
from ds_tft.errors import ConfigError, UserError
from ds_tft.memory.meter import KeptForBackward
from ds_tft.memory.passes import attach_passes, detach_passes
from ds_tft.memory.peak import peak_live_bytes
from ds_tft.model.loss import pinball_loss
from ds_tft.model.tft import TemporalFusionTransformer

SEED = 20
ROUNDS = 3
FP32_BOUND = 1e-6  # streaming against plain: the order of additions
FLOAT64_BOUND = 1e-12
HALF_BOUND = 0.05  # the plain model rounds to 8 bits in between, streaming does not
GPU_BOUND = 1e-6  # some kernels of a GPU add in no fixed order
FLOAT64_WINDOWS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """A way to run the model."""

    name: str
    settings: DeepSpeedSettings
    lossy: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How far a form is from its reference; 0 is bit-equal."""

    form: str
    reference: str
    dtype: torch.dtype
    dropout: float
    windows: int
    loss: float
    """Relative."""
    gradients: float
    """Of all gradients together: length of the difference over length of the reference."""
    worst_parameter: str
    worst: float
    """The same of the one parameter where it is largest; those with next to no gradient are left out."""
    bound: float | None
    """Largest difference allowed; `None` for a form that is lossy by design."""
    idle: str = ""
    """Why the form did nothing here, such as that all inputs are small; empty where it did."""

    @property
    def holds(self) -> bool:
        """Whether loss and gradients are within the bound, and finite."""
        largest = max(self.loss, self.gradients)
        return largest < float("inf") and (self.bound is None or largest <= self.bound)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a training step of a form takes, in bytes and seconds; without weights and batch."""

    form: str
    kept_bytes: int
    peak_bytes: int
    """Gradients included."""
    host_bytes: int
    seconds: float


class Verification:
    """Runs forms of one model on one batch.

    Args:
        model: Without passes, on its device; it is left as it was, but for its gradients.
        batch: On that device.
        settings: The DeepSpeed JSON.
    """

    def __init__(self, model: TemporalFusionTransformer, batch: Batch, settings: DeepSpeedSettings) -> None:
        self.model = model.train()
        self.batch = batch
        self.settings = settings
        self.device = batch.labels.device
        self.dtype = next(model.parameters()).dtype

    def forms(self) -> list[Form]:
        """Returns the plain form, and every pass on top of those before it."""
        base = self.settings
        return [
            Form(name="plain", settings=_variant(base, streaming=False)),
            Form(name="streaming", settings=_variant(base, streaming=True)),
            Form(name="recompute", settings=_variant(base, streaming=True, recompute=True)),
            Form(name="offload", settings=_variant(base, streaming=True, recompute=True, offload=True)),
            Form(
                name="INT8 kept",
                settings=_variant(base, streaming=True, recompute=True, compress=True),
                lossy=True,
            ),
        ]

    def differences(self) -> Iterator[Difference]:
        """Compares every form with what it must equal."""
        plain, streaming, *on_top = self.forms()
        without_dropout = self._model(self.dtype, dropout=0.0)
        bound = FP32_BOUND if self.dtype == torch.float32 else HALF_BOUND
        yield self._compare(without_dropout, self.batch, streaming, plain, bound)
        few = first_windows(self.batch, FLOAT64_WINDOWS).to(self.device, torch.float64)
        yield self._compare(self._model(torch.float64, dropout=0.0), few, streaming, plain, FLOAT64_BOUND)
        for form in on_top:
            exact = 0.0 if self.device.type == "cpu" else GPU_BOUND
            yield self._compare(self.model, self.batch, form, streaming, None if form.lossy else exact)

    def costs(self) -> list[Cost]:
        """Measures every form; the timed steps take turns."""
        forms = self.forms()
        seconds: dict[str, list[float]] = {form.name: [] for form in forms}
        for _ in range(ROUNDS + 1):
            for form in forms:
                seconds[form.name].append(self._seconds(form))
        return [self._cost(form, median(seconds[form.name][1:])) for form in forms]

    def _compare(
        self, model: TemporalFusionTransformer, batch: Batch, form: Form, reference: Form, bound: float | None
    ) -> Difference:
        """Runs two forms of a model on one batch."""
        loss, gradients, idle = self._step(model, batch, form)
        expected_loss, expected, _ = self._step(model, batch, reference)
        total = torch.stack([grad.double().norm() for grad in expected.values()]).norm()
        if not bool(total.isfinite() & (total > 0)):
            raise UserError(
                f"launch/verify.py: there is nothing to compare, got gradients of length {float(total):g} in the "
                f"{reference.name} form; look for extreme values, or labels without weight, in the first windows"
            )
        apart = {name: (gradients[name].double() - grad.double()).norm() for name, grad in expected.items()}
        relative = {
            name: float(apart[name] / grad.double().norm())
            for name, grad in expected.items()
            if grad.double().norm() > 1e-6 * total
        }
        worst = max(relative, key=lambda name: relative[name])
        return Difference(
            form=form.name,
            reference=reference.name,
            dtype=next(model.parameters()).dtype,
            dropout=model.size.dropout,
            windows=len(batch.labels),
            loss=abs(loss - expected_loss) / max(abs(expected_loss), torch.finfo(torch.float64).tiny),
            gradients=float(torch.stack(list(apart.values())).norm() / total),
            worst_parameter=worst,
            worst=relative[worst],
            bound=bound,
            idle=idle,
        )

    def _step(
        self, model: TemporalFusionTransformer, batch: Batch, form: Form
    ) -> tuple[float, dict[str, Tensor], str]:
        """Returns loss and gradients, the latter on the CPU, and why the passes did nothing if they did not."""
        passes, idle = attach_passes(model, form.settings, self.device), ""
        try:
            loss = _backward(model, batch)
            if passes.recompute is not None:
                passes.recompute.check_effect()
        except ConfigError as error:
            idle = str(error)
        finally:
            detach_passes(model, passes)
        gradients = {  # one that a pass has lost counts as 0
            name: torch.zeros_like(each, device="cpu") if each.grad is None else each.grad.cpu()
            for name, each in model.named_parameters()
        }
        model.zero_grad(set_to_none=True)
        return float(loss), gradients, idle

    def _seconds(self, form: Form) -> float:
        """Times one step."""
        passes = attach_passes(self.model, form.settings, self.device)
        self._wait()
        started = perf_counter()
        _backward(self.model, self.batch)
        self._wait()
        seconds = perf_counter() - started
        detach_passes(self.model, passes)
        return seconds

    def _cost(self, form: Form, seconds: float) -> Cost:
        """Measures the bytes of one step."""
        model, batch = self.model, self.batch
        passes = attach_passes(model, form.settings, self.device)
        model.zero_grad(set_to_none=True)
        with KeptForBackward([*model.parameters(), *batch.inputs]) as kept:
            loss = _loss(model, batch)
        kept_bytes = kept.bytes
        del loss
        peak = peak_live_bytes(lambda: _backward(model, batch), self.device)
        moved = None if passes.recompute is None else passes.recompute.traffic()
        detach_passes(model, passes)
        model.zero_grad(set_to_none=True)
        return Cost(
            form=form.name,
            kept_bytes=kept_bytes,
            peak_bytes=peak,
            host_bytes=0 if moved is None else moved.host_bytes,
            seconds=seconds,
        )

    def _model(self, dtype: torch.dtype, dropout: float) -> TemporalFusionTransformer:
        """Returns a copy in another type."""
        twin = TemporalFusionTransformer(replace(self.model.size, dropout=dropout))
        twin.load_state_dict(self.model.state_dict())
        return twin.to(self.device, dtype).train()

    def _wait(self) -> None:
        """Waits for the GPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _variant(
    settings: DeepSpeedSettings,
    *,
    streaming: bool,
    recompute: bool = False,
    offload: bool = False,
    compress: bool = False,
) -> DeepSpeedSettings:
    """Returns the settings with other passes; blocks that they name stay."""
    product = settings.ds_tft.model_copy(
        update={
            "streaming": streaming,
            "variables_per_chunk": settings.ds_tft.variables_per_chunk if streaming else "auto",
            "recompute": (settings.ds_tft.recompute or "default") if recompute else None,
            "compress_kept": "int8" if compress else None,
        }
    )
    section = type(settings.activation_checkpointing)(cpu_checkpointing=offload)
    return settings.model_copy(update={"ds_tft": product, "activation_checkpointing": section})


def first_windows(batch: Batch, windows: int) -> Batch:
    """Returns the first windows of a batch."""
    inputs = type(batch.inputs)(*(each[:windows] for each in batch.inputs))
    return Batch(inputs, batch.labels[:windows], batch.weights[:windows], batch.windows[:windows])


def _loss(model: TemporalFusionTransformer, batch: Batch) -> Tensor:
    """Returns the mean loss of a batch, with the same dropout each time."""
    torch.manual_seed(SEED)
    total, weight = pinball_loss(model(batch.inputs), batch.labels, batch.weights, model.size.quantiles)
    return total / weight


def _backward(model: TemporalFusionTransformer, batch: Batch) -> Tensor:
    """Runs forward and backward from no gradients, and returns the loss."""
    model.zero_grad(set_to_none=True)
    loss = _loss(model, batch)
    loss.backward()
    return loss.detach()
