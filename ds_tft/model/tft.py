"""The Temporal Fusion Transformer (Lim et al., arXiv:1912.09363).

The names of the blocks are fixed: memory and quantisation passes attach to them by name, and checkpoints hold
them. Each block takes and returns tensors, so it can be recomputed or replaced as a unit.

Letters: B batch, L encoder length, K horizon steps, V variables of a group, H hidden size, D LSTM layers,
N attention heads, O targets, Q quantiles.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ds_tft.model.attention import InterpretableAttention, visible_keys
from ds_tft.model.embedding import VariableEmbedding
from ds_tft.model.grn import GatedAddNorm, GatedResidualNetwork
from ds_tft.model.initialisation import quantile_head
from ds_tft.model.inputs import ModelInputs, ModelSize
from ds_tft.model.recurrent import Recurrent
from ds_tft.model.static_encoder import StaticContexts, StaticEncoder
from ds_tft.model.variable_selection import VariableSelection


class Parts(NamedTuple):
    """The classes of the larger parts: the plain ones, or those of `folded.py`."""

    selection: type = VariableSelection
    grn: type = GatedResidualNetwork


class Interpretation(NamedTuple):
    """A forecast and what it was made from.

    The variables of a selection are the real ones, then the categorical ones; within each, for the history,
    observed before known. Weights of variables sum to 1, and are 0 at padded history positions.
    """

    prediction: Tensor  # (B, K, O, Q)
    static_weights: Tensor  # (B, V), V = 0 in a model without static variables
    history_weights: Tensor  # (B, L, V)
    future_weights: Tensor  # (B, K, V)
    attention: (
        Tensor  # (B, N, K, L+K) per head, float32 at least; a row sums to 1, and is 0 at what it may not see
    )


class TemporalFusionTransformer(nn.Module):
    """Forecasts quantiles of every target at every horizon step.

    A model without static variables has no static encoder: the blocks that would use a context are built
    without one, and the LSTM starts from zeros. So there is no parameter that could not learn.

    Shape: ModelInputs -> (B, K, O, Q), quantiles in the order of `size.quantiles`
    """

    static_embedding: VariableEmbedding | None  # these three are None in a model without static variables
    static_selection: nn.Module | None
    static_encoder: StaticEncoder | None

    def __init__(self, size: ModelSize, parts: Parts = Parts()) -> None:  # noqa: B008  a constant
        """Builds the model; parameters are drawn from torch's global generator.

        Args:
            size: Everything that fixes the shapes of the parameters.
            parts: What selections and gated residual networks are built of.
        """
        super().__init__()
        self.size = size
        hidden, dropout, has_static = size.hidden_size, size.dropout, size.num_static > 0
        self.static_embedding = self.static_selection = self.static_encoder = None
        if has_static:
            self.static_embedding = VariableEmbedding(size.static_reals, size.static_categories, hidden)
            self.static_selection = parts.selection(
                (self.static_embedding,), hidden, dropout, with_context=False
            )
            self.static_encoder = StaticEncoder(hidden, dropout, parts.grn)
        self.observed_embedding = VariableEmbedding(size.observed_reals, size.observed_categories, hidden)
        self.known_embedding = VariableEmbedding(size.known_reals, size.known_categories, hidden)
        self.history_selection = parts.selection(
            (self.observed_embedding, self.known_embedding), hidden, dropout, with_context=has_static
        )
        self.future_selection = parts.selection(
            (self.known_embedding,), hidden, dropout, with_context=has_static
        )
        self.lstm_encoder = Recurrent(hidden, size.lstm_layers, dropout)
        self.lstm_decoder = Recurrent(hidden, size.lstm_layers, dropout)
        self.lstm_gate = GatedAddNorm(hidden, hidden, dropout)
        self.static_enrichment = parts.grn(hidden, hidden, hidden, dropout, with_context=has_static)
        self.attention = InterpretableAttention(hidden, size.num_heads)
        self.attention_gate = GatedAddNorm(hidden, hidden, dropout)
        self.position_wise = parts.grn(hidden, hidden, hidden, dropout)
        self.output_gate = GatedAddNorm(hidden, hidden, dropout=0.0)
        self.quantile_head = quantile_head(hidden, size.num_targets * len(size.quantiles))

    def forward(self, inputs: ModelInputs) -> Tensor:
        """Returns the forecast in model units."""
        return self.interpret(inputs).prediction

    def interpret(self, inputs: ModelInputs) -> Interpretation:
        """Returns the forecast with the weights of variables and of past steps that led to it."""
        length = inputs.observed_reals.shape[1]
        present = _present(inputs.encoder_lengths, length, inputs.observed_reals.device)  # (B, L)
        contexts, static_weights = self._encode_static(inputs)
        history, history_weights = self._select_history(inputs, present, contexts.selection)  # (B, L, H)
        future, future_weights = self.future_selection(
            inputs.known_reals[:, length:], inputs.known_categories[:, length:], contexts.selection
        )  # (B, K, H)
        temporal = self._process_locally(history, future, inputs.encoder_lengths, contexts)  # (B, L+K, H)
        enriched = self.static_enrichment(temporal, contexts.enrichment)  # (B, L+K, H)

        # From here on only the horizon is needed.
        queries = enriched[:, length:]  # (B, K, H)
        attended, attention = self.attention(queries, enriched, visible_keys(present, queries.shape[1]))
        decoded = self.position_wise(self.attention_gate(attended, queries))  # (B, K, H)
        decoded = self.output_gate(decoded, temporal[:, length:])  # (B, K, H)
        prediction = self.quantile_head(decoded).unflatten(-1, (self.size.num_targets, -1))  # (B, K, O, Q)
        return Interpretation(prediction, static_weights, history_weights, future_weights, attention)

    def _encode_static(self, inputs: ModelInputs) -> tuple[StaticContexts, Tensor]:
        """Returns the contexts and the weights of the static variables."""
        if self.static_selection is None or self.static_encoder is None:
            return StaticContexts(), inputs.static_reals[:, :0]
        static, weights = self.static_selection(inputs.static_reals, inputs.static_categories)
        return StaticContexts(*self.static_encoder(static)), weights

    def _select_history(
        self, inputs: ModelInputs, present: Tensor, context: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Mixes observed variables and the history of known ones; padding counts as zeros with weight 0."""
        length = present.shape[1]
        reals = torch.cat([inputs.observed_reals, inputs.known_reals[:, :length]], dim=-1)
        categories = torch.cat([inputs.observed_categories, inputs.known_categories[:, :length]], dim=-1)
        if bool((inputs.encoder_lengths == length).all()):
            return self.history_selection(reals, categories, context)
        padding = ~present.unsqueeze(-1)
        mixed, weights = self.history_selection(
            reals.masked_fill(padding, 0.0), categories.masked_fill(padding, 0), context
        )
        return mixed, weights.masked_fill(padding, 0.0)

    def _process_locally(
        self, history: Tensor, future: Tensor, encoder_lengths: Tensor, contexts: StaticContexts
    ) -> Tensor:
        """Runs the LSTM over history, then horizon, and gates its output with its input."""
        hidden, cell = self._per_layer(contexts.hidden), self._per_layer(contexts.cell)
        encoded, hidden, cell = self.lstm_encoder(history, hidden, cell, encoder_lengths)
        decoded, _, _ = self.lstm_decoder(future, hidden, cell)
        return self.lstm_gate(torch.cat([encoded, decoded], dim=1), torch.cat([history, future], dim=1))

    def _per_layer(self, context: Tensor | None) -> Tensor | None:
        """Repeats a (B, H) context for each LSTM layer, (D, B, H)."""
        return None if context is None else context.expand(self.size.lstm_layers, -1, -1).contiguous()


def parameter_table(model: nn.Module) -> list[tuple[str, int]]:
    """Counts the parameters of each top-level block, in order; no parameter is counted twice."""
    return [
        (name, sum(parameter.numel() for parameter in block.parameters()))
        for name, block in model.named_children()
    ]


def _present(encoder_lengths: Tensor, length: int, device: torch.device) -> Tensor:
    """True at history positions that hold a row, False at padding, shape (B, L)."""
    positions = torch.arange(length, device=device)
    return positions < encoder_lengths.to(device, non_blocking=True).unsqueeze(1)
