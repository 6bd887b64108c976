"""The folded form of what the model is made of: fewer and smaller matrices with the same result.

Without dropout, layers with nothing between them merge, and a layer behind an embedding merges with it (`fold.py`
does it to a trained model). What is left of a variable's network is a line or a table, ELU, one (H, 2H) matrix,
and the layer norm. These classes are built like those of `grn.py` and `variable_selection.py` and take their
place: `TemporalFusionTransformer(size, FOLDED)`. This is the readable form; streaming runs it in chunks.

Letters: B batch, T time steps (absent for static variables), V variables, Vr real and Vc categorical ones,
N categories of all of them together, I input size, H hidden size, O output size.
"""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ds_tft.model.embedding import VariableEmbedding
from ds_tft.model.initialisation import dense, stacked_weight, xavier_uniform_
from ds_tft.model.tft import Parts
from ds_tft.model.variable_selection import embed_variables


class FoldedGRN(nn.Module):
    """A gated residual network whose output layer is merged into its gate; it has no dropout.

    Shape: x (B, [T], I), context (B, H) -> (B, [T], O)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        output_size: int,
        dropout: float = 0.0,
        *,
        with_context: bool = False,
    ) -> None:
        super().__init__()
        assert dropout == 0, "dropout lies between the layers that are merged"
        self.hidden = dense(input_size, hidden_size)
        self.context = dense(hidden_size, hidden_size, bias=False) if with_context else None
        self.gate = dense(hidden_size, 2 * output_size, parts=2)
        self.skip = dense(input_size, output_size) if input_size != output_size else None
        self.norm = nn.LayerNorm(output_size)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Returns the transformed input; `context` is the same for all time steps."""
        hidden = add_context(self.hidden(x), self.context, context)  # (B, [T], H)
        skip = x if self.skip is None else self.skip(x)  # (B, [T], O)
        return self.norm(skip + F.glu(self.gate(F.elu(hidden)), dim=-1))


class StackedLinear(nn.Module):
    """One linear layer per variable.

    Shape: x (B, [T], V, I) -> (B, [T], V, O)
    """

    def __init__(self, num_variables: int, input_size: int, output_size: int, *, parts: int = 1) -> None:
        super().__init__()
        self.weight = stacked_weight(num_variables, input_size, output_size, parts=parts)  # (V, I, O)
        self.bias = nn.Parameter(torch.zeros(num_variables, output_size))

    def forward(self, x: Tensor) -> Tensor:
        """Returns each variable's own product."""
        return torch.einsum("...vi,vio->...vo", x, self.weight) + self.bias


class CollapsedLinear(nn.Module):
    """A linear layer of the embeddings of all variables side by side, as a function of the raw variables.

    Shape: reals (B, [T], Vr), rows (B, [T], Vc) -> (B, [T], O)
    """

    table: nn.Parameter | None  # (N, O); None without categorical variables

    def __init__(self, num_reals: int, num_categories: int, output_size: int) -> None:
        """Builds the layer.

        Args:
            num_reals: Vr.
            num_categories: N.
            output_size: O.
        """
        super().__init__()
        self.weight = nn.Parameter(
            xavier_uniform_(torch.empty(num_reals, output_size), max(1, num_reals), output_size)
        )
        self.table = nn.Parameter(torch.zeros(num_categories, output_size)) if num_categories else None
        self.bias = nn.Parameter(torch.zeros(output_size))

    def forward(self, reals: Tensor, rows: Tensor) -> Tensor:
        """Returns the product; `rows` are those of the table that each category stands for."""
        result = F.linear(reals, self.weight.t(), self.bias)
        return result if self.table is None else result + sum_of_rows(self.table, rows)


class SelectionWeights(nn.Module):
    """The gated residual network that weighs the variables, as a function of the raw variables.

    Shape: reals (B, [T], Vr), rows (B, [T], Vc), context (B, H) -> scores (B, [T], V)
    """

    def __init__(
        self, num_reals: int, num_categories: int, num_variables: int, size: int, *, with_context: bool
    ):
        super().__init__()
        self.hidden = CollapsedLinear(num_reals, num_categories, size)
        self.context = dense(size, size, bias=False) if with_context else None
        self.gate = dense(size, 2 * num_variables, parts=2)
        self.skip = CollapsedLinear(num_reals, num_categories, num_variables)
        self.norm = nn.LayerNorm(num_variables)

    def forward(self, reals: Tensor, rows: Tensor, context: Tensor | None) -> Tensor:
        """Returns the scores, before their softmax."""
        return self.score(self.first_layer(reals, rows, context), reals, rows)

    def first_layer(self, reals: Tensor, rows: Tensor, context: Tensor | None) -> Tensor:
        """Returns the first layer after its activation, (B, [T], H)."""
        return F.elu(add_context(self.hidden(reals, rows), self.context, context))

    def score(self, hidden: Tensor, reals: Tensor, rows: Tensor) -> Tensor:
        """Returns the scores, given the first layer."""
        return self.norm(self.skip(reals, rows) + F.glu(self.gate(hidden), dim=-1))


