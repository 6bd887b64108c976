"""Static covariate encoders (section 4.3 of the paper): what does not change over time, in four roles.

Letters: B batch, H hidden size.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from ds_tft.model.grn import GatedResidualNetwork


class StaticContexts(NamedTuple):
    """The four context vectors, each (B, H); all None in a model without static variables."""

    selection: Tensor | None = None  # c_s: tells variable selection
    enrichment: Tensor | None = None  # c_e: tells static enrichment
    hidden: Tensor | None = None  # c_h: first hidden state of the LSTM encoder
    cell: Tensor | None = None  # c_c: first cell state of the LSTM encoder


class StaticEncoder(nn.Module):
    """Turns the selected static vector into four contexts, one gated residual network each.

    Shape: static (B, H) -> four times (B, H)
    """

    def __init__(self, hidden_size: int, dropout: float, grn: type = GatedResidualNetwork) -> None:
        super().__init__()
        self.selection = grn(hidden_size, hidden_size, hidden_size, dropout)
        self.enrichment = grn(hidden_size, hidden_size, hidden_size, dropout)
        self.hidden = grn(hidden_size, hidden_size, hidden_size, dropout)
        self.cell = grn(hidden_size, hidden_size, hidden_size, dropout)

    def forward(self, static: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the contexts in the order of `StaticContexts`."""
        return self.selection(static), self.enrichment(static), self.hidden(static), self.cell(static)
