"""A dry run of training: the real model, passes, engine and update, of which only the memory is looked at.

It wants a process of its own, in which `prepare_process` has been called first (`processes.py` starts one): it takes
part in no process group but a pretended one, and works on the CPU whatever the device it is about.

Letters: B batch, K horizon steps, O targets, Q quantiles.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed

from ds_tft.config.batch import BatchSizes
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.engine_config import engine_config
from ds_tft.data.batches import Batch
from ds_tft.memory.dry_running import dry_running
from ds_tft.memory.meter import MIB, tensor_bytes
from ds_tft.memory.passes import MemoryPasses, attach_passes
from ds_tft.memory.plan.as_on_cuda import (
    cuda_extras,
    imitate_cuda,
    settings_for_dry_run,
    stream_as_on_cuda,
)
from ds_tft.memory.plan.dry_run import DryRun
from ds_tft.memory.plan.engine_bytes import bucket_bytes, offloaded_tensors, workspace_bytes
from ds_tft.memory.plan.live_bytes import LiveBytes
from ds_tft.memory.plan.made_batch import batch_bytes, made_batch
from ds_tft.memory.plan.memory_plan import MemoryPlan, StatesPlan
from ds_tft.memory.streaming import StreamingReport
from ds_tft.memory.trace.states import engine_states
from ds_tft.model.inputs import ModelInputs, ModelSize
from ds_tft.model.loss import pinball_loss
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.training.engine import build_engine, start_process_group

CPU = torch.device("cpu")
STEPS = 1000  # of the schedule, which takes no memory
REPEATS = 2  # micro-batches of an update that are run: with others in between the peak is the same
TRIAL_BYTES = 8 * MIB
CUDA_BLOCK = 512  # bytes; torch's allocator on CUDA hands out multiples


def join_pretended_group(world_size: int) -> None:
    """Makes this process the first of a group whose other members do not exist: communication does nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend "fake"

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    start_process_group(CPU)


def plan_by_dry_run(
    size: ModelSize, settings: DeepSpeedSettings, batch: BatchSizes, device: str, threads: int
) -> MemoryPlan:
    """Predicts the memory of a training process.

    Args:
        size: Shapes of the model.
        settings: The DeepSpeed JSON.
        batch: Sizes of an update.
        device: `cpu` or `cuda`.
        threads: torch's threads on a CPU; each has a workspace.
    """
    torch.set_num_threads(1 if device == "cuda" else threads)
    return _DryTraining(size, settings, batch, device).run()


@dataclass(kw_only=True, slots=True)
class _Seen:
    """Bytes seen in one update."""

    kept: int = 0
    """From the end of forward until backward."""
    gradients: int = 0
    at_step: int = 0
    """Of all tensors when the update of the weights begins."""


