"""Streaming variable selection: the plain result, without a tensor of shape (batch, time, variables, hidden).

`stream_variable_selection(model)` gives every `VariableSelection` of a model another `forward`. Nothing else
changes: no wrapper, no parameter, no name; a checkpoint written with it loads without it.

What is kept for backward: the inputs, tensors of shape (R, V) and (R, H), and a seed for the dropout masks.
What it costs: the networks of the variables run again in backward. What it saves beyond memory: the products of
embeddings with the layers right behind them, taken once per forward instead of once per row. Nothing is cached
from one forward to the next, so nothing can be stale.

Exact: results and gradients are those of the plain module up to the order of additions. With parameters in half
precision, softmax, skip connection, layer norm and mix are in float32. Under autocast, matrix products per row
run in its type and all else in that of the parameters.

Dropout follows from a seed drawn from torch's global CPU generator in each training forward.

Works under `torch.utils.checkpoint`, with `retain_graph`, and under ZeRO stages 0 to 2. Not under stage 3,
which gathers parameters only for a submodule's own forward. There is no second derivative.

Letters: R rows (batch x time), V variables, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from ds_tft.errors import ConfigError
from ds_tft.formatting import format_bytes
from ds_tft.memory.chunks import BUFFERS, ChunkSize, StreamingSettings, choose_chunk_size
from ds_tft.memory.streamed_selection import choose_precision, streamed_forward
from ds_tft.model.variable_selection import VariableSelection


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamedSelection:
    """One variable selection that streams."""

    name: str
    num_variables: int
    hidden_size: int
    bytes_per_row: int
    """Bytes of one buffer for one row of one variable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamingReport:
    """What streams, and in chunks of which size."""

    selections: tuple[StreamedSelection, ...]
    settings: StreamingSettings
    device: torch.device

    def chunk_size(self, name: str, num_rows: int) -> ChunkSize:
        """Returns the chunk of a selection for a batch of this many rows (batch x time)."""
        selection = next(selection for selection in self.selections if selection.name == name)
        return choose_chunk_size(
            self.settings, selection.num_variables, num_rows, selection.bytes_per_row, self.device
        )

    def workspace_bytes(self, name: str, num_rows: int) -> int:
        """Returns an upper bound of the bytes that the buffers of a selection take while it runs."""
        selection = next(selection for selection in self.selections if selection.name == name)
        chunk = self.chunk_size(name, num_rows)
        return BUFFERS * chunk.variables * chunk.rows * selection.bytes_per_row

    def line(self) -> str:
        """Says it in one line for the log."""
        names = ", ".join(f"{each.name} ({each.num_variables} variables)" for each in self.selections)
        if self.settings.variables_per_chunk is not None:
            count = self.settings.variables_per_chunk
            return f"streaming variable selection: {names}; {count} variables at a time"
        limit = self.settings.limit(self.device)
        return (
            f"streaming variable selection: {names}; buffers of {format_bytes(limit)}, "
            f"workspace up to {format_bytes(BUFFERS * limit)}"
        )


def stream_variable_selection(model: nn.Module, settings: StreamingSettings | None = None) -> StreamingReport:
    """Makes every variable selection of a model stream.

    Args:
        model: Holds `VariableSelection` modules.
        settings: Size of the chunks; the default suits the device.

    Returns:
        What streams.

    Raises:
        ConfigError: If there is none, or one of them streams already.
    """
    settings = settings or StreamingSettings()
    found = _selections(model)
    if not found:
        raise ConfigError(
            f"streaming: the model has no variable selection, got {type(model).__name__}; leave streaming off"
        )
    for name, selection in found.items():
        if "forward" in vars(selection):
            raise ConfigError(
                f"streaming: '{name}' has had its forward replaced already; stream a model once, or unstream it"
            )
    for selection in found.values():
        # A partial of a function that takes the module: copies of the model get copies that use themselves.
        selection.forward = partial(streamed_forward, selection, settings)  # type: ignore[method-assign]
    return StreamingReport(
        selections=tuple(_describe(name, selection) for name, selection in found.items()),
        settings=settings,
        device=next(model.parameters()).device,
    )


def unstream(model: nn.Module) -> None:
    """Gives the variable selections their plain forward back.

    Raises:
        ConfigError: If none of them streams.
    """
    streamed = [selection for selection in _selections(model).values() if is_streamed(selection)]
    if not streamed:
        raise ConfigError(
            f"streaming: nothing to undo, got a {type(model).__name__} that does not stream; stream it first"
        )
    for selection in streamed:
        del selection.forward


def is_streamed(selection: VariableSelection) -> bool:
    """Says whether a variable selection streams."""
    forward = vars(selection).get("forward")
    return isinstance(forward, partial) and forward.func is streamed_forward


def _selections(model: nn.Module) -> dict[str, VariableSelection]:
    """Returns the variable selections by submodule name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, VariableSelection)}


def _describe(name: str, selection: VariableSelection) -> StreamedSelection:
    """Reads off the shapes."""
    weight = selection.variable_grns.norm_weight
    num_variables, hidden_size = weight.shape
    sums = choose_precision(weight.dtype, weight.device).sums
    return StreamedSelection(
        name=name,
        num_variables=num_variables,
        hidden_size=hidden_size,
        bytes_per_row=hidden_size * sums.itemsize,
    )
