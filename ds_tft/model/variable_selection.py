"""Variable selection (section 4.2 of the paper): which inputs matter, and a mix of them by that measure.

With hundreds of variables nearly all of the model's memory and time is spent here, on tensors of shape
(B, T, V, H). This file is the readable form, with which others are compared: it keeps them all for backward.

Letters: B batch, T time steps (absent for static variables), V variables, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ds_tft.model.embedding import VariableEmbedding
from ds_tft.model.grn import GatedResidualNetwork, StackedGRN


class VariableSelection(nn.Module):
    """Embeds raw variables and mixes them into one vector per time step, with learned weights that sum to 1.

    The variables come from one or more groups, each with its embedding. Their order, in parameters and
    weights, is: the real ones of all groups, then the categorical ones of all groups.

    The embeddings are used, not owned: history and future share the known one, so the model holds each once,
    under one name, and this module's own parameters are the networks only.

    Shape: reals (B, [T], Vr), categories (B, [T], Vc), context (B, H)
        -> mixed (B, [T], H), weights (B, [T], V)
    """

    embeddings: tuple[VariableEmbedding, ...]  # a plain tuple, so that nothing is registered twice
    weight_grn: GatedResidualNetwork | None  # None for a single variable: its weight is 1 whatever is learned

    def __init__(
        self,
        embeddings: tuple[VariableEmbedding, ...],
        hidden_size: int,
        dropout: float,
        *,
        with_context: bool,
    ) -> None:
        """Builds the networks of a selection.

        Args:
            embeddings: The embedding of each group that takes part, in order.
            hidden_size: Length of an embedding and of the mix, H.
            dropout: Share of units dropped in each gated residual network.
            with_context: Whether the weights also depend on a static context.
        """
        super().__init__()
        self.embeddings = embeddings
        num_variables = sum(embedding.num_variables for embedding in embeddings)
        self.variable_grns = StackedGRN(num_variables, hidden_size, dropout)
        self.weight_grn = None
        if num_variables > 1:
            self.weight_grn = GatedResidualNetwork(
                num_variables * hidden_size, hidden_size, num_variables, dropout, with_context=with_context
            )

    def forward(
        self, reals: Tensor, categories: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the mix and the weight of each variable in it."""
        embedded = embed_variables(self.embeddings, reals, categories)  # (B, [T], V, H)
        if self.weight_grn is None:
            weights = embedded.new_ones(embedded.shape[:-1])  # (B, [T], 1)
        else:
            weights = self.weight_grn(embedded.flatten(-2), context).softmax(-1)  # (B, [T], V)
        transformed = self.variable_grns(embedded)  # (B, [T], V, H)
        mixed = torch.einsum("...v,...vh->...h", weights, transformed)  # (B, [T], H)
        return mixed, weights


def embed_variables(embeddings: Sequence[VariableEmbedding], reals: Tensor, categories: Tensor) -> Tensor:
    """Embeds the variables of all groups.

    Args:
        embeddings: The embedding of each group.
        reals: Shape (B, [T], Vr), group by group.
        categories: Shape (B, [T], Vc), group by group.

    Returns:
        Real variables, then categorical ones, shape (B, [T], V, H).
    """
    group_reals = reals.split([embedding.num_reals for embedding in embeddings], dim=-1)
    group_categories = categories.split([len(e.cardinalities) for e in embeddings], dim=-1)
    groups = [
        embedding(*group) for embedding, *group in zip(embeddings, group_reals, group_categories, strict=True)
    ]
    embedded_reals, embedded_categories = zip(*groups, strict=True)
    return torch.cat([*embedded_reals, *embedded_categories], dim=-2)
