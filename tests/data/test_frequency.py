import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import micros

from ds_tft.data.frequency import BusinessDays, FixedStep, Frequency, IndexStep, Months, day_in_month
from ds_tft.data.times import DAY, HOUR
from ds_tft.errors import ConfigError

FORMS = [
    "500us",
    "1s",
    "5min",
    "1h",
    "36h",
    "1D",
    "1W",
    "1B",
    "3B",
    "1MS",
    "1ME",
    "3MS",
    "1M15",
    "12ME",
    "index",
]
times = st.lists(st.integers(-(10**15), 4 * 10**15), min_size=1, max_size=30).map(
    lambda x: np.array(sorted(x))
)


def iso(values) -> list[str]:
    return [str(v)[:16] for v in np.asarray(values).astype("datetime64[us]")]


@settings(deadline=None)
@given(times, st.sampled_from(FORMS), st.integers(-500, 500))
def test_advance_moves_ordinals_by_exactly_the_steps(values, form, steps):
    frequency = Frequency.parse(form).anchored(values)
    moved = frequency.advance(values, steps)
    assert (frequency.ordinals(moved) - frequency.ordinals(values) == steps).all()


@settings(deadline=None)
@given(times, st.sampled_from(FORMS))
def test_ordinals_rise_with_time(values, form):
    assert (np.diff(Frequency.parse(form).anchored(values).ordinals(values)) >= 0).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_grid_has_consecutive_ordinals_and_no_row_off_it(form):
    start = micros("2024-01-01T16:00") if form != "1M15" else micros("2024-01-15T16:00")
    grid = Frequency.parse(form).advance(start, np.arange(60))
    frequency = Frequency.parse(form).anchored(grid)
    assert (np.diff(frequency.ordinals(grid)) == 1).all()
    assert frequency.off_grid_count(grid) == 0


