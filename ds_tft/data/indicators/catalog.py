"""The list of all indicators, and their computation.

Letters: N rows, V indicators.
"""

from __future__ import annotations

from itertools import chain

import numpy as np

from ds_tft.data.indicators import candles, distribution, oscillators, returns, trend, volatility, volume
from ds_tft.data.indicators.bars import Bars, prepare
from ds_tft.data.indicators.indicator import Indicator
from ds_tft.data.indicators.rolling import Floats
from ds_tft.errors import DataError

_FAMILIES = (returns, candles, volatility, trend, oscillators, distribution, volume)
_INDICATORS = tuple(chain.from_iterable(family.indicators() for family in _FAMILIES))

WARM_UP_ROWS = max(indicator.window for indicator in _INDICATORS) - 1
"""Rows at the start of a run in which at least one indicator has no value yet."""


def catalog(with_volume: bool) -> tuple[Indicator, ...]:
    """The indicators in the order of their columns; without volume, those that need none."""
    return tuple(indicator for indicator in _INDICATORS if with_volume or not indicator.needs_volume)


def indicator_names(with_volume: bool) -> tuple[str, ...]:
    """The names of the columns of `compute_indicators`: 209 with volume, 166 without."""
    return tuple(indicator.name for indicator in catalog(with_volume))


def compute_indicators(bars: Bars) -> Floats:
    """Computes every indicator of one run of bars.

    All are causal: a row depends on that row and those before it. All are free of scale: multiplying prices,
    or volumes, by a constant changes nothing.

    Args:
        bars: Rows of one series that follow each other, oldest first. Rows before the first whole one have no
            indicators; after it no value may be missing (`fill_missing_bars` sees to that).

    Returns:
        (N, V) indicators in the order of `indicator_names`, never infinite. NaN stands in the warm-up only:
        at most the first `WARM_UP_ROWS` rows from the first whole one on, and all rows before that.

    Raises:
        DataError: A price is 0 or less, a volume is negative, a value is missing after the first whole bar,
            or an indicator is not finite: a low is above its high, or prices or volumes span too many orders
            of magnitude.
    """
    bars.check()
    columns = catalog(bars.volume is not None)
    whole = bars.whole()
    first = int(whole.argmax()) if whole.any() else len(bars)
    result = np.full((len(bars), len(columns)), np.nan)
    if first == len(bars):
        return result
    run = bars.rows(slice(first, None))
    _refuse_missing(run, first)
    prepared = prepare(run)
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow is refused below, by name
        for column, indicator in enumerate(columns):
            values = indicator.compute(prepared)
            _refuse_overflow(indicator, values)
            result[first:, column] = values
    return result


def _refuse_missing(run: Bars, first: int) -> None:
    """TA-Lib gives NaN for all rows after a NaN, so none may come in."""
    for name, values in run.columns().items():
        missing = ~np.isfinite(values)
        if missing.any():
            row = int(missing.argmax())
            raise DataError(
                f"data.bars.{name}: {missing.sum()} of {len(values)} rows from the first whole bar on are "
                f"missing, got {values[row]} in row {first + row}; fill or remove these rows"
            )


def _refuse_overflow(indicator: Indicator, values: Floats) -> None:
    """Raises DataError where a row past the warm-up of the indicator is not finite."""
    wrong = ~np.isfinite(values[indicator.window - 1 :])
    if wrong.any():
        row = indicator.window - 1 + int(wrong.argmax())
        raise DataError(
            f'features "ohlcv": {indicator.name} overflows in {wrong.sum()} rows, got {values[row]} in row '
            f"{row} of its run; look there for a low above its high, or for prices or volumes that are many "
            "orders of magnitude off"
        )
