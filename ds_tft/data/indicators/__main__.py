"""Prints docs/indicators.md: `python -m ds_tft.data.indicators > docs/indicators.md`."""

from __future__ import annotations

from ds_tft.data.indicators.catalog import WARM_UP_ROWS, catalog

_HEAD = """\
# Indicators

`features: "ohlcv"` computes {with_volume} columns from open, high, low, close and volume. Where
`data.bars.volume` is null it computes the {without_volume} of them that need no volume.

This page is made by `python -m ds_tft.data.indicators > docs/indicators.md`.

- Every column is causal: a row depends on that row and earlier rows of its run (rows of one series without a
  break).
- Every column is free of scale: multiplying all prices, or all volumes, by a constant changes nothing but
  rounding.
- Prices must be above 0, volumes 0 or more. Where a divisor is 0 (a flat bar, a flat window, no volume) a
  column takes the neutral value of its scale. No column is ever infinite.
- *Window* is the number of rows up to and with the first that has a value. Rows before it are NaN here and
  become 0 after scaling. The longest makes the warm-up of a run: {warm_up} rows. Columns with a TA-Lib
  function that smooths exponentially (EMA, DEMA, TEMA, T3, KAMA, ATR, NATR, ADX, DI, CMO, TRIX, PPO, MACD,
  ADOSC) or with SAR also keep a fading memory of all earlier rows of the run.

Letters: O, H, L, C, V open, high, low, close, volume; `x[k]` x of k rows earlier; r = ln(C / C[1]);
P = (H + L + C) / 3; TR = max(H, C[1]) - min(L, C[1]), the true range; ln the natural logarithm.
`mean(x, n)`, and likewise sum, max, min, var and std, are taken over the last n rows; var and std divide by
n. TA-Lib names are those of its Python package.

| name | formula | window | needs volume |
|---|---|---|---|
"""


def table() -> str:
    """The page, in Markdown."""
    every, without = catalog(with_volume=True), catalog(with_volume=False)
    head = _HEAD.format(with_volume=len(every), without_volume=len(without), warm_up=WARM_UP_ROWS)
    rows = []
    for indicator in every:
        formula = indicator.formula.replace("|", "\\|")
        needs = "yes" if indicator.needs_volume else "no"
        rows.append(f"| `{indicator.name}` | {formula} | {indicator.window} | {needs} |\n")
    return head + "".join(rows)


if __name__ == "__main__":
    print(table(), end="")
