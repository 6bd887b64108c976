"""Lets a model on the CPU take the memory that it would take on a GPU, for a dry run.

What differs: streaming cuts larger chunks, dropout keeps a byte per value instead of four, and cuDNN's LSTM
keeps memory of its own. How much that is depends on cuDNN; it is estimated here.

Letters: B batch, T time steps, H hidden size, D layers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ds_tft.config.deepspeed_sections import Bf16, DeepSpeedSettings, Fp16
from ds_tft.config.optimizer_sections import OptimizerAdam, OptimizerAdamW
from ds_tft.memory.passes import streaming_settings
from ds_tft.memory.plan.memory_plan import CudaExtras
from ds_tft.memory.streaming import StreamingReport, stream_variable_selection

MIB = 2**20
CONTEXT_BYTES = 450 * MIB
LIBRARY_BYTES = 48 * MIB
FRAGMENTED_SHARE = 0.05
LSTM_RESERVE = 6
"""Values that cuDNN keeps per row, layer and unit: four gates, the cell and the output."""


def cuda_extras(tensor_peak: int) -> CudaExtras:
    """Estimates what a GPU holds beside tensors."""
    return CudaExtras(
        context=CONTEXT_BYTES, libraries=LIBRARY_BYTES, fragmentation=round(FRAGMENTED_SHARE * tensor_peak)
    )


def settings_for_dry_run(settings: DeepSpeedSettings) -> DeepSpeedSettings:
    """Replaces what a CPU would refuse or compile by what takes the same memory, and what DeepSpeed would print."""
    changes: dict[str, Any] = {"log_level": "error", "steps_per_print": None, "wall_clock_breakdown": False}
    if settings.fp16.enabled:
        changes |= {"fp16": Fp16(), "bf16": Bf16(enabled=True)}
    if isinstance(settings.optimizer, OptimizerAdam | OptimizerAdamW):
        params = settings.optimizer.params.model_copy(update={"torch_adam": True})
        changes["optimizer"] = settings.optimizer.model_copy(update={"params": params})
    if settings.activation_checkpointing.synchronize_checkpoint_boundary:
        section = settings.activation_checkpointing.model_copy(
            update={"synchronize_checkpoint_boundary": False}
        )
        blocks = settings.ds_tft.recompute or "default"
        changes["activation_checkpointing"] = section
        changes["ds_tft"] = settings.ds_tft.model_copy(update={"recompute": blocks})
    return settings.model_copy(update=changes)


def stream_as_on_cuda(
    model: nn.Module, settings: DeepSpeedSettings
) -> tuple[StreamingReport | None, DeepSpeedSettings]:
    """Lets variable selections stream in the chunks of a GPU; returns the settings that are left to attach."""
    product = settings.ds_tft
    if not product.streaming:
        return None, settings
    device = torch.device("cuda")
    report = stream_variable_selection(model, streaming_settings(product, device), device)
    rest = product.model_copy(update={"streaming": False})
    return report, settings.model_copy(update={"ds_tft": rest})


def imitate_cuda(model: nn.Module) -> None:
    """Gives dropout and LSTMs of a model the memory that they take on a GPU; results mean nothing."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.forward = partial(_dropout, module)  # type: ignore[method-assign]
        elif isinstance(module, nn.LSTM):
            module.forward = partial(_lstm, module)  # type: ignore[method-assign, assignment]


def _dropout(module: nn.Dropout, x: Tensor) -> Tensor:
    """The kernel that keeps a mask of one byte per value."""
    if not module.p or not module.training:
        return x
    return torch.native_dropout(x, module.p, True)[0]


def _lstm(
    module: nn.LSTM, x: Tensor | PackedSequence, state: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Stands in for `nn.LSTM.forward`."""
    assert isinstance(x, Tensor), "histories are full in a dry run"
    if state is None:
        zeros = x.new_zeros(module.num_layers, len(x), module.hidden_size)
        state = (zeros, zeros)
    output, hidden, cell = _CudnnLstm.apply(module.num_layers, x, *state, *module.parameters())
    return output, (hidden, cell)


class _CudnnLstm(torch.autograd.Function):
    """Allocates what cuDNN's LSTM allocates."""

    @staticmethod
    def forward(
        ctx: Any, layers: int, x: Tensor, hidden: Tensor, cell: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        output = x.new_empty(*x.shape[:-1], hidden.shape[-1])  # (B, T, H)
        reserve = x.new_empty(LSTM_RESERVE * layers * output.numel())
        packed = x.new_empty(sum(weight.numel() for weight in weights))  # cuDNN wants them in one piece
        ctx.save_for_backward(x, hidden, cell, output, reserve, packed, *weights)
        return output, torch.empty_like(hidden), torch.empty_like(cell)

    @staticmethod
    def backward(ctx: Any, *_grads: Tensor) -> tuple[Tensor | None, ...]:
        x, hidden, cell, output, _reserve, packed, *weights = ctx.saved_tensors
        workspace = x.new_empty(4 * output.numel())
        packed_grad = torch.empty_like(packed)
        grads = tuple(torch.empty_like(tensor) for tensor in (x, hidden, cell, *weights))
        del workspace, packed_grad
        return None, *grads
