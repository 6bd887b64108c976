"""Configurations that differ, and what an update of each takes: as predicted, and as measured with its engine."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ds_tft.config.batch import BatchSizes, resolve_batch
from ds_tft.config.deepspeed import read_deepspeed_settings
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.engine_config import engine_config
from ds_tft.memory.passes import attach_passes
from ds_tft.memory.plan.engine_run import join_pretended_group
from ds_tft.memory.plan.made_batch import made_batch
from ds_tft.memory.trace.allocations import AllocationRecorder
from ds_tft.memory.trace.timeline import Place, timeline_of
from ds_tft.model.inputs import ModelSize
from ds_tft.model.loss import pinball_loss
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.training.engine import build_engine

CPU = torch.device("cpu")
RECOMPUTE = 'ds_tft.recompute="default"'
OFFLOAD = "activation_checkpointing.cpu_checkpointing=true"
PLAIN = "ds_tft.streaming=false"
BF16 = "bf16.enabled=true"
COMPRESS = 'ds_tft={"recompute":"default","compress_kept":"int8"}'
HOST_OPTIMIZER = 'zero_optimization.offload_optimizer={"device":"cpu"}'


def stage(number: int) -> str:
    """An argument of `--set`."""
    return f"zero_optimization.stage={number}"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration."""

    hidden: int
    batch: int
    observed: int = 10
    encoder: int = 30
    categories: bool = False
    changes: tuple[str, ...] = ()
    accumulation: int = 1
    threads: int = 1

    @property
    def size(self) -> ModelSize:
        few = (3, 5) if self.categories else ()
        return ModelSize(
            static_reals=2,
            static_categories=few,
            observed_reals=self.observed,
            observed_categories=few,
            known_reals=4,
            known_categories=few,
            encoder_length=self.encoder,
            horizon=6,
            hidden_size=self.hidden,
        )

    @property
    def settings(self) -> DeepSpeedSettings:
        changes = (*self.changes, f"gradient_accumulation_steps={self.accumulation}")
        return read_deepspeed_settings(None, [f"deepspeed.{change}" for change in changes])[0]

    @property
    def sizes(self) -> BatchSizes:
        return resolve_batch(self.settings, 1, self.batch * self.accumulation)

    def __str__(self) -> str:
        said = ",".join(change.split(".")[-1] for change in self.changes)
        kinds = "+categories" if self.categories else ""
        return (
            f"hidden{self.hidden}-batch{self.batch}x{self.accumulation}-{self.observed}observed{kinds}-"
            f"encoder{self.encoder}-{self.threads}threads-{said}"
        )


CASES = (
    Case(hidden=128, batch=4, encoder=60, changes=(stage(0),)),
    Case(hidden=32, batch=128, observed=60, categories=True, changes=(stage(2),)),
    Case(hidden=64, batch=64, changes=(RECOMPUTE,)),
    Case(hidden=32, batch=32, observed=20, encoder=60, categories=True, changes=(PLAIN, stage(0), RECOMPUTE)),
    Case(hidden=64, batch=32, observed=20, changes=(BF16,)),
    Case(hidden=48, batch=32, categories=True, changes=(BF16, stage(2), RECOMPUTE), accumulation=2),
    Case(hidden=64, batch=16, accumulation=5, encoder=20, changes=(stage(2), OFFLOAD)),
    Case(hidden=64, batch=64, observed=30, threads=2, changes=(stage(0), RECOMPUTE), categories=True),
    Case(hidden=64, batch=16, changes=(HOST_OPTIMIZER,), accumulation=2),
    Case(hidden=64, batch=48, changes=("ds_tft.variables_per_chunk=4",)),
    Case(hidden=32, batch=24, changes=(PLAIN, stage(3)), categories=True),
    Case(hidden=64, batch=64, changes=(COMPRESS,)),
)
MORE = (
    Case(hidden=64, batch=32, observed=40),
    Case(hidden=64, batch=128, encoder=60, changes=(OFFLOAD,)),
    Case(hidden=32, batch=64, changes=(PLAIN,)),
    Case(hidden=64, batch=16, accumulation=2, categories=True),
    Case(hidden=96, batch=32, observed=30, threads=2),
    Case(hidden=32, batch=96, changes=(PLAIN, BF16), encoder=20),
)
LARGE = (
    Case(hidden=128, batch=32, observed=208, encoder=60),
    Case(hidden=128, batch=128, observed=208, encoder=60, changes=(RECOMPUTE,)),
    Case(hidden=128, batch=32, observed=208, encoder=60, threads=2, changes=(stage(2), OFFLOAD)),
)
"""About as many variables as TFT-225."""


def measure(case: Case) -> dict[str, int]:
    """Builds the engine and runs two updates, as training does.

    Returns the most bytes of live tensors in each phase, counted from before the engine. Run it in a process
    with a pretended group: gloo frees what it reduced in threads of its own, sooner or later.
    """
    gc.collect()
    before = torch.get_num_threads()
    torch.set_num_threads(case.threads)
    recorder = AllocationRecorder[Place](CPU)
    recorder.start()
    try:
        _train(case, recorder)
    finally:
        allocations = recorder.stop()
        torch.set_num_threads(before)
    peaks: dict[str, int] = {}
    for stretch in timeline_of(allocations).stretches:
        if stretch.place.phase:
            peaks[stretch.place.phase] = max(peaks.get(stretch.place.phase, 0), stretch.peak)
    return peaks


def measure_apart(case: Case) -> dict[str, int]:
    """Measures in a process that `prepare_process` has set up."""
    if not torch.distributed.is_initialized():
        join_pretended_group(1)
    return measure(case)


def _train(case: Case, recorder: AllocationRecorder[Place]) -> None:
    @contextmanager
    def phase(name: str) -> Iterator[None]:
        recorder.mark(Place(name))
        yield
        recorder.mark(Place())

    with phase("build"):
        model = TemporalFusionTransformer(case.size)
        attach_passes(model, case.settings, CPU)
        count = sum(parameter.numel() for parameter in model.parameters())
        engine = build_engine(model, engine_config(case.settings, case.sizes, 100, count))
    gc.collect()
    engine.train()
    dtype = next(engine.module.parameters()).dtype
    for _ in range(2):
        batches = [made_batch(case.size, case.batch) for _ in range(case.accumulation)]
        total = torch.zeros(())
        for batch in batches:
            total += _micro_step(engine, batch.to(CPU, dtype), case.size.quantiles, phase)
            with phase("optimizer"):
                engine.step()
        del batches, batch, total
    engine.destroy()


def _micro_step(engine, batch, quantiles, phase) -> torch.Tensor:
    with phase("forward"):
        prediction = engine(batch.inputs)
        loss = pinball_loss(prediction, batch.labels, batch.weights, quantiles)[0] * 0.5
    with phase("backward"):
        engine.backward(loss)
    return loss.detach()
