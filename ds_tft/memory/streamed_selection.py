"""The forward that streaming gives to a `VariableSelection`: same arguments, same result, little kept.

The embeddings and the layers right behind them are collapsed (`collapse.py`); the selection weights follow by
ordinary autograd on tensors of shape (R, V) and (R, H); the networks and the mix run chunk by chunk
(`variable_mix.py`).

Letters: B batch, T time steps (absent for static variables), V variables, Vr real and Vc categorical ones,
R rows (B x T), H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ds_tft.memory.buffers import Precision
from ds_tft.memory.chunks import StreamingSettings, choose_chunk_size
from ds_tft.memory.collapse import (
    Embeddings,
    WideProduct,
    collapse_stacked,
    collapse_wide,
    gather_embeddings,
)
from ds_tft.memory.dropout_mask import draw_seed
from ds_tft.memory.quantiser import Quantiser
from ds_tft.memory.recomputed_call import recomputed
from ds_tft.memory.recomputing import is_within_block
from ds_tft.memory.variable_mix import MixInputs, MixPlan, mix_variables
from ds_tft.model.grn import GatedResidualNetwork, StackedGRN
from ds_tft.model.variable_selection import VariableSelection

HALF_TYPES = (torch.float16, torch.bfloat16)


def streamed_forward(
    selection: VariableSelection,
    settings: StreamingSettings,
    reals: Tensor,
    categories: Tensor,
    context: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Does what `VariableSelection.forward` does.

    Args:
        selection: Whose parameters are used.
        settings: Size of the chunks.
        reals: Shape (B, [T], Vr).
        categories: Shape (B, [T], Vc).
        context: Shape (B, H).

    Returns:
        The mix (B, [T], H) and the weights (B, [T], V), in the type of the parameters.
    """
    networks = selection.variable_grns
    embeddings = gather_embeddings(selection.embeddings, like=networks.norm_weight)
    rows = (categories + embeddings.first_rows).int()  # (B, [T], Vc)
    weights = _selection_weights(selection.weight_grn, embeddings, reals, rows, context)
    mixed = _mix(
        networks, settings, embeddings, weights.flatten(0, -2), reals.flatten(0, -2), rows.flatten(0, -2)
    )
    return mixed.view(*reals.shape[:-1], -1), weights.to(mixed.dtype)


def _selection_weights(
    network: GatedResidualNetwork | None,
    embeddings: Embeddings,
    reals: Tensor,
    rows: Tensor,
    context: Tensor | None,
) -> Tensor:
    """Returns the weights, (B, [T], V), in float32 at least."""
    dtype = sums_dtype(embeddings.lines.dtype)
    if network is None:
        return reals.new_ones(*reals.shape[:-1], 1, dtype=dtype)
    with torch.autocast(reals.device.type, enabled=False):
        # Under autocast, a copy of the (H, V*H) weight in half precision would be kept for backward.
        hidden_product = collapse_wide(embeddings, network.hidden.weight, network.hidden.bias)
        if network.skip is None:  # only where H is 1: the embeddings themselves
            identity = torch.eye(network.hidden.in_features, dtype=reals.dtype, device=reals.device)
            skip_product = collapse_wide(embeddings, identity, identity.new_zeros(len(identity)))
        else:
            skip_product = collapse_wide(embeddings, network.skip.weight, network.skip.bias)
    hidden = _apply(hidden_product, reals, rows)  # (B, [T], H)
    if network.context is not None:
        assert context is not None, "this selection was built with a context"
        hidden = hidden + network.context(context).unsqueeze(-2)
    output = network.output(F.elu(hidden, inplace=True))  # (B, [T], H)

    def score(output: Tensor, reals: Tensor, rows: Tensor) -> Tensor:
        scores = network.gated_norm(output, _apply(skip_product, reals, rows))
        return scores.softmax(-1, dtype=dtype)  # (B, [T], V)

    # What it computes in between is several times as large as its inputs, which are kept anyway, and cheap.
    if output.requires_grad and network.training and not is_within_block():
        return recomputed(score, output, reals, rows)
    return score(output, reals, rows)


def _apply(product: WideProduct, reals: Tensor, rows: Tensor) -> Tensor:
    """Evaluates a collapsed layer at the inputs, (B, [T], O)."""
    result = F.linear(reals, product.slopes.t(), product.constant)
    if rows.shape[-1] == 0:
        return result
    looked_up = F.embedding_bag(rows.flatten(0, -2), product.table, mode="sum")
    return result + looked_up.view(result.shape)


def _mix(
    networks: StackedGRN,
    settings: StreamingSettings,
    embeddings: Embeddings,
    weights: Tensor,
    reals: Tensor,
    rows: Tensor,
) -> Tensor:
    """Returns the mix, (R, H)."""
    with torch.autocast(reals.device.type, enabled=False):
        hidden_lines, hidden_table = collapse_stacked(
            embeddings, networks.hidden_weight, networks.hidden_bias
        )
    inputs = MixInputs(
        weights,
        reals,
        rows,
        embeddings.lines,
        hidden_lines,
        embeddings.table,
        hidden_table,
        networks.output_weight,
        networks.output_bias,
        networks.gate_weight,
        networks.gate_bias,
        networks.norm_weight,
        networks.norm_bias,
    )
    dropout = networks.dropout.p if networks.dropout.training else 0.0
    precision = choose_precision(networks.norm_weight.dtype, reals.device)
    return mix_variables(plan_mix(settings, embeddings, inputs, precision, dropout=dropout), inputs)


def plan_mix(
    settings: StreamingSettings,
    embeddings: Embeddings,
    inputs: MixInputs,
    precision: Precision,
    *,
    dropout: float = 0.0,
    quantiser: Quantiser | None = None,
) -> MixPlan:
    """Chooses how a mix is computed.

    Args:
        settings: Size of the chunks.
        embeddings: Of the selection's variables.
        inputs: What the mix is computed from.
        precision: Types of the arithmetic.
        dropout: Share of the second layer's values to drop.
        quantiser: Of the gate layer, if there is one.
    """
    num_variables, hidden_size = inputs.norm_weight.shape
    num_rows, device = len(inputs.weights), inputs.weights.device
    differentiable = torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in inputs if tensor is not None
    )
    return MixPlan(
        chunk=choose_chunk_size(
            settings, num_variables, num_rows, hidden_size * precision.sums.itemsize, device
        ),
        precision=precision,
        table_bounds=embeddings.table_bounds,
        dropout=dropout,
        seed=draw_seed() if dropout else 0,
        # Merging costs as much as 2H rows save.
        fold=not differentiable and not dropout and num_rows > 2 * hidden_size,
        quantiser=quantiser,
    )


def choose_precision(parameters: torch.dtype, device: torch.device) -> Precision:
    """Returns the types of the arithmetic for parameters of a type, under the present autocast state."""
    products = parameters
    if torch.is_autocast_enabled(device.type) and parameters != torch.float64:
        products = torch.get_autocast_dtype(device.type)
    return Precision(products=products, sums=sums_dtype(parameters))


def sums_dtype(parameters: torch.dtype) -> torch.dtype:
    """Returns float32 for half precision, else the type itself."""
    return torch.float32 if parameters in HALF_TYPES else parameters
