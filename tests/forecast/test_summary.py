from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console

from ds_tft.forecast.evaluate import ScaledComparison
from ds_tft.forecast.metrics import ErrorReport, ForecastErrors
from ds_tft.forecast.scaled_errors import ScaledErrors, ScaledReport
from ds_tft.forecast.summary import RunSummary, print_summary

LEVELS = (0.1, 0.5, 0.9)


def errors_of(offset: float, quantiles: tuple[float, ...] = LEVELS) -> ErrorReport:
    errors = ForecastErrors(quantiles, 1)
    errors.add(np.full((4, 1, 1), 10.0), np.full((4, 1, 1, len(quantiles)), 10.0 + offset))
    return errors.result()


def summary_of(**changes) -> RunSummary:
    summary = RunSummary(
        rows=226_480,
        series=8,
        windows=(("train", 150_000), ("validation", 30_001), ("test", 30_002)),
        dropped=("12 windows: a series shorter than 70 rows", "3 rows: duplicates of an earlier row"),
        parameters=1_234_567,
        parameter_bytes=4_938_268,
        epochs=3,
        steps=14_064,
        training_seconds=5400,
        seconds_per_step=0.3839,
        windows_per_second=83.35,
        device="cpu",
        peak_host_bytes=900 * 2**20,
        peak_cuda_bytes=None,
        targets=("close",),
        model=errors_of(1.0),
        baselines=(("last value", errors_of(2.0)), ("seasonal naive", errors_of(4.0))),
        run_folder="runs/a[b]",
        next_commands=("deepspeed launch/predict.py --run runs/a[b] " + "--flag " * 20,),
    )
    return dataclasses.replace(summary, **changes)


def printed(summary: RunSummary, *, terminal: bool = False) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=140 if terminal else 60)
    print_summary(summary, console)
    return stream.getvalue()


def rows(text: str, name: str) -> list[list[str]]:
    """Cells of the rows of that name: in the tables of the loss, of the q-risk and of the errors."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {name} ")]
    return [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in lines]


def test_facts_have_units_and_reasons():
    text = printed(summary_of())
    for fact in (
        "226,480 rows, 8 series",
        "train 150,000, validation 30,001, test 30,002",
        "12 windows: a series shorter than 70 rows",
        "3 rows: duplicates of an earlier row",
        "1,234,567 parameters, 4.709 MiB",
        "3 epochs, 14,064 steps in 1.500 h on cpu",
        "383.9 ms per step, 83.35 windows/s",
        "host 900.0 MiB",
        "runs/a[b]",
    ):
        assert fact in text
    assert "CUDA" not in text
    assert "CUDA 2.000 GiB allocated" in printed(summary_of(peak_cuda_bytes=2**31))


def test_scores_stand_beside_the_best_baseline_of_each_column():
    text = printed(summary_of())
    assert rows(text, "loss") == [["P10", "P50", "P90", "mean"]]
    assert rows(text, "q-risk") == [["P10", "P50", "P90", "mean"]]
    loss, q_risk, errors = rows(text, "this model")
    assert loss == ["0.9000", "0.5000", "0.1000", "0.5000"]
    assert q_risk == ["0.1800", "0.1000", "0.02000", "0.1000"]
    assert errors == ["1.000", "1.000"]
    assert rows(text, "seasonal naive")[0] == ["3.600", "2.000", "0.4000", "2.000"]
    assert rows(text, "model / best baseline") == [["0.5000"] * 4] * 2 + [["0.5000"] * 2]
    worse = printed(summary_of(model=errors_of(8.0)))
    assert rows(worse, "model / best baseline") == [["4.000"] * 4] * 2 + [["4.000"] * 2]


def test_a_perfect_baseline_gives_no_ratio():
    text = printed(summary_of(baselines=(("last value", errors_of(0.0)),)))
    assert rows(text, "model / best baseline") == [["n/a"] * 4] * 2 + [["n/a"] * 2]


def test_plain_text_is_100_wide_whatever_the_console_says():
    text = printed(summary_of(dropped=("word " * 60,)))
    assert "\x1b" not in text
    widths = [len(line) for line in text.splitlines() if "launch/" not in line]
    assert 90 < max(widths) <= 100


def test_commands_are_never_broken():
    summary = summary_of()
    assert f"  {summary.next_commands[0]}".rstrip() in [
        line.rstrip() for line in printed(summary).splitlines()
    ]


def test_a_terminal_gets_styles():
    assert "\x1b[1m" in printed(summary_of(), terminal=True)


@pytest.mark.parametrize("count", [3, 9])
def test_hidden_levels_are_said(count):
    levels = LEVELS if count == 3 else tuple(step / 10 for step in range(1, 10))
    text = printed(
        summary_of(model=errors_of(1.0, levels), baselines=(("last value", errors_of(2.0, levels)),))
    )
    assert rows(text, "loss") == [["P10", "P50", "P90", "mean"]]
    assert ("6 of 9 levels are not shown" in text) == (count == 9)


def test_coverage_of_the_widest_interval():
    assert "close: 0 % of labels lie between P10 and P90 (80.00 % expected)" in printed(summary_of())


def test_no_test_period_is_said():
    assert "Test: no windows" in printed(summary_of(model=None))


def test_errors_in_seasons_stand_beside_the_others_where_there_is_a_season():
    def scaled(offset: float) -> ScaledReport:
        errors = ScaledErrors(LEVELS, np.array([[4.0]]))
        errors.add(np.full((4, 1, 1), 10.0), np.full((4, 1, 1, 3), 10.0 + offset), np.zeros(4, np.int64))
        return errors.result()

    comparison = ScaledComparison(
        season=7,
        model=scaled(1.0),
        baselines=(("last value", scaled(2.0)), ("seasonal naive", scaled(4.0))),
    )
    text = printed(summary_of(scaled=comparison))
    assert rows(text, "error") == [["MAE", "RMSE", "MASE", "SQL"]]
    assert rows(text, "this model")[2] == ["1.000", "1.000", "0.2500", "0.2500"]
    assert rows(text, "model / best baseline")[2] == ["0.5000"] * 4
    assert "the value of 7 rows earlier" in text.replace("\n", " ")
