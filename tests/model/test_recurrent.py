from __future__ import annotations

import pytest
import torch

from ds_tft.model.recurrent import Recurrent


def test_each_sequence_ends_at_its_own_length() -> None:
    torch.manual_seed(0)
    recurrent = Recurrent(6, 2, 0.0).double()
    x = torch.randn(3, 5, 6).double()
    hidden, cell = torch.randn(2, 3, 6).double(), torch.randn(2, 3, 6).double()
    lengths = torch.tensor([2, 5, 3])
    output, last_hidden, last_cell = recurrent(x, hidden, cell, lengths)
    for b, length in enumerate(lengths.tolist()):
        one = slice(b, b + 1)
        alone = recurrent(x[one, :length], hidden[:, one], cell[:, one])
        torch.testing.assert_close(output[one, :length], alone[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(last_hidden[:, one], alone[1], rtol=0, atol=1e-12)
        torch.testing.assert_close(last_cell[:, one], alone[2], rtol=0, atol=1e-12)
        assert not output[b, length:].any()


def test_output_keeps_its_length_when_no_sequence_is_full() -> None:
    output, _, _ = Recurrent(4, 1, 0.0)(torch.randn(2, 7, 4), lengths=torch.tensor([3, 2]))
    assert output.shape == (2, 7, 4)


def test_full_sequences_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds_tft.model.recurrent.pack_padded_sequence", pytest.fail)
    Recurrent(4, 1, 0.0)(torch.randn(2, 3, 4), lengths=torch.tensor([3, 3]))


def test_initialisation_gate_by_gate() -> None:
    torch.manual_seed(0)
    lstm = Recurrent(8, 2, 0.1).lstm
    for layer in range(2):
        for gate in getattr(lstm, f"weight_hh_l{layer}").detach().chunk(4):
            torch.testing.assert_close(gate @ gate.T, torch.eye(8), rtol=0, atol=1e-5)
        for gate in getattr(lstm, f"weight_ih_l{layer}").detach().chunk(4):
            assert 0 < gate.abs().max() <= (6 / 16) ** 0.5
        bias = getattr(lstm, f"bias_ih_l{layer}") + getattr(lstm, f"bias_hh_l{layer}")
        assert bias.tolist() == [0.0] * 8 + [1.0] * 8 + [0.0] * 16


def test_dropout_between_layers_only() -> None:
    assert Recurrent(4, 1, 0.3).lstm.dropout == 0.0
    assert Recurrent(4, 2, 0.3).lstm.dropout == 0.3
