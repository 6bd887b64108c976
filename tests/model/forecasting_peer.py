"""pytorch-forecasting's Temporal Fusion Transformer with the weights and inputs of ours."""

from __future__ import annotations

from types import MethodType

import torch
from model_cases import copy_variable
from pytorch_forecasting import TemporalFusionTransformer as Peer
from pytorch_forecasting.metrics import QuantileLoss
from pytorch_forecasting.models.temporal_fusion_transformer.sub_modules import (
    GatedResidualNetwork as PeerGRN,
)
from pytorch_forecasting.models.temporal_fusion_transformer.sub_modules import (
    VariableSelectionNetwork as PeerSelection,
)
from torch import Tensor, nn

from ds_tft.model.attention import InterpretableAttention, visible_keys
from ds_tft.model.grn import GatedAddNorm, GatedResidualNetwork
from ds_tft.model.inputs import ModelInputs, ModelSize
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.model.variable_selection import VariableSelection


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{i}" for i in range(count)]


def groups(size: ModelSize) -> dict[str, tuple[list[str], list[str]]]:
    """Names of real and categorical variables of each group."""
    return {
        "static": (names("sr", size.static_reals), names("sc", len(size.static_categories))),
        "observed": (names("or", size.observed_reals), names("oc", len(size.observed_categories))),
        "known": (names("kr", size.known_reals), names("kc", len(size.known_categories))),
    }


def build_peer(size: ModelSize) -> Peer:
    (static, static_c), (observed, observed_c), (known, known_c) = groups(size).values()
    cardinalities = size.static_categories + size.observed_categories + size.known_categories
    categories = static_c + observed_c + known_c
    return Peer(
        hidden_size=size.hidden_size,
        lstm_layers=size.lstm_layers,
        dropout=size.dropout,
        output_size=len(size.quantiles),
        loss=QuantileLoss(list(size.quantiles)),
        attention_head_size=size.num_heads,
        max_encoder_length=size.encoder_length,
        static_reals=static,
        static_categoricals=static_c,
        time_varying_reals_encoder=observed + known,
        time_varying_categoricals_encoder=observed_c + known_c,
        time_varying_reals_decoder=known,
        time_varying_categoricals_decoder=known_c,
        x_reals=static + observed + known,
        x_categoricals=categories,
        embedding_sizes={
            name: (n, size.hidden_size) for name, n in zip(categories, cardinalities, strict=True)
        },
        hidden_continuous_size=size.hidden_size,
        causal_attention=False,
        output_transformer=lambda out: out["prediction"],
    ).double()


