"""Shapes of single bars and of the last few: bodies, wicks, ranges, runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ds_tft.data.indicators.bars import PreparedBars
from ds_tft.data.indicators.indicator import Indicator
from ds_tft.data.indicators.rolling import Floats, lag, ratio, rolling_mean

LONGEST_STREAK = 20


def indicators() -> Iterator[Indicator]:
    """Yields the columns of this family."""
    upper, lower = "(H - max(O, C)) / (H - L)", "(min(O, C) - L) / (H - L)"
    yield Indicator("high_low_range", 1, "ln(H / L)", lambda bars: bars.log_range)
    yield Indicator("body_share", 1, "(C - O) / (H - L)", body_share)
    yield Indicator("upper_wick_share", 1, upper, _upper_wick_share)
    yield Indicator("lower_wick_share", 1, lower, _lower_wick_share)
    for n in (5, 20):
        formula = f"mean((C - O) / (H - L), {n})"
        yield Indicator(f"body_share_mean_{n}", n, formula, partial(_body_share_mean, n=n))
    yield Indicator(
        "upper_wick_share_mean_10",
        10,
        f"mean({upper}, 10)",
        lambda bars: rolling_mean(_upper_wick_share(bars), 10),
    )
    yield Indicator(
        "lower_wick_share_mean_10",
        10,
        f"mean({lower}, 10)",
        lambda bars: rolling_mean(_lower_wick_share(bars), 10),
    )
    for n in (5, 20):
        yield Indicator(f"relative_range_{n}", n + 1, f"TR / mean(TR, {n})", partial(relative_range, n=n))
    for n in (20, 60):
        yield Indicator(f"up_share_{n}", n + 1, f"mean((1 + sign(r)) / 2, {n})", partial(_up_share, n=n))
    yield Indicator("inside_bar_share_20", 21, "mean(H <= H[1] and L >= L[1], 20)", _inside_bar_share)
    yield Indicator(
        "streak", 2, f"signed number of closes in a row that rose or fell, at most {LONGEST_STREAK}", _streak
    )


def body_share(bars: PreparedBars) -> Floats:
    """(N,) Signed body as a share of the bar's range."""
    return ratio(bars.close - bars.open, bars.high - bars.low)


def _body_share_mean(bars: PreparedBars, n: int) -> Floats:
    """Mean signed body."""
    return rolling_mean(body_share(bars), n)


def relative_range(bars: PreparedBars, n: int) -> Floats:
    """(N,) True range over its mean; 1 where nothing moved in the window."""
    return ratio(bars.true_range, rolling_mean(bars.true_range, n), otherwise=1.0)


def _upper_wick_share(bars: PreparedBars) -> Floats:
    """Part of the range above the body."""
    return ratio(bars.high - np.maximum(bars.open, bars.close), bars.high - bars.low)


def _lower_wick_share(bars: PreparedBars) -> Floats:
    """Part of the range below the body."""
    return ratio(np.minimum(bars.open, bars.close) - bars.low, bars.high - bars.low)


def _up_share(bars: PreparedBars, n: int) -> Floats:
    """Share of rising closes; unchanged ones count half."""
    return rolling_mean((1 + np.sign(bars.change)) / 2, n)


def _inside_bar_share(bars: PreparedBars) -> Floats:
    """Share of bars that stay within the one before."""
    previous_high, previous_low = lag(bars.high, 1), lag(bars.low, 1)
    inside = ((bars.high <= previous_high) & (bars.low >= previous_low)).astype(np.float64)
    return rolling_mean(np.where(np.isnan(previous_high), np.nan, inside), 20)


def _streak(bars: PreparedBars) -> Floats:
    """Signed length of the present run of rising or falling closes."""
    direction = np.sign(bars.change)
    rows = np.arange(len(direction))
    turned = direction != lag(direction, 1)
    started = np.maximum.accumulate(np.where(turned, rows, 0))
    return direction * np.minimum(rows - started + 1, LONGEST_STREAK)
