"""What an update learnt from, in words."""

import dataclasses

import numpy as np
from loops import make_data

from ds_tft.data.batches import BatchBuilder
from ds_tft.data.schema import TimeKind
from ds_tft.training.window_names import describe_windows


def described(data, numbers, kind=TimeKind.NAIVE):
    builder = BatchBuilder(data.table, data.preprocessor.window, data.preprocessor.target_scaler)
    return describe_windows(builder, data.windows["train"], np.array(numbers), kind)


def test_series_and_times_from_history_to_horizon(tmp_path):
    data = make_data(tmp_path)
    index = data.windows["train"]
    assert index.origins[0] + 1 == index.lengths[0]  # the first row is where its history begins
    last = int(index.lengths[0]) + data.preprocessor.window.horizon
    expected = f"1 window from 2024-01-01T00:00:00 to 2024-01-{last:02}T00:00:00 of series 'store 0'"
    assert described(data, [0]) == expected
    whole = described(data, range(len(index)))
    assert whole.startswith(f"{len(index)} windows from 2024-01-01T00:00:00 to 2024-0")
    assert whole.endswith(" of series 'store 0', 'store 1', 'store 2'")


def test_many_series_are_counted_and_one_has_no_name(tmp_path):
    data = make_data(tmp_path)
    keys = tuple((f"store {number}", "x") for number in range(5))
    rows = len(data.table.series_of_row)
    of_row = (np.arange(rows) * 5 // rows).astype(np.int32)
    many = dataclasses.replace(data.table, series_keys=keys, series_of_row=of_row)
    text = described(dataclasses.replace(data, table=many), range(len(data.windows["train"])))
    assert text.endswith(" of series 'store 0 x', 'store 1 x', 'store 2 x' and 2 more")
    alone = dataclasses.replace(data.table, series_keys=((),), series_of_row=0 * of_row)
    assert "series" not in described(dataclasses.replace(data, table=alone), [0, 1])


def test_zoned_and_whole_numbers(tmp_path):
    data = make_data(tmp_path)
    assert described(data, [0], TimeKind.ZONED).startswith("1 window from 2024-01-01T00:00:00Z to ")
    assert described(data, [0], TimeKind.INDEX).startswith(f"1 window from {int(data.table.times[0])} to ")
