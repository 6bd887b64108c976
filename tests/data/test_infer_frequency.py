import numpy as np
import pytest
from raw_rows import micros

from ds_tft.data.frequency import BusinessDays, FixedStep, Frequency, IndexStep, Months
from ds_tft.data.infer_frequency import infer_frequency, resolve_frequency
from ds_tft.data.schema import TimeKind
from ds_tft.data.times import DAY, HOUR, MINUTE
from ds_tft.errors import ConfigError, DataError


def infer(times, zone=None, series=None, kind=TimeKind.NAIVE) -> Frequency:
    times = np.asarray(times, dtype=np.int64)
    series = np.zeros(len(times), dtype=np.int32) if series is None else np.asarray(series, dtype=np.int32)
    return infer_frequency(times, series, kind, zone)


@pytest.mark.parametrize(
    "form", ["1s", "5min", "1h", "1D", "1W", "1B", "1MS", "1ME", "3MS", "1M15", "12MS", "28D"]
)
@pytest.mark.parametrize("share_kept", [1.0, 0.9])
def test_a_grid_is_recognised_with_and_without_gaps(form, share_kept):
    start = micros("2023-01-15" if form == "1M15" else "2023-01-31" if form == "1ME" else "2024-01-01")
    grid = Frequency.parse(form).advance(start, np.arange(80))
    kept = grid[np.random.default_rng(0).random(len(grid)) < share_kept]
    frequency = infer(kept)
    assert frequency.name == Frequency.parse(form).name
    expected = np.flatnonzero(np.isin(grid, kept))
    assert (frequency.ordinals(kept) - frequency.ordinals(kept[:1])).tolist() == (
        expected - expected[0]
    ).tolist()


def test_two_rows_a_month_apart_are_monthly():
    assert infer(micros("2024-01-01", "2024-02-01")) == Months(day=1)
    assert infer(micros("2024-01-01", "2024-01-29")).count == 28 * DAY
    assert infer(micros("2024-01-10", "2024-02-07")).count == 28 * DAY


def test_last_business_days_are_monthly():
    ends = micros(
        "2024-01-31", "2024-02-29", "2024-03-29", "2024-04-30", "2024-05-31", "2024-06-28", "2024-07-31"
    )
    assert infer(ends) == Months(day=31)


def test_a_working_week_alone_is_daily():
    week = micros("2024-01-01")[0] + np.arange(5) * DAY
    assert infer(week) == FixedStep(count=DAY)
    assert infer(np.append(week, week + 7 * DAY)) == BusinessDays()


def test_one_weekend_row_makes_days_calendar_days():
    week = micros("2024-01-01")[0] + np.arange(5) * DAY
    assert infer(np.concatenate([week, week + 7 * DAY, [week[0] + 12 * DAY]])) == FixedStep(count=DAY)


def test_differences_between_series_do_not_count():
    times = np.concatenate([np.arange(3) * HOUR, np.arange(3) * HOUR + MINUTE])
    assert infer(times, series=[0, 0, 0, 1, 1, 1]).name == "1h"


def test_duplicate_times_do_not_count():
    assert infer(np.array([0, 0, 0, 0, 1, 1, 1, 2]) * HOUR).name == "1h"


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize("form", ["1D", "1B", "1MS", "1ME"])
def test_zoned_days_and_months(zone, form):
    start = micros("2024-01-31T05:00" if form == "1ME" else "2024-01-01T05:00")
    grid = Frequency.parse(f"{form}[{zone}]").advance(start, np.arange(30 if form.endswith("E") else 300))
    frequency = infer(grid, zone=zone, kind=TimeKind.ZONED)
    assert (frequency.name, frequency.zone) == (form, zone)
    assert (np.diff(frequency.ordinals(grid)) == 1).all()


def test_hours_know_no_zone():
    hours = micros("2024-03-30")[0] + np.arange(72) * HOUR  # across a change of the clock
    frequency = infer(hours, zone="Europe/Berlin", kind=TimeKind.ZONED)
    assert frequency == FixedStep(count=HOUR)
    assert (np.diff(frequency.ordinals(hours)) == 1).all()


def test_jittering_times_are_rounded():
    rng = np.random.default_rng(1)
    minutes = np.arange(500) * MINUTE + rng.integers(-(10**6), 10**6, 500)
    assert infer(minutes).count == MINUTE
    days = np.arange(200) * DAY + rng.integers(0, HOUR // 4, 200)
    assert infer(days).count == DAY


def test_irregular_times_take_the_most_common_difference():
    assert infer(np.cumsum([0, 5, 3, 5, 9, 2, 5, 11])).count == 5


def test_integers():
    assert infer([10, 20, 30, 50], kind=TimeKind.INDEX) == IndexStep(count=10)
    assert infer([3, 13, 23], kind=TimeKind.INDEX) == IndexStep(count=10, phase=3)


@pytest.mark.parametrize("times", [[], [5], [5, 5]])
def test_no_step_to_infer(times):
    with pytest.raises(
        DataError, match="data.time: no series has rows at two different times.*set data.frequency"
    ):
        infer(times)


def test_setting_auto_infers():
    times = np.arange(4) * HOUR
    assert resolve_frequency("auto", times, np.zeros(4, dtype=np.int32), TimeKind.NAIVE).name == "1h"


def test_setting_is_anchored_on_the_data_and_in_the_zone():
    times = micros("2024-01-01T21:00", "2024-01-02T21:00")
    series = np.zeros(2, dtype=np.int32)
    given = resolve_frequency("1D", times, series, TimeKind.ZONED, "America/New_York")
    assert given == FixedStep(count=DAY, phase=16 * HOUR, zone="America/New_York")
    assert resolve_frequency("1h", times, series, TimeKind.ZONED, "America/New_York").zone is None
    assert resolve_frequency("1D", times[:1], series[:1], TimeKind.NAIVE).phase == 21 * HOUR


@pytest.mark.parametrize(
    ("setting", "kind", "message"),
    [
        (
            "1h",
            TimeKind.INDEX,
            "the time column holds integers, got '1h'; use 'auto' or a step such as 'index'",
        ),
        ("index", TimeKind.ZONED, "the time column holds dates or timestamps, got 'index'"),
        ("weekly", TimeKind.NAIVE, "unknown step, got 'weekly'"),
    ],
)
def test_setting_that_does_not_fit(setting, kind, message):
    with pytest.raises(ConfigError, match=message):
        resolve_frequency(setting, np.arange(3), np.zeros(3, dtype=np.int32), kind)
