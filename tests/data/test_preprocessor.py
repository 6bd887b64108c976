import json

import pytest
from datasets import ROLES, bars, panel, prepare

from ds_tft.data.indicators import indicator_names
from ds_tft.data.preprocessor import Preprocessor


def preprocessor_of(folder, columns, **sections) -> Preprocessor:
    return prepare(folder, columns, **sections).preprocessor


def test_it_survives_json_exactly(tmp_path):
    for columns, data in ((panel(), ROLES), (bars(2), {"features": "ohlcv"})):
        fitted = preprocessor_of(
            tmp_path, columns, data=data, scaling={"per_series": True, "target": {"kind": "robust"}}
        )
        text = fitted.model_dump_json()
        assert Preprocessor.model_validate_json(text) == fitted
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_names_in_the_order_of_the_models_variables(tmp_path):
    columns = panel()
    for name in ("visits", "price"):
        columns[name] = columns[name].copy()
        columns[name][5] = float("nan")
    fitted = preprocessor_of(tmp_path, columns, data=ROLES | {"calendar": ["month", "is_weekend"]})
    known = ("relative_time", "price", "price_missing", "month_sin", "month_cos", "is_weekend")
    assert fitted.variable_names() == {
        "static": ("area", "store", "city"),
        "history": ("sales", "visits", "visits_missing", *known, "weather", "holiday"),
        "future": (*known, "holiday"),
    }


def test_bars_have_statics_of_their_own_and_an_id(tmp_path):
    layout = preprocessor_of(tmp_path, bars(2), data={"features": "ohlcv"}).layout
    assert layout.bar_columns == ("open", "high", "low", "close", "volume")
    assert layout.static_categories == ("symbol",)
    assert layout.observed_reals == indicator_names(True)
    assert len(layout.static_reals) == 4
    assert layout.step.name == "1h"


def test_bars_of_one_series_have_an_id_too(tmp_path):
    fitted = preprocessor_of(tmp_path, bars(1), data={"features": "ohlcv"})
    assert fitted.layout.roles.series == ()
    assert fitted.layout.static_categories == ("series",)
    assert fitted.categories["series"].cardinality == 2


def test_series_are_numbered_as_in_training(tmp_path):
    fitted = preprocessor_of(tmp_path, panel(3))
    assert fitted.series_numbers((("store 2",), ("new",), ("store 0",))).tolist() == [2, -1, 0]