def batch_for_peer(inputs: ModelInputs) -> dict[str, Tensor]:
    length = inputs.observed_reals.shape[1]

    def join(static: Tensor, observed: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        horizon = known.shape[1] - length
        history = [static.unsqueeze(1).expand(-1, length, -1), observed, known[:, :length]]
        nothing = observed.new_zeros(observed.shape[0], horizon, observed.shape[2])
        future = [static.unsqueeze(1).expand(-1, horizon, -1), nothing, known[:, length:]]
        return torch.cat(history, -1), torch.cat(future, -1)

    encoder, decoder = join(inputs.static_reals, inputs.observed_reals, inputs.known_reals)
    encoder_c, decoder_c = join(inputs.static_categories, inputs.observed_categories, inputs.known_categories)
    return {
        "encoder_cont": encoder,
        "decoder_cont": decoder,
        "encoder_cat": encoder_c,
        "decoder_cat": decoder_c,
        "encoder_lengths": inputs.encoder_lengths,
        "decoder_lengths": torch.full_like(inputs.encoder_lengths, decoder.shape[1]),
        "target_scale": torch.tensor([[0.0, 1.0]]).repeat(len(encoder), 1),
    }


def copy_linear(source: nn.Module, target: nn.Module) -> None:
    """Copies a linear layer or a layer norm; a bias that the source lacks becomes zero."""
    target.weight.copy_(source.weight)
    if target.bias is not None:
        target.bias.zero_() if source.bias is None else target.bias.copy_(source.bias)


def copy_gate(source: GatedAddNorm, glu: nn.Module, add_norm: nn.Module) -> None:
    copy_linear(source.gate, glu.fc)
    copy_linear(source.norm, add_norm.norm)


def copy_grn(source: GatedResidualNetwork, target: PeerGRN) -> None:
    copy_linear(source.hidden, target.fc1)
    copy_linear(source.output, target.fc2)
    copy_gate(source.gated_norm, target.gate_norm.glu, target.gate_norm.add_norm)
    if source.context is not None:
        copy_linear(source.context, target.context)
    if source.skip is not None and isinstance(target.resample_norm, nn.Linear):
        copy_linear(source.skip, target.resample_norm)


def peer_order(num_reals: int, num_variables: int) -> list[int]:
    """Where the peer's variables, categorical ones first, stand among ours."""
    return [*range(num_reals, num_variables), *range(num_reals)]


def copy_selection(
    source: VariableSelection, target: PeerSelection, reals: int, variables: list[str]
) -> None:
    """Copies a selection; `variables` are named in our order, `reals` of them are real."""
    order = peer_order(reals, len(variables))
    assert list(target.input_sizes) == [variables[v] for v in order]
    for v, name in enumerate(variables):
        grn = target.single_variable_grns[name]
        if isinstance(grn, PeerGRN):
            copy_grn(copy_variable(source.variable_grns, v), grn)
    grn, theirs = source.weight_grn, target.flattened_grn
    copy_grn(grn, theirs)
    columns = torch.arange(grn.hidden.in_features).view(len(variables), -1)[order].flatten()
    theirs.fc1.weight.copy_(grn.hidden.weight[:, columns])
    gate_rows = torch.tensor(order + [len(order) + v for v in order])
    for parameter in (theirs.gate_norm.glu.fc.weight, theirs.gate_norm.glu.fc.bias):
        parameter.copy_(parameter[gate_rows])
    for parameter in theirs.gate_norm.add_norm.norm.parameters():
        parameter.copy_(parameter[order])
    if isinstance(theirs.resample_norm, nn.Linear):
        theirs.resample_norm.weight.copy_(grn.skip.weight[order][:, columns])
        theirs.resample_norm.bias.copy_(grn.skip.bias[order])


def copy_attention(source: InterpretableAttention, target: nn.Module) -> None:
    copy_linear(source.value, target.v_layer)
    copy_linear(source.output, target.w_h)
    for ours, theirs in ((source.query, target.q_layers), (source.key, target.k_layers)):
        for rows, head in zip(ours.weight.chunk(source.num_heads), theirs, strict=True):
            head.weight.copy_(rows)
            head.bias.zero_()


def copy_embeddings(model: TemporalFusionTransformer, peer: Peer) -> None:
    for group, (reals, categories) in groups(model.size).items():
        embedding = getattr(model, f"{group}_embedding")
        for v, name in enumerate(reals):
            peer.prescalers[name].weight.copy_(embedding.weight[v].unsqueeze(1))
            peer.prescalers[name].bias.copy_(embedding.bias[v])
        tables = embedding.table.split(embedding.cardinalities) if categories else ()
        for name, table in zip(categories, tables, strict=True):
            peer.input_embeddings[name].weight.copy_(table)


@torch.no_grad()
def copy_model(model: TemporalFusionTransformer, peer: Peer) -> None:
    (static, static_c), (observed, observed_c), (known, known_c) = groups(model.size).values()
    copy_embeddings(model, peer)
    copy_selection(model.static_selection, peer.static_variable_selection, len(static), static + static_c)
    copy_selection(
        model.history_selection,
        peer.encoder_variable_selection,
        len(observed + known),
        observed + known + observed_c + known_c,
    )
    copy_selection(model.future_selection, peer.decoder_variable_selection, len(known), known + known_c)
    encoder = model.static_encoder
    copy_grn(encoder.selection, peer.static_context_variable_selection)
    copy_grn(encoder.enrichment, peer.static_context_enrichment)
    copy_grn(encoder.hidden, peer.static_context_initial_hidden_lstm)
    copy_grn(encoder.cell, peer.static_context_initial_cell_lstm)
    peer.lstm_encoder.load_state_dict(model.lstm_encoder.lstm.state_dict())
    peer.lstm_decoder.load_state_dict(model.lstm_decoder.lstm.state_dict())
    copy_gate(model.lstm_gate, peer.post_lstm_gate_encoder, peer.post_lstm_add_norm_encoder)
    copy_grn(model.static_enrichment, peer.static_enrichment)
    copy_attention(model.attention, peer.multihead_attn)
    copy_gate(model.attention_gate, peer.post_attn_gate_norm.glu, peer.post_attn_gate_norm.add_norm)
    copy_grn(model.position_wise, peer.pos_wise_ff)
    copy_gate(model.output_gate, peer.pre_output_gate_norm.glu, peer.pre_output_gate_norm.add_norm)
    copy_linear(model.quantile_head, peer.output_layer)


def selections(peer: Peer) -> list[PeerSelection]:
    return [
        peer.static_variable_selection,
        peer.encoder_variable_selection,
        peer.decoder_variable_selection,
    ]


def adapt(peer: Peer, size: ModelSize) -> None:
    """Exchanges the peer's parts that differ by design for ours."""
    for selection in selections(peer):
        grn = selection.flattened_grn
        grn.resample_norm = nn.Linear(grn.input_size, grn.output_size).double()
        for name in selection.single_variable_grns:
            if name[1] == "c":
                h = size.hidden_size
                selection.single_variable_grns[name] = PeerGRN(h, h, h, size.dropout).double()

    def mask(_: Peer, encoder_lengths: Tensor, decoder_lengths: Tensor) -> Tensor:
        present = torch.arange(size.encoder_length) < encoder_lengths.unsqueeze(1)
        return ~visible_keys(present, size.horizon)

    peer.get_attention_mask = MethodType(mask, peer)
