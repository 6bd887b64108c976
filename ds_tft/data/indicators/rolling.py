"""Causal building blocks that TA-Lib lacks, or computes by running sums that lose digits.

A running sum (add the new value, subtract the old) leaves a remainder behind every large value, which becomes
the result wherever the true one is 0: in flat prices or in bars without volume. Here each window is summed
anew, as a sum of shifted arrays, so a row depends on the rows of its window alone, whatever is around them.

Letters: N rows, n rows of a window that ends at the row itself. NaN marks rows whose window is not complete.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NEGLIGIBLE = 1e-12
"""Magnitude up to which a divisor counts as 0. Prices and volumes are near 1, returns far above this."""


def ratio(numerator: Floats, divisor: Floats, otherwise: float = 0.0) -> Floats:
    """(N,) The quotient, or `otherwise` where the divisor is 0. NaN stays NaN."""
    result = np.full(len(divisor), otherwise)
    np.divide(numerator, divisor, out=result, where=np.abs(divisor) > NEGLIGIBLE)
    result[np.isnan(numerator) | np.isnan(divisor)] = np.nan
    return result


def balance(a: Floats, b: Floats) -> Floats:
    """(N,) (a - b) / (a + b) of non-negative arrays, which is tanh(ln(a / b) / 2); 0 where both are 0."""
    total = a + b
    return np.divide(a - b, total, out=np.where(np.isnan(total), np.nan, 0.0), where=total > 0)


def lag(x: Floats, rows: int) -> Floats:
    """(N,) The value `rows` rows earlier."""
    result = np.full(len(x), np.nan)
    result[rows:] = x[: max(len(x) - rows, 0)]
    return result


def rolling_sum(x: Floats, n: int) -> Floats:
    """(N,) Sum over the window."""
    result = np.full(len(x), np.nan)
    if len(x) >= n:
        total = x[n - 1 :].copy()
        for k in range(1, n):
            total += x[n - 1 - k : len(x) - k]
        result[n - 1 :] = total
    return result


def rolling_mean(x: Floats, n: int) -> Floats:
    """(N,) Mean over the window."""
    return rolling_sum(x, n) / n


def rolling_moment(x: Floats, n: int, order: int) -> Floats:
    """(N,) Mean over the window of (x - mean) ** order."""
    result = np.full(len(x), np.nan)
    if len(x) >= n:
        mean = rolling_mean(x, n)[n - 1 :]
        total = np.zeros(len(mean))
        for k in range(n):
            deviation = x[n - 1 - k : len(x) - k] - mean
            power = deviation
            for _ in range(order - 1):
                power = power * deviation
            total += power
        result[n - 1 :] = total / n
    return result


def rolling_std(x: Floats, n: int) -> Floats:
    """(N,) Population standard deviation over the window."""
    return np.sqrt(rolling_moment(x, n, 2))


def rolling_correlation(x: Floats, y: Floats, n: int) -> Floats:
    """(N,) Pearson correlation over the window; 0 where either does not vary."""
    result = np.full(len(x), np.nan)
    if len(x) >= n:
        mean_x, mean_y = rolling_mean(x, n)[n - 1 :], rolling_mean(y, n)[n - 1 :]
        total = np.zeros(len(mean_x))
        for k in range(n):
            window = slice(n - 1 - k, len(x) - k)
            total += (x[window] - mean_x) * (y[window] - mean_y)
        spread_x, spread_y = rolling_std(x, n), rolling_std(y, n)
        result[n - 1 :] = ratio(ratio(total / n, spread_x[n - 1 :]), spread_y[n - 1 :])
    return np.clip(result, -1, 1)


def rolling_rank(x: Floats, n: int) -> Floats:
    """(N,) Share of the n - 1 earlier values of the window below the newest one; equal ones count half."""
    result = np.full(len(x), np.nan)
    if len(x) >= n:
        newest = x[n - 1 :]
        total = np.zeros(len(newest))
        for k in range(1, n):
            earlier = x[n - 1 - k : len(x) - k]
            total += np.where(np.isnan(earlier), np.nan, (earlier < newest) + 0.5 * (earlier == newest))
        result[n - 1 :] = total / (n - 1)
    return result
