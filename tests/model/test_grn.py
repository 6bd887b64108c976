from __future__ import annotations

import math

import pytest
import torch
from model_cases import copy_variable, randomise
from torch.nn import functional as F

from ds_tft.model.grn import GatedResidualNetwork, StackedGRN


@pytest.mark.parametrize("output_size", [6, 3])
def test_grn_is_the_formula_of_the_paper(output_size: int) -> None:
    torch.manual_seed(0)
    grn = GatedResidualNetwork(6, 5, output_size, dropout=0.0, with_context=True).double()
    randomise(grn)
    x, context = torch.randn(2, 4, 6).double(), torch.randn(2, 5).double()
    result = grn(x, context)

    for b in range(2):
        for t in range(4):
            eta2 = F.elu(grn.hidden.weight @ x[b, t] + grn.hidden.bias + grn.context.weight @ context[b])
            eta1 = grn.output.weight @ eta2 + grn.output.bias
            gate = grn.gated_norm.gate
            value = gate.weight[:output_size] @ eta1 + gate.bias[:output_size]
            opening = torch.sigmoid(gate.weight[output_size:] @ eta1 + gate.bias[output_size:])
            skip = x[b, t] if grn.skip is None else grn.skip.weight @ x[b, t] + grn.skip.bias
            expected = grn.gated_norm.norm(skip + value * opening)
            torch.testing.assert_close(result[b, t], expected, rtol=0, atol=1e-12)
    assert (grn.skip is None) == (output_size == 6)


def test_stacked_equals_a_loop_over_variables() -> None:
    torch.manual_seed(0)
    stacked = StackedGRN(5, 6, dropout=0.0).double()
    randomise(stacked)
    x = torch.randn(2, 3, 5, 6).double()
    expected = torch.stack([copy_variable(stacked, v)(x[:, :, v]) for v in range(5)], dim=2)
    torch.testing.assert_close(stacked(x), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(stacked(x[:, 0]), expected[:, 0], rtol=0, atol=1e-12)


def test_dropout_acts_on_eta1_and_in_training_only() -> None:
    grn, stacked, x = (
        GatedResidualNetwork(6, 6, 6, dropout=1.0),
        StackedGRN(3, 6, dropout=1.0),
        torch.randn(4, 3, 6),
    )
    for network, gate_bias in ((grn, grn.gated_norm.gate.bias), (stacked, stacked.gate_bias)):
        torch.nn.init.normal_(gate_bias)
        # With eta1 dropped whole, the skip connection and the gate's bias are left.
        left = F.layer_norm(x + F.glu(gate_bias, -1), (6,))
        torch.testing.assert_close(network(x), left)
        assert (network.eval()(x) - left).abs().max() > 0.01


def test_matrices_that_share_a_tensor_are_initialised_one_by_one() -> None:
    torch.manual_seed(0)
    stacked = StackedGRN(num_variables=50, hidden_size=8, dropout=0.0)
    bound = math.sqrt(6 / (8 + 8))
    for weight in (stacked.hidden_weight, stacked.output_weight, stacked.gate_weight):
        assert 0.98 * bound < weight.abs().max() <= bound
    gate = GatedResidualNetwork(64, 64, 64, dropout=0.0).gated_norm.gate
    bound = math.sqrt(6 / (64 + 64))
    assert 0.98 * bound < gate.weight.abs().max() <= bound
    assert not gate.bias.any()


def test_a_network_with_context_insists_on_it() -> None:
    with pytest.raises(AssertionError, match="built with a context"):
        GatedResidualNetwork(4, 4, 4, 0.0, with_context=True)(torch.randn(2, 3, 4))