class FoldedSelection(nn.Module):
    """A variable selection whose products with embeddings are taken beforehand; it has no dropout.

    As in `VariableSelection`, the embeddings are used, not owned, and the real variables come first.

    Shape: reals (B, [T], Vr), categories (B, [T], Vc), context (B, H)
        -> mixed (B, [T], H), weights (B, [T], V)
    """

    embeddings: tuple[VariableEmbedding, ...]
    hidden_lines: nn.Parameter | None  # (Vr, 2, H) slope and offset of the first layer; None without reals
    hidden_table: nn.Parameter | None  # (N, H) first layer of each category; None without categories
    first_rows: Tensor  # (Vc,) row of the tables at which each variable begins; not part of the state dict
    weights: SelectionWeights | None  # None for a single variable

    def __init__(
        self,
        embeddings: tuple[VariableEmbedding, ...],
        hidden_size: int,
        dropout: float = 0.0,
        *,
        with_context: bool,
    ) -> None:
        """Builds the networks of a selection.

        Args:
            embeddings: The embedding of each group that takes part, in order.
            hidden_size: Length of an embedding and of the mix, H.
            dropout: Must be 0.
            with_context: Whether the weights also depend on a static context.
        """
        super().__init__()
        assert dropout == 0, "dropout lies between the layers that are merged"
        self.embeddings = embeddings
        cardinalities = [size for embedding in embeddings for size in embedding.cardinalities]
        num_reals = sum(embedding.num_reals for embedding in embeddings)
        num_variables, num_categories = num_reals + len(cardinalities), sum(cardinalities)
        first_rows = list(accumulate(cardinalities, initial=0))[:-1]
        self.register_buffer("first_rows", torch.tensor(first_rows, dtype=torch.int64), persistent=False)
        self.hidden_lines = self.hidden_table = self.weights = None
        if num_reals:
            self.hidden_lines = nn.Parameter(torch.empty(num_reals, 2, hidden_size).uniform_(-1, 1))
        if num_categories:
            self.hidden_table = nn.Parameter(torch.empty(num_categories, hidden_size).uniform_(-1, 1))
        self.gate = StackedLinear(num_variables, hidden_size, 2 * hidden_size, parts=2)
        self.norm_weight = nn.Parameter(torch.ones(num_variables, hidden_size))
        self.norm_bias = nn.Parameter(torch.zeros(num_variables, hidden_size))
        if num_variables > 1:
            self.weights = SelectionWeights(
                num_reals, num_categories, num_variables, hidden_size, with_context=with_context
            )

    def forward(
        self, reals: Tensor, categories: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the mix and the weight of each variable in it."""
        rows = categories + self.first_rows  # (B, [T], Vc)
        if self.weights is None:
            weights = reals.new_ones(*reals.shape[:-1], 1)  # (B, [T], 1)
        else:
            weights = self.weights(reals, rows, context).softmax(-1)  # (B, [T], V)
        gated = F.glu(self.gate(F.elu(self._first_layer(reals, rows))), dim=-1)  # (B, [T], V, H)
        embedded = embed_variables(self.embeddings, reals, categories)  # (B, [T], V, H)
        normed = F.layer_norm(embedded + gated, embedded.shape[-1:])  # (B, [T], V, H)
        transformed = normed * self.norm_weight + self.norm_bias
        return torch.einsum("...v,...vh->...h", weights, transformed), weights

    def _first_layer(self, reals: Tensor, rows: Tensor) -> Tensor:
        """Returns the first layer of all variables before its activation, (B, [T], V, H)."""
        parts = []
        if self.hidden_lines is not None:
            slope, offset = self.hidden_lines.unbind(1)  # (Vr, H) each
            parts.append(reals.unsqueeze(-1) * slope + offset)
        if self.hidden_table is not None:
            parts.append(F.embedding(rows, self.hidden_table))
        return torch.cat(parts, dim=-2)


def add_context(hidden: Tensor, layer: nn.Module | None, context: Tensor | None) -> Tensor:
    """Adds a static context (B, H), where a network was built with one, to (B, T, H)."""
    if layer is None:
        return hidden
    assert context is not None, "this network was built with a context"
    return hidden + layer(context).unsqueeze(-2)  # contexts only meet inputs with time steps


def sum_of_rows(table: Tensor, rows: Tensor) -> Tensor:
    """Looks rows (B, [T], Vc) up in a table (N, O) and adds up those of all variables, (B, [T], O)."""
    looked_up = F.embedding_bag(rows.flatten(0, -2), table, mode="sum")
    return looked_up.view(*rows.shape[:-1], -1)


FOLDED = Parts(selection=FoldedSelection, grn=FoldedGRN)
