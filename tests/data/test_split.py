import numpy as np
import pytest

from ds_tft.config.run import SplitSettings
from ds_tft.data.schema import TimeKind
from ds_tft.data.split import SPLITS, SplitBounds, parse_time, split_bounds
from ds_tft.errors import ConfigError, DataError

DAY = 86_400_000_000
INDEX, NAIVE, ZONED = TimeKind.INDEX, TimeKind.NAIVE, TimeKind.ZONED
DAYS = 19_723 * DAY + np.arange(10) * DAY  # 2024-01-01 to 2024-01-10


def bounds(times, kind=INDEX, **settings):
    return split_bounds(np.asarray(times), SplitSettings(**settings), kind)


def members(times, found):
    """Times in each period."""
    periods = [found.period(split) for split in SPLITS]
    return [[int(t) for t in times if start <= t < end] for start, end in periods]


def test_shares_of_distinct_steps_oldest_first():
    times = np.array([0, 1, 2, 3, 4, 5, 6, 100, 101, 1000])
    found = bounds(times, train=0.6, validation=0.2)
    assert members(times, found) == [[0, 1, 2, 3, 4, 5], [6, 100], [101, 1000]]


def test_embargo_takes_the_steps_before_each_cutoff():
    times = np.arange(0, 200, 10)
    found = bounds(times, train=0.5, validation=0.25, embargo_steps=2)
    assert members(times, found) == [list(range(0, 80, 10)), [100, 110, 120], [150, 160, 170, 180, 190]]


def test_dates():
    found = bounds(DAYS, NAIVE, validation_start="2024-01-06", test_start="2024-01-08T12:00", embargo_steps=1)
    assert [len(part) for part in members(DAYS, found)] == [4, 2, 2]
    assert found.lines() == [
        "train: labels from 2024-01-01T00:00:00 to before 2024-01-05T00:00:00",
        "validation: labels from 2024-01-06T00:00:00 to before 2024-01-08T00:00:00",
        "test: labels from 2024-01-08T12:00:00 to the end",
    ]


def test_validation_off_is_stated():
    found = bounds(np.arange(10), train=0.8, validation=0.0, embargo_steps=1)
    assert members(range(10), found) == [[0, 1, 2, 3, 4, 5, 6], [], [8, 9]]
    assert not found.has("validation")
    assert found.lines()[1] == "validation: off, the settings leave it no period"
    same = bounds(DAYS, NAIVE, validation_start="2024-01-06", test_start="2024-01-06")
    assert not same.has("validation")


def test_test_off_when_shares_add_up_to_one():
    found = bounds(np.arange(10), train=0.7, validation=0.3, embargo_steps=1)
    assert members(range(10), found) == [[0, 1, 2, 3, 4, 5], [7, 8, 9], []]
    found = bounds(np.arange(10), train=1.0, validation=0.0, embargo_steps=3)
    assert members(range(10), found) == [list(range(10)), [], []]


def test_json_round_trip():
    found = bounds(DAYS, ZONED)
    assert SplitBounds.model_validate_json(found.model_dump_json()) == found


def test_zones():
    utc = 1_704_067_200_000_000  # 2024-01-01T00:00Z
    assert parse_time("2024-01-01", NAIVE, "x") == utc
    assert parse_time("2024-01-01", ZONED, "x") == utc
    assert parse_time("2024-01-01", ZONED, "x", "Europe/Berlin") == utc - 3600 * 10**6
    assert parse_time("2024-01-01T00:00:00.000001+01:00", ZONED, "x", "Asia/Tokyo") == utc - 3600 * 10**6 + 1
    assert parse_time(7, INDEX, "x") == 7


@pytest.mark.parametrize(
    ("value", "kind", "match"),
    [
        ("2024-01-01", INDEX, r"^w: does not fit the time column, got '2024-01-01'; give an integer$"),
        (5, NAIVE, r"^w: does not fit the time column, got 5; give an ISO date"),
        ("1st May", NAIVE, r"^w: not a date, got '1st May'; give an ISO date"),
        ("2024-01-01T00:00Z", NAIVE, r"^w: the time column has no zone, got .*; leave the offset out"),
    ],
)
def test_times_that_cannot_be_read(value, kind, match):
    with pytest.raises(ConfigError, match=match):
        parse_time(value, kind, "w")


@pytest.mark.parametrize(
    ("validation_start", "test_start", "match"),
    [
        ("2099-01-01", "2099-02-01", r"validation_start: no data at or after it, got 2099-01-01.*"),
        ("2024-01-05", "2099-02-01", r"test_start: no data at or after it, got 2099-02-01.*"),
        ("2023-01-05", "2024-01-05", r"validation_start: no training data before it, got 2023-01-05.*"),
        ("2024-01-01", "2024-01-05", r"validation_start: no training data before it, got 2024-01-01.*"),
        ("2024-01-05T01:00", "2024-01-05T02:00", r"test_start: no data between validation_start.*"),
    ],
)
def test_dates_outside_the_data_give_its_range(validation_start, test_start, match):
    span = "from 2024-01-01T00:00:00 to 2024-01-10T00:00:00"
    with pytest.raises(DataError, match=rf"^split\.{match}{span}$"):
        bounds(DAYS, NAIVE, validation_start=validation_start, test_start=test_start)


def test_dates_in_the_wrong_order():
    with pytest.raises(
        ConfigError, match=r"split.test_start: lies before validation_start \(8\), got 5; give"
    ):
        bounds(np.arange(10), validation_start=8, test_start=5)


@pytest.mark.parametrize(
    ("steps", "shares", "match"),
    [
        (2, {"train": 0.6, "validation": 0.1}, r"no time step for validation, got 2 time steps from 0 to 1;"),
        (2, {"train": 0.5, "validation": 0.4}, r"no time step for test, got 2"),
        (3, {"train": 0.1, "validation": 0.5}, r"no time step for train, got 3"),
    ],
)
def test_shares_that_leave_a_split_empty(steps, shares, match):
    with pytest.raises(DataError, match=match):
        bounds(np.arange(steps), **shares)


@pytest.mark.parametrize(("embargo", "split"), [(5, "train"), (99, "train"), (3, "validation")])
def test_embargo_that_swallows_a_split(embargo, split):
    with pytest.raises(
        DataError, match=rf"embargo_steps: leaves no time step for {split}, got {embargo}; lower"
    ):
        bounds(np.arange(10), train=0.5, validation=0.3, embargo_steps=embargo)
