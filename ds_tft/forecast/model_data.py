"""A trained model together with the data of a file, prepared as its training data was."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ds_tft.data.batches import BatchBuilder
from ds_tft.data.forecast_data import ForecastData, prepare_forecast
from ds_tft.data.parquet import ParquetSource
from ds_tft.data.preprocessor import Layout, Preprocessor
from ds_tft.errors import ConfigError
from ds_tft.export import LoadedModel, ModelDescription
from ds_tft.forecast.forecasting_form import forecasting_form
from ds_tft.forecast.metrics import level_name
from ds_tft.formatting import format_number
from ds_tft.model.tft import TemporalFusionTransformer


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelData:
    """What every use of a trained model on a file needs."""

    model: TemporalFusionTransformer
    """On the device that forecasts, in the form that does it fastest, in evaluation mode."""
    description: ModelDescription
    data: ForecastData
    builder: BatchBuilder

    @property
    def layout(self) -> Layout:
        """Variables of the model."""
        return self.description.preprocessor.layout

    @property
    def quantiles(self) -> tuple[float, ...]:
        """The model's levels, ascending."""
        return self.description.size.quantiles

    def facts(self, path: str) -> list[tuple[str, str]]:
        """Returns what a report says about the model and the data: name and line.

        Args:
            path: The model as the user named it.
        """
        description, size = self.description, self.description.size
        loss = description.validation_loss
        quality = "" if loss is None else f", validation loss {format_number(loss)} in scaled units"
        levels = ", ".join(level_name(level).upper() for level in size.quantiles)
        return [
            ("Model", f"{path}: step {description.step:,}{quality}{_int8(description)}"),
            ("Forecast", f"{levels} of {', '.join(self.layout.roles.target)}, {size.horizon} steps ahead"),
            ("Data", f"{self.data.num_rows:,} rows, {len(self.data.table.series_keys):,} series"),
        ]


def prepare_model_data(loaded: LoadedModel, source: ParquetSource, *, beyond_end: bool) -> ModelData:
    """Prepares the data of a file for a model and moves the model to the device that forecasts.

    Args:
        loaded: The model.
        source: The data; columns are found by name.
        beyond_end: Make room for forecasts behind the last row of each series. The weights of rows, which
            only matter to known labels, are not read then.

    Returns:
        Both.

    Raises:
        DataError: A column is absent, or the data does not suit the model.
    """
    preprocessor = loaded.description.preprocessor
    horizon = preprocessor.window.horizon if beyond_end else 0
    model = forecasting_form(loaded.model.to(forecast_device()))
    data = prepare_forecast(source, _without_weight(preprocessor) if beyond_end else preprocessor, horizon)
    return ModelData(
        model=model,
        description=loaded.description,
        data=data,
        builder=BatchBuilder(data.table, preprocessor.window, preprocessor.target_scaler),
    )


def _int8(description: ModelDescription) -> str:
    """Says that a model is an INT8 one."""
    return "" if description.int8 is None else f", {description.int8.line}"


def forecast_device() -> torch.device:
    """Returns the CUDA device if there is one, otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def check_count(flag: str, value: int | None) -> None:
    """Refuses a count below 1.

    Raises:
        ConfigError: It is.
    """
    if value is not None and value < 1:
        raise ConfigError(f"{flag}: must be 1 or more, got {value}; give a larger number")


def output_folder(path: Path) -> None:
    """Makes the folder that a file is to be written to.

    Raises:
        ConfigError: It cannot be made, or the path is that of a folder.
    """
    if path.is_dir():
        raise ConfigError(f"--output: '{path}' is a folder; give the name of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--output: cannot make the folder '{path.parent}', got {error.strerror}; give another path"
        ) from None


def _without_weight(preprocessor: Preprocessor) -> Preprocessor:
    """The same, without a column of weights."""
    roles = preprocessor.layout.roles.model_copy(update={"weight": None})
    return preprocessor.model_copy(update={"layout": preprocessor.layout.model_copy(update={"roles": roles})})
