"""The forwards that quantised modules have instead of their own: same arguments, same shapes.

Letters: B batch, T time steps, I input size, O output size, H hidden size, Vr real and Vc categorical variables,
G groups of inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from ds_tft.model.folded import CollapsedLinear, sum_of_rows
from ds_tft.quantization.codes import fake_quantised_inputs
from ds_tft.quantization.integer_linear import integer_linear, stored_linear
from ds_tft.quantization.layer import LayerQuantiser
from ds_tft.quantization.rounded_linear import rounded_linear

State = tuple[Tensor, Tensor]


def linear_forward(module: nn.Linear, quantiser: LayerQuantiser, x: Tensor) -> Tensor:
    """Does what `nn.Linear` does, (..., I) -> (..., O)."""
    quantiser.observe(x)
    return _linear(x, module.weight, module.bias, quantiser)


def collapsed_forward(
    module: CollapsedLinear, quantiser: LayerQuantiser, reals: Tensor, rows: Tensor
) -> Tensor:
    """Does what `CollapsedLinear` does. The product and the sum of looked-up rows are quantised apart."""
    quantiser.observe(reals)
    if module.weight.shape[0]:
        result = _linear(reals, _with_steps(module.weight, quantiser).t(), module.bias, quantiser)
    else:
        result = F.linear(reals, module.weight.t(), module.bias)  # no reals: the bias
    if module.table is None:
        return result
    return result + sum_of_rows(quantiser.table("table", module.table), rows)


def lstm_forward(
    module: nn.LSTM,
    quantiser: LayerQuantiser,
    x: Tensor | PackedSequence,
    state: State | None = None,
) -> tuple[Tensor | PackedSequence, State]:
    """Does what `nn.LSTM` does, with quantised weights and inputs; states stay in floating point.

    The recurrence is torch's own: it multiplies codes times scale, in floating point.
    """
    values = x.data if isinstance(x, PackedSequence) else x
    quantiser.observe(values)
    if quantiser.quantises_inputs:
        values = fake_quantised_inputs(values, quantiser.input_step)
    weights = [
        quantiser.table(name, getattr(module, name)) if name in quantiser.summed else getattr(module, name)
        for name in module._flat_weights_names
    ]
    options = (True, module.num_layers, module.dropout, module.training, False)  # biases, one direction
    if not isinstance(x, PackedSequence):
        state = _zeros(module, values, len(values)) if state is None else state
        output, *last = torch.lstm(values, state, weights, *options, module.batch_first)
        return output, (last[0], last[1])
    state = _zeros(module, values, int(x.batch_sizes[0])) if state is None else state
    assert x.sorted_indices is not None
    assert x.unsorted_indices is not None
    ordered = tuple(part.index_select(1, x.sorted_indices) for part in state)
    output, *last = torch.lstm(values, x.batch_sizes, ordered, weights, *options)
    hidden, cell = (part.index_select(1, x.unsorted_indices) for part in last)
    return x._replace(data=output), (hidden, cell)


def _zeros(module: nn.LSTM, values: Tensor, batch: int) -> State:
    """Returns the state that an LSTM starts from where none is given, 2 x (layers, B, H)."""
    zeros = values.new_zeros(module.num_layers, batch, module.hidden_size)
    return zeros, zeros


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, quantiser: LayerQuantiser) -> Tensor:
    """Multiplies with a weight (O, I)."""
    if weight.dtype == torch.int8:
        scale = quantiser.scale("weight").view(-1, len(weight))  # (G, O)
        if quantiser.quantises_inputs:
            return stored_linear(x, weight, scale, bias, quantiser.steps)
        return F.linear(x, weight.float().mul_(scale.t()), bias)  # G is 1
    if not quantiser.quantises_weights:
        if quantiser.quantises_inputs:
            x = fake_quantised_inputs(x, quantiser.input_step)
        return F.linear(x, weight, bias)
    if quantiser.quantises_inputs:
        return integer_linear(x, weight, bias, quantiser.steps)
    return rounded_linear(x, weight, bias)


def _with_steps(weight: Tensor, quantiser: LayerQuantiser) -> Tensor:
    """Multiplies a weight (Vr, O) with the steps of its inputs, where the product is in whole numbers."""
    if weight.dtype == torch.int8 or not (quantiser.quantises_weights and quantiser.quantises_inputs):
        return weight
    return weight * quantiser.input_step.unsqueeze(1)
