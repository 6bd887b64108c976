"""Folds a trained model: merges what is linear, exactly, into the form of `folded.py`.

Embedding and first layer of a variable become a line or a table, the output layer of each gated residual network
goes into its gate, and the two wide layers of the selection weights become a matrix each. Products are taken in
float64 and rounded once. At TFT-225 and hidden size 128, 26.7 M weights become 8 M.

Letters: V variables, Vr real ones, N categories of all of them together, H hidden size, O output size.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ds_tft.model.embedding import VariableEmbedding
from ds_tft.model.folded import (
    FOLDED,
    CollapsedLinear,
    FoldedGRN,
    FoldedSelection,
    SelectionWeights,
)
from ds_tft.model.grn import GatedResidualNetwork
from ds_tft.model.inputs import ModelSize
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.model.variable_selection import VariableSelection


def build_folded(size: ModelSize) -> TemporalFusionTransformer:
    """Builds an untrained model in the folded form; it has no dropout."""
    return TemporalFusionTransformer(replace(size, dropout=0.0), FOLDED)


def is_folded(model: nn.Module) -> bool:
    """Says whether a model is in the folded form."""
    return any(isinstance(module, FoldedSelection) for module in model.modules())


@torch.no_grad()
def fold(model: TemporalFusionTransformer) -> TemporalFusionTransformer:
    """Returns the folded form of a model, on its device, in its type and in evaluation mode.

    Args:
        model: In the plain form; it is not changed.
    """
    parameter = next(model.parameters())
    folded = build_folded(model.size).to(parameter.device, parameter.dtype)
    plain = dict(model.named_modules())
    for name, module in folded.named_modules():
        source = plain.get(name)
        if isinstance(module, FoldedSelection):
            assert isinstance(source, VariableSelection)
            _fold_selection(source, module)
        elif isinstance(module, FoldedGRN):
            assert isinstance(source, GatedResidualNetwork)
            _fold_grn(source, module)
        elif source is not None and type(source) is type(module):
            _copy_own(source, module)
    return folded.eval()


def _copy_own(source: nn.Module, target: nn.Module) -> None:
    """Copies the parameters that a module holds itself."""
    for name, parameter in source.named_parameters(recurse=False):
        target.get_parameter(name).copy_(parameter)


def _fold_grn(source: GatedResidualNetwork, target: FoldedGRN) -> None:
    """Merges output layer and gate; the rest stays."""
    target.hidden.load_state_dict(source.hidden.state_dict())
    _fold_rest(source, target)
    if source.skip is not None and target.skip is not None:
        target.skip.load_state_dict(source.skip.state_dict())


def _fold_rest(source: GatedResidualNetwork, target: FoldedGRN | SelectionWeights) -> None:
    """Copies context and norm, and merges output layer and gate."""
    if source.context is not None and target.context is not None:
        target.context.load_state_dict(source.context.state_dict())
    output, gate = source.output, source.gated_norm.gate
    target.norm.load_state_dict(source.gated_norm.norm.state_dict())
    weight = gate.weight.double() @ output.weight.double()  # (2O, H)
    target.gate.weight.copy_(weight)
    target.gate.bias.copy_(gate.bias.double() + gate.weight.double() @ output.bias.double())


def _fold_selection(source: VariableSelection, target: FoldedSelection) -> None:
    """Collapses the products with embeddings and merges the layers of each variable."""
    networks = source.variable_grns
    lines, tables = _lines(source.embeddings), _tables(source.embeddings)
    num_reals = len(lines)
    weight, bias = networks.hidden_weight.double(), networks.hidden_bias.double()  # (V, H, H), (V, H)
    if target.hidden_lines is not None:
        hidden = torch.bmm(lines, weight[:num_reals])  # (Vr, 2, H)
        hidden[:, 1] += bias[:num_reals]
        target.hidden_lines.copy_(hidden)
    if target.hidden_table is not None:
        rows = zip(tables, weight[num_reals:], bias[num_reals:], strict=True)
        target.hidden_table.copy_(torch.cat([torch.addmm(b, table, w) for table, w, b in rows]))
    output, gate = networks.output_weight.double(), networks.gate_weight.double()
    target.gate.weight.copy_(torch.bmm(output, gate))
    merged = torch.bmm(networks.output_bias.double().unsqueeze(1), gate).squeeze(1)  # (V, 2H)
    target.gate.bias.copy_(networks.gate_bias + merged)
    target.norm_weight.copy_(networks.norm_weight)
    target.norm_bias.copy_(networks.norm_bias)
    if source.weight_grn is not None and target.weights is not None:
        _fold_weights(source.weight_grn, target.weights, lines, tables)


def _fold_weights(
    source: GatedResidualNetwork, target: SelectionWeights, lines: Tensor, tables: list[Tensor]
) -> None:
    """Collapses the two wide layers and merges the other two."""
    _collapse(source.hidden.weight, source.hidden.bias, target.hidden, lines, tables)
    if source.skip is None:  # only where H is 1: the embeddings themselves
        width = source.hidden.in_features
        identity = torch.eye(width, device=lines.device)
        _collapse(identity, identity.new_zeros(width), target.skip, lines, tables)
    else:
        _collapse(source.skip.weight, source.skip.bias, target.skip, lines, tables)
    _fold_rest(source, target)


def _collapse(
    weight: Tensor, bias: Tensor, target: CollapsedLinear, lines: Tensor, tables: list[Tensor]
) -> None:
    """Turns a linear layer (O, V*H) of all embeddings into one of the raw variables."""
    blocks = weight.double().view(len(weight), -1, lines.shape[-1]).permute(1, 2, 0)  # (V, H, O)
    products = torch.bmm(lines, blocks[: len(lines)])  # (Vr, 2, O)
    target.weight.copy_(products[:, 0])
    target.bias.copy_(bias + products[:, 1].sum(0))
    if target.table is not None:
        parts = [table @ block for table, block in zip(tables, blocks[len(lines) :], strict=True)]
        target.table.copy_(torch.cat(parts))


def _lines(groups: tuple[VariableEmbedding, ...]) -> Tensor:
    """Returns slope and offset of the real variables of all groups, (Vr, 2, H) float64."""
    lines = [
        torch.stack([group.weight, group.bias], 1).double()
        for group in groups
        if group.weight is not None and group.bias is not None
    ]
    if lines:
        return torch.cat(lines)
    table = next(group.table for group in groups if group.table is not None)
    return table.new_empty(0, 2, table.shape[1], dtype=torch.float64)


def _tables(groups: tuple[VariableEmbedding, ...]) -> list[Tensor]:
    """Returns the table of each categorical variable of all groups, (categories, H) float64."""
    return [
        table
        for group in groups
        if group.table is not None
        for table in group.table.double().split(group.cardinalities)
    ]
