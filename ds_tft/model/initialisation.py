"""How weights start: Xavier-uniform matrices, orthogonal recurrent ones, zero biases, open forget gates.

Every matrix of the paper is initialised by its own fan-in and fan-out, also where several share one tensor:
the slice of each variable, the two halves of a gated linear unit, the four gates of an LSTM, the heads of
attention. Numbers come from torch's global generator, in the order of construction: one seed fixes a model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def xavier_uniform_(tensor: Tensor, fan_in: int, fan_out: int) -> Tensor:
    """Fills `tensor` in place for matrices of the given fans, whatever its own shape; returns it."""
    bound = math.sqrt(6.0 / (fan_in + fan_out))
    return nn.init.uniform_(tensor, -bound, bound)


def dense(input_size: int, output_size: int, *, parts: int = 1, bias: bool = True) -> nn.Linear:
    """Builds a linear layer for `parts` separate matrices of equal size, stacked along the output."""
    layer = nn.Linear(input_size, output_size, bias=bias)
    xavier_uniform_(layer.weight, input_size, output_size // parts)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def quantile_head(hidden_size: int, num_outputs: int) -> nn.Linear:
    """Builds the last layer, small enough for the first forecasts to lie near the labels' centre, 0."""
    layer = nn.Linear(hidden_size, num_outputs)
    nn.init.uniform_(layer.weight, -1 / math.sqrt(hidden_size), 1 / math.sqrt(hidden_size))
    nn.init.zeros_(layer.bias)
    return layer


def stacked_weight(num_variables: int, input_size: int, output_size: int, *, parts: int = 1) -> nn.Parameter:
    """Builds one (input, output) matrix per variable, shape (V, input, output); `parts` as in `dense`."""
    weight = torch.empty(num_variables, input_size, output_size)
    return nn.Parameter(xavier_uniform_(weight, input_size, output_size // parts))


@torch.no_grad()
def initialise_lstm(lstm: nn.LSTM) -> None:
    """Sets every layer: Xavier inputs, orthogonal recurrence, forget-gate bias 1 and other biases 0."""
    size = lstm.hidden_size
    for name, parameter in lstm.named_parameters():
        gates = parameter.detach().view(4, size, -1)  # input, forget, cell, output
        for gate in gates:
            if name.startswith("weight_ih"):
                xavier_uniform_(gate, gate.shape[1], size)
            elif name.startswith("weight_hh"):
                nn.init.orthogonal_(gate)
            else:
                nn.init.zeros_(gate)
        # torch adds two biases per gate; the forget gate's 1 goes into one of them.
        if name.startswith("bias_ih"):
            nn.init.ones_(gates[1])
