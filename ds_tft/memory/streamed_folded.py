"""The forward that streaming gives to a `FoldedSelection`: same arguments, same result, little kept.

What `streamed_selection.py` collapses in each forward is collapsed already. The gate layers may be quantised.

Letters: B batch, T time steps (absent for static variables), V variables, Vr real and Vc categorical ones,
R rows (B x T), H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ds_tft.memory.buffers import Precision
from ds_tft.memory.chunks import StreamingSettings
from ds_tft.memory.collapse import gather_embeddings
from ds_tft.memory.quantiser import effective, quantiser_of
from ds_tft.memory.recomputed_call import recomputed
from ds_tft.memory.recomputing import is_within_block
from ds_tft.memory.streamed_selection import choose_precision, plan_mix, sums_dtype
from ds_tft.memory.variable_mix import MixInputs, mix_variables
from ds_tft.model.folded import FoldedSelection, SelectionWeights


def streamed_folded_forward(
    selection: FoldedSelection,
    settings: StreamingSettings,
    reals: Tensor,
    categories: Tensor,
    context: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Does what `FoldedSelection.forward` does.

    Args:
        selection: Whose parameters are used.
        settings: Size of the chunks.
        reals: Shape (B, [T], Vr).
        categories: Shape (B, [T], Vc).
        context: Shape (B, H).

    Returns:
        The mix (B, [T], H) and the weights (B, [T], V), in the type of the parameters.
    """
    rows = (categories + selection.first_rows).int()  # (B, [T], Vc)
    dtype = sums_dtype(selection.norm_weight.dtype)
    weights = _selection_weights(selection.weights, reals, rows, context, dtype)
    mixed = _mix(selection, settings, weights.flatten(0, -2), reals.flatten(0, -2), rows.flatten(0, -2))
    return mixed.view(*reals.shape[:-1], -1), weights.to(mixed.dtype)


def _selection_weights(
    network: SelectionWeights | None, reals: Tensor, rows: Tensor, context: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Returns the weights, (B, [T], V), in float32 at least."""
    if network is None:
        return reals.new_ones(*reals.shape[:-1], 1, dtype=dtype)
    hidden = network.first_layer(reals, rows, context)  # (B, [T], H)

    def score(hidden: Tensor, reals: Tensor, rows: Tensor) -> Tensor:
        return network.score(hidden, reals, rows).softmax(-1, dtype=dtype)  # (B, [T], V)

    # What it computes in between is several times as large as its inputs, which are kept anyway, and cheap.
    if hidden.requires_grad and network.training and not is_within_block():
        return recomputed(score, hidden, reals, rows)
    return score(hidden, reals, rows)


def _mix(
    selection: FoldedSelection, settings: StreamingSettings, weights: Tensor, reals: Tensor, rows: Tensor
) -> Tensor:
    """Returns the mix, (R, H)."""
    norm_weight, quantiser = selection.norm_weight, quantiser_of(selection.gate)
    embeddings = gather_embeddings(selection.embeddings, like=norm_weight)
    lines, table = selection.hidden_lines, selection.hidden_table
    inputs = MixInputs(
        weights,
        reals,
        rows,
        embeddings.lines,
        embeddings.lines if lines is None else lines,
        embeddings.table,
        embeddings.table if table is None else effective(selection, "hidden_table"),
        None,
        None,
        selection.gate.weight,
        selection.gate.bias,
        norm_weight,
        selection.norm_bias,
    )
    precision = choose_precision(norm_weight.dtype, reals.device)
    if quantiser is not None:
        precision = Precision(products=precision.sums, sums=precision.sums)  # whole numbers fill float32
    plan = plan_mix(settings, embeddings, inputs, precision, quantiser=quantiser)
    return mix_variables(plan, inputs)
