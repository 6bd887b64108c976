"""Windows on which forecasts are compared: those of a file, or made-up ones.

Letters: B windows, L encoder length, K horizon steps, V variables of a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ds_tft.data.batches import BatchBuilder
from ds_tft.data.forecast_data import prepare_forecast
from ds_tft.data.parquet import open_source
from ds_tft.data.preprocessor import Preprocessor
from ds_tft.data.windows import WindowIndex, windows_between
from ds_tft.forecast.forecast_windows import dropped_notes
from ds_tft.memory.chunks import spans
from ds_tft.model.inputs import ModelInputs, ModelSize

COUNT = 64
"""Most windows of a comparison."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Inputs of all windows."""

    inputs: ModelInputs
    origin: str
    """What they are."""
    notes: tuple[str, ...] = ()
    """What was noticed about their data."""

    def __len__(self) -> int:
        """How many."""
        return len(self.inputs.encoder_lengths)

    def batches(self, size: int) -> Iterator[ModelInputs]:
        """Yields them in batches; the last one may be smaller."""
        for span in spans(len(self), size):
            yield ModelInputs(*(tensor[span.slice] for tensor in self.inputs))


def windows_of_file(path: str, preprocessor: Preprocessor) -> Windows:
    """Takes windows from a file, evenly spread over all that it has; every other one gets a shorter history.

    Args:
        path: A parquet file with targets, a folder or a glob.
        preprocessor: How the training data was prepared.

    Raises:
        DataError: There is none, or the data does not suit the model.
    """
    data = prepare_forecast(open_source(path), preprocessor, 0)
    table, window = data.table, preprocessor.window
    found, report = windows_between(table, window, int(table.times.min()), int(table.times.max()))
    whole = found.spaced(COUNT)
    chosen = _some_shortened(whole, window.shortest_history)
    cut = int((chosen.lengths < whole.lengths).sum())
    builder = BatchBuilder(table, window, preprocessor.target_scaler)
    return Windows(
        builder.build(chosen, np.arange(len(chosen))).inputs,
        f"{len(chosen):,} windows of {path}" + (f", {cut:,} of them with histories cut short" if cut else ""),
        (*data.lines, *dropped_notes(report)),
    )


def _some_shortened(windows: WindowIndex, shortest: int) -> WindowIndex:
    """Cuts the histories of every other window, to lengths from the shortest on: a file may have full ones only."""
    lengths = windows.lengths.copy()
    cut = lengths[1::2]
    lengths[1::2] = shortest + np.arange(len(cut)) % (cut - shortest + 1)
    return WindowIndex(windows.origins, lengths)


def made_up_windows(size: ModelSize, shortest: int) -> Windows:
    """Draws windows: reals from the standard normal distribution, categories and lengths evenly.

    Args:
        size: Shapes, and how many categories there are.
        shortest: Rows of the shortest history.
    """
    generator = torch.Generator().manual_seed(0)
    length, steps = size.encoder_length, size.encoder_length + size.horizon

    def reals(*shape: int) -> Tensor:
        return torch.randn(COUNT, *shape, generator=generator)

    def categories(counts: Sequence[int], *shape: int) -> Tensor:
        columns = [torch.randint(count, (COUNT, *shape), generator=generator) for count in counts]
        return torch.stack(columns, -1) if columns else torch.zeros(COUNT, *shape, 0, dtype=torch.int64)

    inputs = ModelInputs(
        static_reals=reals(size.static_reals),
        static_categories=categories(size.static_categories),
        observed_reals=reals(length, size.observed_reals),
        observed_categories=categories(size.observed_categories, length),
        known_reals=reals(steps, size.known_reals),
        known_categories=categories(size.known_categories, steps),
        encoder_lengths=torch.randint(shortest, length + 1, (COUNT,), generator=generator),
    )
    return Windows(
        inputs,
        f"{COUNT} synthetic windows (no --parquet-file): normal reals, random categories and lengths",
    )
