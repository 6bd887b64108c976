"""Embeddings of raw variables: the first thing that happens to an input.

Letters: B batch, T time steps (absent for static variables), V variables, C categories, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class VariableEmbedding(nn.Module):
    """Maps each variable of a group to a vector of length H (section 4.2 of the paper).

    A real variable v becomes `x_v * weight[v] + bias[v]`, a categorical one a row of its own table. The
    tables are stacked in one parameter, in the order of the variables; slot 0 of each stands for unseen
    values. Categories must lie below their cardinality: beyond it begins the next variable's table.

    Shape: reals (B, [T], Vr), categories (B, [T], Vc) -> (B, [T], Vr, H), (B, [T], Vc, H)
    """

    weight: nn.Parameter | None  # (Vr, H); None, as `bias`, without real variables
    bias: nn.Parameter | None  # (Vr, H)
    table: nn.Parameter | None  # (sum of C, H); None without categorical variables
    first_rows: Tensor  # (Vc,) row of `table` at which each variable begins; not part of the state dict

    def __init__(self, num_reals: int, cardinalities: Sequence[int], hidden_size: int) -> None:
        """Builds the embeddings of a group.

        Args:
            num_reals: Number of real variables, Vr.
            cardinalities: Categories of each categorical variable, the slot of unseen values included.
            hidden_size: Length of an embedding, H.
        """
        super().__init__()
        self.num_reals = num_reals
        self.hidden_size = hidden_size
        self.cardinalities = tuple(cardinalities)
        first_rows = list(accumulate(self.cardinalities, initial=0))
        self.register_buffer("first_rows", torch.tensor(first_rows[:-1], dtype=torch.int64), persistent=False)
        self.weight = self.bias = self.table = None
        if num_reals:
            self.weight = nn.Parameter(torch.empty(num_reals, hidden_size).uniform_(-1, 1))
            # Not zero: at x = 0, the mean, the layer norm that follows would blow up a vector of nothing.
            self.bias = nn.Parameter(torch.empty(num_reals, hidden_size).uniform_(-1, 1))
        if self.cardinalities:
            table = torch.empty(first_rows[-1], hidden_size).uniform_(-1, 1)
            # Unseen values start as the mean of the seen ones.
            table[self.first_rows] = 0.0
            self.table = nn.Parameter(table)

    @property
    def num_variables(self) -> int:
        """Number of variables of the group, V."""
        return self.num_reals + len(self.cardinalities)

    def forward(self, reals: Tensor, categories: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the embedded real variables and the embedded categorical ones."""
        if self.weight is None or self.bias is None:
            embedded_reals = reals.new_empty(*reals.shape, self.hidden_size)
        else:
            embedded_reals = reals.unsqueeze(-1) * self.weight + self.bias  # (B, [T], Vr, H)
        if self.table is None:
            embedded_categories = reals.new_empty(*categories.shape, self.hidden_size)
        else:
            embedded_categories = F.embedding(categories + self.first_rows, self.table)  # (B, [T], Vc, H)
        return embedded_reals, embedded_categories
