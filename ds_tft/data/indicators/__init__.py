"""Technical indicators of bars (`features: "ohlcv"`): causal, free of scale, finite.

`python -m ds_tft.data.indicators` prints the table of all of them (docs/indicators.md).
"""

from ds_tft.data.indicators.bars import Bars, fill_missing_bars
from ds_tft.data.indicators.catalog import WARM_UP_ROWS, compute_indicators, indicator_names

__all__ = ["WARM_UP_ROWS", "Bars", "compute_indicators", "fill_missing_bars", "indicator_names"]
