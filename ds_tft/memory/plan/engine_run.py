"""A dry run of training: the real model, passes, engine and update, of which only the memory is looked at.

It wants a process of its own, in which `prepare` has been called first (`processes.py` starts one): it takes
part in no process group but a pretended one, and works on the CPU whatever the device it is about.

Letters: B batch, L encoder length, K horizon steps, O targets.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from ds_tft.config.batch import BatchSizes
from ds_tft.config.deepspeed_sections import DeepSpeedSettings
from ds_tft.config.engine_config import engine_config
from ds_tft.data.batches import Batch
from ds_tft.memory.dry_running import dry_running
from ds_tft.memory.meter import MIB, optimizer_tensors, tensor_bytes
from ds_tft.memory.passes import MemoryPasses, attach_passes
from ds_tft.memory.plan.as_on_cuda import (
    cuda_extras,
    imitate_cuda,
    settings_for_dry_run,
    stream_as_on_cuda,
)
from ds_tft.memory.plan.dry_run import DryRun
from ds_tft.memory.plan.live_bytes import LiveBytes
from ds_tft.memory.plan.memory_plan import MemoryPlan, StatesPlan
from ds_tft.memory.streaming import StreamingReport
from ds_tft.memory.trace.states import engine_states
from ds_tft.model.inputs import ModelInputs, ModelSize
from ds_tft.model.loss import pinball_loss
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.training.engine import build_engine, start_process_group

CPU = torch.device("cpu")
STEPS = 1000  # of the schedule, which takes no memory
REPEATS = 2  # micro-batches of an update that are run; those between the first and the last are alike
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
        on_host = [self._draw() for _ in range(self._repeats)] if self._on_cuda else None
        with dry_running(), DryRun(self._live, 0 if self._on_cuda else TRIAL_BYTES):
            engine, passes, streaming = self._build()
            for _ in range(2):
                micro_batches = on_host or [self._draw() for _ in range(self._repeats)]
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

    def _shortened(self) -> BatchSizes:
        """The sizes with no more micro-batches than are run."""
        return replace(
            self._batch,
            accumulation=self._repeats,
            global_batch=self._batch.micro_batch * self._repeats * self._batch.world_size,
        )

    def _waiting_bytes(self) -> int:
        """Bytes of the micro-batches that are not run and on a CPU take memory all the same."""
        if self._on_cuda:
            return 0
        return (self._batch.accumulation - self._repeats) * _bytes_of(self._draw())

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
        """Puts together what was seen; on a GPU, what is offloaded is taken off."""
        moved = None if passes.recompute is None else passes.recompute.traffic()
        host_kept = 0 if moved is None else moved.host_bytes
        offloads = self._settings.zero_optimization.offloads
        host_optimizer = tensor_bytes(_offloaded(engine.optimizer)) if offloads else 0
        elsewhere = host_kept + host_optimizer if self._on_cuda else 0
        elsewhere -= self._waiting_bytes()
        peaks = {phase: peak - elsewhere for phase, peak in self._live.peaks.items()}
        states = engine_states(engine, CPU)
        if self._on_cuda:
            peaks["build"] = max(peaks["build"] + host_kept, 2 * states.parameters)
            if offloads:
                peaks["optimizer"] = seen.at_step - elsewhere  # the update runs on the host
        optimizer = 0 if self._on_cuda and offloads else states.optimizer
        other = self._live.now - elsewhere - states.parameters - optimizer
        return MemoryPlan(
            device="cuda" if self._on_cuda else "cpu",
            batch=self._batch,
            states=StatesPlan(weights=states.parameters, optimizer=optimizer, other=max(0, other)),
            gradients=seen.gradients,
            kept=seen.kept,
            workspace=self._workspace(streaming),
            bucket=self._bucket(engine),
            inputs=self._input_bytes(),
            phase_peaks=peaks,
            host_kept=host_kept,
            host_optimizer=host_optimizer,
            extras=cuda_extras(max(peaks.values())) if self._on_cuda else None,
        )

    def _draw(self) -> Batch:
        """One micro-batch of zeros with full histories."""
        size, count = self._size, self._batch.micro_batch
        length, steps = size.encoder_length, size.encoder_length + size.horizon
        labels = torch.zeros(count, size.horizon, size.num_targets)
        inputs = ModelInputs(
            static_reals=torch.zeros(count, size.static_reals),
            static_categories=_zeros(count, len(size.static_categories)),
            observed_reals=torch.zeros(count, length, size.observed_reals),
            observed_categories=_zeros(count, length, len(size.observed_categories)),
            known_reals=torch.zeros(count, steps, size.known_reals),
            known_categories=_zeros(count, steps, len(size.known_categories)),
            encoder_lengths=torch.full((count,), length),
        )
        return Batch(inputs, labels, torch.zeros_like(labels), _zeros(count))

    def _to_device(self, batch: Batch) -> Batch:
        """What the trainer does first; to a GPU everything is copied."""
        if not self._on_cuda:
            return batch.to(CPU, self._dtype)
        inputs = [
            each.to(self._dtype, copy=True) if each.is_floating_point() else each.clone()
            for each in batch.inputs
        ]
        return Batch(ModelInputs(*inputs), batch.labels.clone(), batch.weights.clone(), batch.windows)

    def _input_bytes(self) -> int:
        """Bytes of the micro-batches on the device: on a CPU those of a whole update, on a GPU one."""
        batch = self._draw()
        return (
            _bytes_of(self._to_device(batch))
            if self._on_cuda
            else _bytes_of(batch) * self._batch.accumulation
        )

    def _workspace(self, streaming: StreamingReport | None) -> int:
        """Bytes of streaming's buffers in the selection that takes most."""
        if streaming is None:
            return 0
        steps = self._size.encoder_length
        return max(each.workspace_bytes(self._batch.micro_batch * steps) for each in streaming.selections)

    def _bucket(self, engine: Any) -> int:
        """Bytes of the buffers in which ZeRO reduces gradients."""
        zero = self._settings.zero_optimization
        if not zero.stage or not zero.contiguous_gradients:
            return 0
        elements = engine.optimizer.reduce_bucket_size
        # In stage 1, gradients in half precision are summed and reduced in fp32.
        width = 4 if zero.stage == 1 or self._settings.precision == "fp32" else 2
        return int(elements) * width * (2 if zero.overlap_comm else 1)


def _bytes_of(batch: Batch) -> int:
    """Bytes of a batch."""
    return tensor_bytes((*batch.inputs, *batch[1:]))


def _zeros(*shape: int) -> Tensor:
    """Whole numbers."""
    return torch.zeros(*shape, dtype=torch.int64)


def _offloaded(optimizer: Any) -> Iterator[Tensor]:
    """Yields what DeepSpeed's optimizer of stage 1 or 2 keeps on the host with `offload_optimizer`."""
    for master in optimizer.single_partition_of_fp32_groups:
        yield master
        if master.grad is not None:
            yield master.grad
    yield from optimizer.param_buffer_of_bit16_for_cpu_offload_groups
    yield optimizer.temp_grad_buffer_for_cpu_offload
    yield from optimizer.accumulated_grads_in_cpu.values()
    yield from optimizer_tensors(optimizer.optimizer)
