"""What tells one series of bars from another: four numbers that stay the same over time.

Letters: N rows.
"""

from __future__ import annotations

import numpy as np

from ds_tft.data.indicators import Bars
from ds_tft.data.indicators.rolling import Floats


def bar_static_names(with_volume: bool = True) -> tuple[str, ...]:
    """The names of the four numbers of `bar_statics`."""
    second = "log_median_traded_value" if with_volume else "extreme_absolute_return"
    return ("log_median_close", second, "median_absolute_return", "median_range")


def bar_statics(bars: Bars) -> Floats:
    """Describes the level, activity and liveliness of a series.

    Args:
        bars: Training rows of one series, oldest first. Rows with a missing value are left out.

    Returns:
        (4,) ln of the median close; ln of the median of close times volume, over bars with volume (0 where
        there is none), or, for bars without volume, the 95th percentile of |ln(C / C[1])|; the median of
        |ln(C / C[1])|; the median of ln(H / L). NaN where there is no bar, or no second one for a return.

    Raises:
        DataError: A price is 0 or less, or a volume is negative.
    """
    bars.check()
    bars = bars.rows(bars.whole())
    returns = np.abs(np.diff(np.log(bars.close)))
    if bars.volume is None:
        second = _quantile(returns, 0.95)
    else:
        value = bars.close * bars.volume
        traded = value[value > 0]
        second = _quantile(np.log(traded), 0.5) if len(traded) or not len(bars) else 0.0
    close, spread = _quantile(np.log(bars.close), 0.5), _quantile(np.log(bars.high / bars.low), 0.5)
    return np.array([close, second, _quantile(returns, 0.5), spread])


def _quantile(values: Floats, level: float) -> float:
    """The quantile; NaN of nothing."""
    return float(np.quantile(values, level)) if len(values) else float("nan")
