"""Gated residual networks (section 4.1 of the paper), for one input and for V variables at once.

    GRN(a, c) = LayerNorm(skip(a) + GLU(eta1))
    eta1 = W1 eta2 + b1
    eta2 = ELU(W2 a + b2 + W3 c)
    GLU(x) = (W5 x + b5) * sigmoid(W4 x + b4)

Dropout acts on eta1. `skip` is the identity, or a linear map where input and output differ in length, as in
the authors' code. Names used here: `hidden` is W2, b2; `context` W3; `output` W1, b1; `gate` W5, b5 and
W4, b4 side by side.

Letters: B batch, T time steps (absent for static variables), V variables, I input size, H hidden size,
O output size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ds_tft.model.initialisation import dense, stacked_weight


class GatedAddNorm(nn.Module):
    """Adds what a gated linear unit lets through to a skip connection, then normalises.

    Shape: x (B, [T], I), skip (B, [T], O) -> (B, [T], O)
    """

    def __init__(self, input_size: int, output_size: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.gate = dense(input_size, 2 * output_size, parts=2)
        self.norm = nn.LayerNorm(output_size)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Returns LayerNorm(skip + GLU(dropout(x)))."""
        return self.norm(skip + F.glu(self.gate(self.dropout(x)), dim=-1))


class GatedResidualNetwork(nn.Module):
    """A two-layer network that its own gate can switch off, optionally told a static context.

    Shape: x (B, [T], I), context (B, H) -> (B, [T], O)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        output_size: int,
        dropout: float,
        *,
        with_context: bool = False,
    ) -> None:
        super().__init__()
        self.hidden = dense(input_size, hidden_size)
        self.context = dense(hidden_size, hidden_size, bias=False) if with_context else None
        self.output = dense(hidden_size, hidden_size)
        self.gated_norm = GatedAddNorm(hidden_size, output_size, dropout)
        self.skip = dense(input_size, output_size) if input_size != output_size else None

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Returns the transformed input; `context` is the same for all time steps."""
        hidden = self.hidden(x)  # (B, [T], H)
        if self.context is not None:
            assert context is not None, "this network was built with a context"
            hidden = hidden + self.context(context).unsqueeze(-2)  # contexts only meet inputs with time steps
        skip = x if self.skip is None else self.skip(x)  # (B, [T], O)
        return self.gated_norm(self.output(F.elu(hidden)), skip)


class StackedGRN(nn.Module):
    """One gated residual network per variable, all run together; no context, no skip projection.

    Shape: x (B, [T], V, H) -> (B, [T], V, H)
    """

    def __init__(self, num_variables: int, hidden_size: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.hidden_weight = stacked_weight(num_variables, hidden_size, hidden_size)  # (V, H, H)
        self.hidden_bias = nn.Parameter(torch.zeros(num_variables, hidden_size))
        self.output_weight = stacked_weight(num_variables, hidden_size, hidden_size)  # (V, H, H)
        self.output_bias = nn.Parameter(torch.zeros(num_variables, hidden_size))
        self.gate_weight = stacked_weight(num_variables, hidden_size, 2 * hidden_size, parts=2)  # (V, H, 2H)
        self.gate_bias = nn.Parameter(torch.zeros(num_variables, 2 * hidden_size))
        self.norm_weight = nn.Parameter(torch.ones(num_variables, hidden_size))
        self.norm_bias = nn.Parameter(torch.zeros(num_variables, hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        """Returns each variable's embedding after its own network."""
        hidden = F.elu(_per_variable(x, self.hidden_weight) + self.hidden_bias)  # (B, [T], V, H)
        output = _per_variable(hidden, self.output_weight) + self.output_bias  # (B, [T], V, H)
        gate = _per_variable(self.dropout(output), self.gate_weight) + self.gate_bias  # (B, [T], V, 2H)
        normed = F.layer_norm(x + F.glu(gate, dim=-1), x.shape[-1:])  # (B, [T], V, H)
        return normed * self.norm_weight + self.norm_bias


def _per_variable(x: Tensor, weight: Tensor) -> Tensor:
    """Multiplies (B, [T], V, I) by (V, I, O), each variable with its own matrix."""
    return torch.einsum("...vi,vio->...vo", x, weight)
