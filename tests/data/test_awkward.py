"""Files that break readers: each is either read, or refused with one line."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ds_tft.config.run import DataSettings
from ds_tft.data.infer import infer_roles
from ds_tft.data.parquet import open_source
from ds_tft.errors import DataError

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("DS_TFT_SHARED_DATA", ROOT.parent / "shared" / "data")) / "awkward"
FILES = sorted(FOLDER.glob("*.parquet"))

pytestmark = pytest.mark.skipif(not FILES, reason="the folder of awkward files is not here")


def attempt(action):
    """Result of the action, or None where it is refused in one line."""
    try:
        return action()
    except DataError as error:
        message = str(error)
    assert message.strip()
    assert "\n" not in message
    return None


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_column_is_read_or_refused_in_one_line(file):
    source = attempt(lambda: open_source(str(file)))
    if source is None:
        return
    for name in source.columns:
        real = attempt(lambda name=name: source.read_reals([name]))
        category = attempt(lambda name=name: source.read_categories([name]))
        time = attempt(lambda name=name: source.read_time(name))
        assert real is None or real.values[name].shape == (source.num_rows,)
        assert category is None or category[name].codes.max() == len(category[name].values) - 1
        assert time is None or time.times.dtype == np.int64


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_roles_are_inferred_or_refused_in_one_line(file):
    source = attempt(lambda: open_source(str(file)))
    if source is None:
        return
    for time in [None, *source.columns]:
        target = next(
            (name for name, info in source.columns.items() if info.kind == "real" and name != time), None
        )
        settings = DataSettings(time=time, target=None if target is None else (target,))
        inferred = attempt(lambda settings=settings: infer_roles(source, settings))
        assert inferred is None or [row.column for row in inferred.reasons] == list(source.columns)


def read(stem):
    return open_source(str(FOLDER / f"{stem}.parquet"))


@pytest.mark.parametrize(
    "stem", ["byte_array_decimal", "fixed_length_decimal", "int32_decimal", "int64_decimal"]
)
def test_decimals_in_all_encodings(stem):
    assert read(stem).read_reals(["value"]).values["value"].tolist() == list(range(1, 25))


def test_damaged_pages_are_found_by_their_checksum():
    with pytest.raises(
        DataError, match="corrupt-checksum.parquet: cannot be read as parquet, got '.*checksum"
    ):
        read("datapage_v1-corrupt-checksum").read_reals(["a"])


def test_float16_and_null_pages():
    floats = read("float16_nonzeros_and_nans").read_reals(["x"])
    np.testing.assert_array_equal(floats.values["x"], [np.nan, 1, -2, np.nan, 0, -1, -0.0, 2])
    assert floats.missing["x"].nulls == 1
    assert floats.missing["x"].nans == 1
    assert read("int32_with_null_pages").read_reals(["int32_field"]).missing["int32_field"].nulls == 275


def test_an_index_written_by_pandas_is_the_time():
    inferred = infer_roles(read("BTCUSDT_1h_pandas_index"), DataSettings(features="ohlcv"))

    assert inferred.roles.time == "timestamp"
    assert inferred.roles.target == ("close",)
