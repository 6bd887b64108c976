from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
from made_model import SHOP, Made, make_model, settings_of, shop_table

from ds_tft.forecast.baselines import make_baselines
from ds_tft.forecast.evaluate import Evaluation, evaluate, forecast, write_evaluation
from ds_tft.forecast.metrics import pinball_loss
from ds_tft.forecast.scaled_errors import SeasonalScale, seasonal_scale

LEVELS = (0.1, 0.5, 0.9)


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Made:
    return make_model(tmp_path_factory.mktemp("shop"), shop_table(), settings_of(SHOP))


def evaluated(shop: Made, **options) -> Evaluation:
    data = shop.data
    baselines = make_baselines(data.table, data.train_rows, horizon=4, quantiles=LEVELS, season=24)
    options = {"batch_size": 16} | options
    return evaluate(shop.model, shop.builder, data.windows["test"], LEVELS, baselines, **options)


def scale_of(shop: Made, season: int | None = 24) -> SeasonalScale | None:
    target = shop.data.preprocessor.target_scaler
    return seasonal_scale(shop.data.table, target, shop.data.train_rows, season)


def test_figures_are_those_of_all_windows_at_once(shop):
    windows = shop.data.windows["test"]
    forecasts = np.sort(forecast(shop.model, shop.builder, windows, np.arange(len(windows))))
    rows = windows.origins[:, None] + np.arange(1, 5)
    labels = shop.data.table.targets[rows]
    result = evaluated(shop, scale=scale_of(shop))
    assert result.windows == len(windows) == 45
    assert result.model.overall.mean_pinball == pytest.approx(pinball_loss(labels, forecasts, LEVELS).mean())
    error = np.abs(labels - forecasts[..., 1])[..., 0]  # (n, K)
    assert result.model.overall.mae == pytest.approx(error.mean())
    naive = []
    for series in range(3):
        values = shop.data.table.targets[series * 120 : (series + 1) * 120, 0][shop.data.train_rows[:120]]
        naive.append(np.abs(values[24:] - values[:-24]).mean())
    of_window = np.array(naive)[shop.data.table.series_of_row[windows.origins]]
    assert result.scaled is not None
    assert result.scaled.season == 24
    assert result.scaled.model.mase == pytest.approx((error.mean(1) / of_window).mean())
    assert [name for name, _ in result.scaled.baselines] == [name for name, _ in result.baselines]


@pytest.mark.parametrize("batch_size", [1, 10, 45, 64])
def test_every_window_counts_once_whatever_the_batch(shop, batch_size):
    reference, other = evaluated(shop), evaluated(shop, batch_size=batch_size)
    assert other.windows == reference.windows
    assert other.model.overall.labels == reference.model.overall.labels == 45 * 4
    assert other.model.overall.mean_pinball == pytest.approx(reference.model.overall.mean_pinball, rel=1e-6)


def test_processes_together_see_what_one_sees(shop, monkeypatch):
    parts = []

    def keep(gathered: list, own: object) -> None:
        parts.append(pickle.loads(pickle.dumps(own)))
        gathered[:] = [own] * len(gathered)

    monkeypatch.setattr(torch.distributed, "all_gather_object", keep)
    for rank in range(2):
        evaluated(shop, rank=rank, world_size=2, scale=scale_of(shop))
    of_model = [parts[0], parts[6]]  # the model and five baselines each
    of_model[0].merge(of_model[1])
    alone = evaluated(shop, scale=scale_of(shop))
    assert of_model[0].errors.result().overall.mae == pytest.approx(alone.model.overall.mae)
    assert alone.scaled is not None
    assert of_model[0].scaled.result().mase == pytest.approx(alone.scaled.model.mase)


def test_without_a_season_there_is_no_scale(shop):
    assert scale_of(shop, season=None) is None
    assert evaluated(shop).scaled is None


def test_json_is_strict_and_does_not_grow_with_the_series(shop, tmp_path):
    scale = scale_of(shop)
    assert scale is not None
    scale.error[:] = np.nan
    write_evaluation(tmp_path / "e.json", evaluated(shop, scale=scale))
    found = json.loads((tmp_path / "e.json").read_text(), parse_constant=pytest.fail)
    assert found["period"] == "test"
    assert found["scaled"]["model"]["mase"] is None
    assert found["model"]["overall"]["mae"] > 0
    assert not any(key.startswith("series_") for key in found["scaled"]["model"])
    assert "3 of 3 series left out" in found["scaled"]["model"]["notes"][0]


def test_progress_sees_every_batch(shop):
    seen = []

    def progress(batches):
        for batch in batches:
            seen.append(len(batch))
            yield batch

    evaluated(shop, progress=progress)
    assert seen == [16, 16, 16]
