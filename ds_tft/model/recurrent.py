"""The LSTMs that process neighbouring steps (section 4.5.1 of the paper, "locality enhancement").

Letters: B batch, T time steps, H hidden size, D LSTM layers.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ds_tft.model.initialisation import initialise_lstm


class Recurrent(nn.Module):
    """An LSTM over sequences of unequal length, whose final state is that of each sequence's own last step.

    Shape: x (B, T, H), state 2 x (D, B, H), lengths (B,) -> output (B, T, H), state 2 x (D, B, H)
    """

    def __init__(self, hidden_size: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            hidden_size, hidden_size, num_layers, dropout=dropout if num_layers > 1 else 0.0, batch_first=True
        )
        initialise_lstm(self.lstm)

    def forward(
        self,
        x: Tensor,
        hidden: Tensor | None = None,
        cell: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Runs over `x`.

        Args:
            x: Inputs, left-aligned.
            hidden: First hidden state of each layer; None means zeros, for the cell state too.
            cell: First cell state of each layer.
            lengths: Steps of each sequence, at least 1, on the CPU; None means all T.

        Returns:
            Outputs, zero after each sequence's end, and the last hidden and cell state.
        """
        state = None if hidden is None else (hidden, cell)
        if lengths is None or int(lengths.min()) == x.shape[1]:
            output, (hidden, cell) = self.lstm(x, state)
            return output, hidden, cell
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        packed_output, (hidden, cell) = self.lstm(packed, state)
        output, _ = pad_packed_sequence(packed_output, batch_first=True, total_length=x.shape[1])
        return output, hidden, cell