class _DryTraining:
    """One engine and two updates."""

    def __init__(self, size: ModelSize, settings: DeepSpeedSettings, batch: BatchSizes, device: str) -> None:
        self._size, self._batch, self._on_cuda = size, batch, device == "cuda"
        self._repeats = min(batch.accumulation, REPEATS)
        self._settings = settings_for_dry_run(settings)
        self._live = LiveBytes(CUDA_BLOCK if self._on_cuda else 1)
        self._dtype = torch.float32 if settings.precision == "fp32" else torch.bfloat16

    def run(self) -> MemoryPlan:
        """Builds the engine and runs the updates: the first creates moments, the second is like all others."""
        gc.collect()
        on_host = self._micro_batches() if self._on_cuda else None  # made before anything counts
        with dry_running(), DryRun(self._live, 0 if self._on_cuda else TRIAL_BYTES):
            engine, passes, streaming = self._build()
            for _ in range(2):
                micro_batches = on_host or self._micro_batches()
                seen = self._update(engine, micro_batches)
                del micro_batches
            plan = self._describe(engine, passes, streaming, seen)
            engine.destroy()
        return plan

    def _build(self) -> tuple[Any, MemoryPasses, StreamingReport | None]:
        """Builds the engine around a model with its passes."""
        settings, streaming = self._settings, None
        with self._live.phase("build"):
            model = TemporalFusionTransformer(self._size)
            if self._on_cuda:
                imitate_cuda(model)
                streaming, settings = stream_as_on_cuda(model, settings)
            passes = attach_passes(model, settings, CPU)
            count = sum(parameter.numel() for parameter in model.parameters())
            engine = build_engine(model, engine_config(self._settings, self._shortened(), STEPS, count))
        if self._on_cuda:
            for group in engine.optimizer.param_groups:
                if "foreach" in group:
                    group["foreach"] = True  # torch's choice on a GPU
        gc.collect()  # DeepSpeed leaves a copy of the weights in a cycle
        engine.train()
        return engine, passes, streaming or passes.streaming

    def _micro_batches(self) -> list[Batch]:
        """Those of an update that are run."""
        return [made_batch(self._size, self._batch.micro_batch) for _ in range(self._repeats)]

    def _shortened(self) -> BatchSizes:
        """The sizes with no more micro-batches than are run."""
        return replace(
            self._batch,
            accumulation=self._repeats,
            global_batch=self._batch.micro_batch * self._repeats * self._batch.world_size,
        )

    def _update(self, engine: Any, micro_batches: list[Batch]) -> _Seen:
        """Does what the trainer does."""
        live, seen = self._live, _Seen()
        start = live.now
        total = torch.zeros(())
        for batch in micro_batches:
            batch = self._to_device(batch)
            before = live.now
            with live.phase("forward"):
                prediction = engine(batch.inputs)  # (B, K, O, Q)
                loss, _ = pinball_loss(prediction, batch.labels, batch.weights, self._size.quantiles)
                loss = loss * 1.0
            seen.kept = max(seen.kept, live.now - before)
            with live.phase("backward"):
                engine.backward(loss)
                total += loss.detach()
            del prediction, loss, batch
            seen.at_step = live.now
            seen.gradients = max(seen.gradients, live.now - start)
            with live.phase("optimizer"):
                engine.step()
        return seen

    def _describe(
        self, engine: Any, passes: MemoryPasses, streaming: StreamingReport | None, seen: _Seen
    ) -> MemoryPlan:
        """Puts together what was seen."""
        moved = None if passes.recompute is None else passes.recompute.traffic()
        host_kept = 0 if moved is None else moved.host_bytes
        offloads = self._settings.zero_optimization.offloads
        host_optimizer = tensor_bytes(offloaded_tensors(engine.optimizer)) if offloads else 0
        elsewhere = host_kept + host_optimizer if self._on_cuda else 0
        states = engine_states(engine, CPU)
        optimizer = 0 if self._on_cuda and offloads else states.optimizer
        other = max(0, self._live.now - elsewhere - states.parameters - optimizer)
        peaks = self._peaks(host_kept, host_optimizer, 2 * states.parameters, seen)
        steps = self._size.encoder_length
        return MemoryPlan(
            device="cuda" if self._on_cuda else "cpu",
            batch=self._batch,
            states=StatesPlan(weights=states.parameters, optimizer=optimizer, other=other),
            gradients=seen.gradients,
            kept=seen.kept,
            workspace=workspace_bytes(streaming, self._batch.micro_batch * steps),
            bucket=bucket_bytes(engine, self._settings),
            inputs=self._input_bytes * (1 if self._on_cuda else self._batch.accumulation),
            phase_peaks=peaks,
            host_kept=host_kept,
            host_optimizer=host_optimizer,
            extras=cuda_extras(max(peaks.values())) if self._on_cuda else None,
        )

    def _peaks(self, host_kept: int, host_optimizer: int, least: int, seen: _Seen) -> dict[str, int]:
        """The peaks by phase: on a GPU less what is on the host, on a CPU with all inputs of an update.

        Args:
            host_kept: Bytes of inputs of blocks that are offloaded.
            host_optimizer: Bytes of optimizer state that are offloaded.
            least: Bytes that building an engine takes at least.
            seen: The last update.
        """
        peaks = dict(self._live.peaks)
        if not self._on_cuda:
            waiting = (self._batch.accumulation - self._repeats) * self._input_bytes
            return {phase: peak + waiting * (phase != "build") for phase, peak in peaks.items()}
        if host_optimizer:
            peaks["optimizer"] = seen.at_step  # the update itself runs on the host
        found = {phase: peak - host_optimizer - host_kept for phase, peak in peaks.items()}
        found["build"] = max(peaks["build"] - host_optimizer, least)
        return found

    def _to_device(self, batch: Batch) -> Batch:
        """What the trainer does first; to a GPU everything is copied."""
        if not self._on_cuda:
            return batch.to(CPU, self._dtype)
        inputs = [
            each.to(self._dtype, copy=True) if each.is_floating_point() else each.clone()
            for each in batch.inputs
        ]
        return Batch(ModelInputs(*inputs), batch.labels.clone(), batch.weights.clone(), batch.windows)

    @property
    def _input_bytes(self) -> int:
        """Bytes of one micro-batch: on a CPU as the loader made it, on a GPU the copy."""
        batch = made_batch(self._size, self._batch.micro_batch)
        return batch_bytes(self._to_device(batch) if self._on_cuda else batch)