@pytest.mark.parametrize("form", ["1D", "1W", "1B", "1MS", "1ME"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Santiago", "Australia/Lord_Howe"])
def test_days_and_months_follow_the_clock_of_the_zone(form, zone):
    start = micros("2023-01-02T05:00")
    grid = Frequency.parse(f"{form}[{zone}]").advance(start, np.arange(100))
    frequency = Frequency.parse(form).in_zone(zone).anchored(grid)
    assert (np.diff(frequency.ordinals(grid)) == 1).all()
    assert frequency.off_grid_count(grid) <= 2  # a local midnight that was skipped
    assert len(np.unique(grid % DAY)) == 2  # summer and winter in UTC


@settings(deadline=None)
@given(times, st.sampled_from(FORMS), st.sampled_from([None, "Asia/Tokyo"]))
def test_text_restores_the_frequency(values, form, zone):
    frequency = Frequency.parse(form).in_zone(zone).anchored(values)
    assert Frequency.parse(frequency.to_text()) == frequency


@pytest.mark.parametrize(
    ("text", "expected", "name"),
    [
        ("1min", FixedStep(count=60 * 10**6), "1min"),
        ("h", FixedStep(count=HOUR), "1h"),
        ("24h", FixedStep(count=DAY), "1D"),
        ("90min", FixedStep(count=HOUR * 3 // 2), "90min"),
        ("2W", FixedStep(count=14 * DAY), "2W"),
        ("1B", BusinessDays(), "1B"),
        ("3MS", Months(count=3, day=1), "3MS"),
        ("ME", Months(day=31), "1ME"),
        ("1M15", Months(day=15), "1M15"),
        ("index", IndexStep(), "index"),
        ("10index", IndexStep(count=10), "10index"),
        (
            "1D@57600000000[America/New_York]",
            FixedStep(count=DAY, phase=16 * HOUR, zone="America/New_York"),
            "1D",
        ),
    ],
)
def test_parse(text, expected, name):
    assert Frequency.parse(text) == expected
    assert expected.name == name


@pytest.mark.parametrize(
    "text", ["", "1x", "1m", "1M", "1ms", "0h", "-1h", "1.5h", "hourly", "1h@3600000000", "1Q"]
)
def test_unknown_forms_are_refused_with_the_known_ones(text):
    with pytest.raises(ConfigError, match=r"data.frequency: unknown step, got .*; known forms: 1s, 5min"):
        Frequency.parse(text)


def test_huge_counts_are_refused():
    with pytest.raises(ConfigError, match="unknown step"):
        Frequency.parse("999999999999999W")


def test_a_day_no_month_has_is_refused():
    with pytest.raises(ConfigError, match="a month has no day 45"):
        Frequency.parse("1M45")


def test_an_unknown_zone_is_refused():
    with pytest.raises(ConfigError, match="unknown zone, got 'Mars'"):
        Frequency.parse("1D[Mars]")


def test_month_ends_are_clipped_and_come_back():
    moved = Months(day=31).advance(micros("2024-01-31T16:00"), np.arange(5))
    assert iso(moved) == [f"2024-{day}T16:00" for day in ("01-31", "02-29", "03-31", "04-30", "05-31")]


@settings(deadline=None)
@given(st.integers(-600, 1200), st.integers(1, 31))
def test_day_in_month_stays_in_the_month(month, day):
    days = day_in_month(np.array([month]), day).astype("datetime64[D]")
    assert days.astype("datetime64[M]").astype(int)[0] == month
    assert int(str(days[0])[8:]) <= day
    following = (days + 1).astype("datetime64[M]").astype(int)[0]
    assert int(str(days[0])[8:]) == day or following == month + 1


def test_business_days_skip_weekends_and_keep_the_time_of_day():
    friday = micros("2024-03-01T17:00")
    assert iso(BusinessDays().advance(friday, np.array([0, 1, 5, -5]))) == [
        "2024-03-01T17:00",
        "2024-03-04T17:00",
        "2024-03-08T17:00",
        "2024-02-23T17:00",
    ]


@settings(deadline=None)
@given(times)
def test_business_day_ordinals_agree_with_counting(values):
    days = values // DAY
    weekdays = [int(np.sum((np.arange(days[0], day + 1) + 3) % 7 < 5)) for day in days[days < days[0] + 500]]
    ordinals = BusinessDays().ordinals(values)[: len(weekdays)]
    assert (ordinals - ordinals[0]).tolist() == [count - weekdays[0] for count in weekdays]


def test_a_weekend_row_belongs_to_friday():
    week = micros("2024-03-01", "2024-03-02", "2024-03-03", "2024-03-04")
    assert np.diff(BusinessDays().ordinals(week)).tolist() == [0, 0, 1]
    assert BusinessDays().off_grid_count(week) == 2
    assert iso(BusinessDays().advance(week[2:3], 1)) == ["2024-03-04T00:00"]


def test_the_phase_follows_most_of_the_data():
    bars = micros("2024-01-01T16:00")[0] + np.arange(100) * DAY
    frequency = Frequency.parse("1D").anchored(np.append(bars, bars[-1] + DAY - HOUR))
    assert frequency.phase == 16 * HOUR
    early = np.append(bars, bars[-1] + DAY - HOUR)  # an hour too early: still the step of the day before
    assert np.diff(frequency.ordinals(early)).tolist() == [1] * 99 + [0]
    assert frequency.off_grid_count(early) == 1


def test_rows_all_over_the_step_leave_the_phase_at_the_most_common_offset():
    times = np.concatenate([np.arange(60) * HOUR, np.arange(60, 100) * HOUR + HOUR // 2])
    assert Frequency.parse("1h").anchored(times).phase == 0


def test_local_midnights_kept_in_utc_are_a_daily_grid_without_a_zone():
    midnights = Frequency.parse("1D[Europe/Berlin]").advance(micros("2023-12-31T23:00"), np.arange(730))
    assert len(np.unique(midnights % DAY)) == 2
    for part in (midnights, midnights[:150], midnights[100:500]):
        assert (np.diff(Frequency.parse("1D").anchored(part).ordinals(part)) == 1).all()


def test_months_count_by_calendar_month_whatever_the_day():
    rows = micros("2024-01-31", "2024-02-29", "2024-03-29", "2024-04-30")  # last business days
    assert np.diff(Months(day=31).ordinals(rows)).tolist() == [1, 1, 1]
    assert Months(day=31).off_grid_count(rows) == 1


def test_quarters_keep_their_months():
    rows = micros("2024-02-01", "2024-05-01", "2024-08-01", "2024-09-01")
    frequency = Frequency.parse("3MS").anchored(rows)
    assert frequency.phase == 1
    assert np.diff(frequency.ordinals(rows)).tolist() == [1, 1, 0]
    assert frequency.off_grid_count(rows) == 1


@pytest.mark.parametrize(
    ("form", "periods"),
    [
        ("10s", None),
        ("1min", 1440),
        ("15min", 96),
        ("1h", 24),
        ("12h", 2),
        ("5h", None),
        ("1D", 7),
        ("2D", None),
        ("1W", 52),
        ("2W", 26),
        ("1B", 5),
        ("1MS", 12),
        ("3ME", 4),
        ("12MS", None),
        ("index", None),
    ],
)
def test_seasonal_periods(form, periods):
    assert Frequency.parse(form).seasonal_periods() == periods
