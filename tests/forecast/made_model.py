"""A small exported model with random weights, and the data that it was prepared on."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.console import Console

from ds_tft.config.run import RunSettings
from ds_tft.data.batches import BatchBuilder
from ds_tft.data.infer import infer_roles
from ds_tft.data.parquet import open_source
from ds_tft.data.prepare import TrainingData, prepare_training
from ds_tft.export import ModelDescription, write_export
from ds_tft.forecast.forecasting_form import forecasting_form
from ds_tft.forecast.predict import PredictArguments, predict
from ds_tft.model.tft import TemporalFusionTransformer
from ds_tft.model_size import derive_size

HOUR = np.timedelta64(1, "h")
START = np.datetime64("2024-01-01T00:00:00", "us")


def shop_table(rows: int = 120, series: tuple[str, ...] = ("A", "B", "C"), seed: int = 0) -> pa.Table:
    """Hourly sales of some shops, with every role of a column."""
    rng = np.random.default_rng(seed)
    parts = []
    for number, name in enumerate(series):
        hours = np.arange(rows)
        sales = 50 * (number + 1) + 10 * np.sin(hours / 4) + rng.normal(size=rows)
        parts.append(
            pa.table(
                {
                    "when": START + hours * HOUR,
                    "shop": [name] * rows,
                    "sales": sales,
                    "promo": rng.random(rows),
                    "holiday": [None if hour % 3 else "fair" for hour in hours],
                    "weather": rng.normal(size=rows),
                    "size": [float(number)] * rows,
                    "weight": np.ones(rows),
                }
            )
        )
    return pa.concat_tables(parts)


SHOP = {
    "data": {
        "time": "when",
        "series": ["shop"],
        "target": "sales",
        "known_reals": ["promo"],
        "known_categories": ["holiday"],
        "observed_reals": ["weather"],
        "static_reals": ["size"],
        "weight": "weight",
        "calendar": ["hour"],
    },
    "window": {"encoder_length": 12, "horizon": 4, "min_encoder_length": 3},
    "model": {"hidden_size": 8, "num_heads": 2},
    "scaling": {"target": {"per_series": True}},
}


def settings_of(base: dict, **sections: dict) -> RunSettings:
    """The settings with some keys of some sections changed."""
    merged = {name: {**base.get(name, {}), **sections.get(name, {})} for name in {*base, *sections}}
    return RunSettings.model_validate_json(json.dumps(merged))


@dataclass(frozen=True, slots=True)
class Made:
    """An export, and what training would have had in its process."""

    folder: Path
    """The run folder."""
    file: Path
    model: TemporalFusionTransformer
    data: TrainingData
    description: ModelDescription

    @property
    def builder(self) -> BatchBuilder:
        preprocessor = self.data.preprocessor
        return BatchBuilder(self.data.table, preprocessor.window, preprocessor.target_scaler)

    def predict(self, file: pa.Table | Path | None = None, **arguments) -> pa.Table:
        """Rows of a prediction."""
        return pq.read_table(self.predict_to(file, **arguments)[0])

    def predict_to(self, file: pa.Table | Path | None = None, **arguments) -> tuple[Path, str]:
        """File and words of a prediction."""
        if isinstance(file, pa.Table):
            path = self.folder.parent / "given.parquet"
            pq.write_table(file, path)
            file = path
        stream = io.StringIO()
        output = predict(
            PredictArguments(model=str(self.folder), parquet=str(file or self.file), **arguments),
            Console(file=stream, width=100),
        )
        return output, stream.getvalue()


def make_model(folder: Path, table: pa.Table, settings: RunSettings, seed: int = 1) -> Made:
    """Writes the data and the export of a model that has learned nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "data.parquet"
    pq.write_table(table, file)
    source = open_source(str(file))
    data = prepare_training(source, infer_roles(source, settings.data), settings)
    size = derive_size(data.preprocessor, settings)
    torch.manual_seed(seed)
    model = TemporalFusionTransformer(size).eval()
    description = ModelDescription(
        settings=settings,
        size=size,
        preprocessor=data.preprocessor,
        bounds=data.bounds,
        step=7,
        validation_loss=0.25,
        batch_size=16,
    )
    write_export(folder / "run" / "export", model, description)
    model = forecasting_form(model)  # as every use of an export does, for results equal to the bit
    return Made(folder / "run", file, model, data, description)


def with_future(table: pa.Table, hours: int, **columns: list) -> pa.Table:
    """Adds rows behind each shop's last one, without targets; the columns' values repeat for each shop."""
    ends = dict(zip(table["shop"].to_pylist(), table["when"].to_numpy(), strict=True))  # the last one stays
    shops = list(ends)
    values = {
        "when": np.concatenate([end + np.arange(1, hours + 1) * HOUR for end in ends.values()]),
        "shop": np.repeat(shops, hours),
        "promo": np.full(hours * len(shops), 0.5),
    } | {name: column * len(shops) for name, column in columns.items()}
    rows = pa.table({name: pa.array(column) for name, column in values.items()})
    for field in table.schema:
        if field.name not in rows.column_names:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return pa.concat_tables([table, rows.select(table.column_names).cast(table.schema)])


def replaced(table: pa.Table, name: str, values: object) -> pa.Table:
    """The table with another column of that name."""
    place = table.column_names.index(name)
    return table.set_column(place, name, pa.array(values))
