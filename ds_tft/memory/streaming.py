"""Streaming variable selection: the plain result, without a tensor of shape (batch, time, variables, hidden).

`stream_variable_selection(model)` gives every variable selection of a model, plain or folded, another `forward`.
Nothing else changes: no wrapper, no parameter, no name; a checkpoint written with it loads without it.

Kept for backward: the inputs, tensors of shape (R, V) and (R, H), and a seed for the dropout masks. The
price: the networks of the variables run again in backward. Saved beside memory: the products of embeddings
with the layers right behind them are taken once per forward instead of once per row. Nothing is cached from
one forward to the next, so nothing can be stale.

Exact: results and gradients are those of the plain module up to the order of additions. With parameters in
half precision, softmax, skip connection, layer norm and mix are in float32. Under autocast, the matrix
products per row run in its type and all else in that of the parameters.

Dropout follows from a seed drawn from torch's global CPU generator in each training forward.

Works under `torch.utils.checkpoint`, with `retain_graph`, and under ZeRO stages 0 to 2. Not under stage 3,
which gathers parameters only for a submodule's own forward. There is no second derivative.

Letters: R rows (batch x time), V variables, H hidden size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ds_tft.errors import ConfigError
from ds_tft.formatting import format_bytes
from ds_tft.memory.chunks import BUFFERS, ChunkSize, StreamingSettings, choose_chunk_size
from ds_tft.memory.streamed_folded import streamed_folded_forward
from ds_tft.memory.streamed_selection import streamed_forward, sums_dtype
from ds_tft.memory.workers import count_workers
from ds_tft.model.folded import FoldedSelection
from ds_tft.model.variable_selection import VariableSelection

Selection = VariableSelection | FoldedSelection


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamedSelection:
    """A variable selection that streams, and how it is cut."""

    name: str
    num_variables: int
    bytes_per_row: int
    """Bytes of one buffer for one row (of batch x time) of one variable."""
    settings: StreamingSettings
    device: torch.device

    def chunk_size(self, num_rows: int) -> ChunkSize:
        """Returns the largest chunk for a batch of this many rows (batch x time)."""
        return choose_chunk_size(self.settings, self.num_variables, num_rows, self.bytes_per_row, self.device)

    def workspace_bytes(self, num_rows: int) -> int:
        """Returns an upper bound of what the buffers take while a batch of this many rows runs."""
        chunk = self.chunk_size(num_rows)
        workers = count_workers(math.ceil(self.num_variables / chunk.variables), self.device)
        return workers * BUFFERS * chunk.variables * chunk.rows * self.bytes_per_row


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamingReport:
    """What streams, and in chunks of which size."""

    selections: tuple[StreamedSelection, ...]
    settings: StreamingSettings
    device: torch.device

    def line(self) -> str:
        """Says it in one line for the log."""
        names = ", ".join(f"{each.name} ({each.num_variables} variables)" for each in self.selections)
        if self.settings.variables_per_chunk is None:
            limit = self.settings.limit(self.device)
            workers = count_workers(max(each.num_variables for each in self.selections), self.device)
            workspace = format_bytes(workers * BUFFERS * limit)
            chunks = f"buffers of {format_bytes(limit)}, workspace up to {workspace}"
        else:
            chunks = f"{self.settings.variables_per_chunk} variables at a time"
        return f"streaming variable selection: {names}; {chunks}"


def stream_variable_selection(
    model: nn.Module, settings: StreamingSettings | None = None, device: torch.device | None = None
) -> StreamingReport:
    """Makes every variable selection of a model stream.

    Args:
        model: Holds `VariableSelection` or `FoldedSelection` modules.
        settings: Size of the chunks; the default suits the device.
        device: Where the model will run, for the report; by default where it is.

    Returns:
        What streams.

    Raises:
        ConfigError: If there is none, or one of them has another `forward` already.
    """
    settings = settings or StreamingSettings()
    found = _selections(model)
    if not found:
        raise ConfigError(
            f"streaming: there is no variable selection to stream, got a {type(model).__name__}; leave it off"
        )
    for name, selection in found.items():
        if "forward" in vars(selection):
            raise ConfigError(
                f"streaming: the forward of '{name}' must be its own, got one that was put in its place; "
                "stream a model once, before other passes that replace it"
            )
    device = device or next(model.parameters()).device
    for selection in found.values():
        # A partial that holds the module, so that a copy of the model gets one that holds the copy.
        selection.forward = _streamed(selection, settings)  # type: ignore[method-assign]
    return StreamingReport(
        selections=tuple(_describe(*item, settings, device) for item in found.items()),
        settings=settings,
        device=device,
    )


def unstream(model: nn.Module) -> None:
    """Gives the variable selections their plain forward back.

    Raises:
        ConfigError: If none of them streams.
    """
    streamed = [selection for selection in _selections(model).values() if is_streamed(selection)]
    if not streamed:
        raise ConfigError(
            f"streaming: there is nothing to undo, got a {type(model).__name__} that does not stream; "
            "stream it first"
        )
    for selection in streamed:
        del selection.forward


def is_streamed(module: nn.Module) -> bool:
    """Says whether a module is a variable selection that streams."""
    forward = vars(module).get("forward")
    return isinstance(forward, partial) and forward.func in (streamed_forward, streamed_folded_forward)


def _streamed(selection: Selection, settings: StreamingSettings) -> partial[tuple[Tensor, Tensor]]:
    """Returns the forward that streams."""
    if isinstance(selection, FoldedSelection):
        return partial(streamed_folded_forward, selection, settings)
    return partial(streamed_forward, selection, settings)


def _selections(model: nn.Module) -> dict[str, Selection]:
    """Returns the variable selections by submodule name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Selection)}


def _describe(
    name: str, selection: Selection, settings: StreamingSettings, device: torch.device
) -> StreamedSelection:
    """Reads off the shapes."""
    owner = selection if isinstance(selection, FoldedSelection) else selection.variable_grns
    weight = owner.norm_weight
    num_variables, hidden_size = weight.shape
    return StreamedSelection(
        name=name,
        num_variables=num_variables,
        bytes_per_row=hidden_size * sums_dtype(weight.dtype).itemsize,
        settings=settings,
        device=device,
    )
