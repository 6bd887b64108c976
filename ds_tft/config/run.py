"""The run JSON (`--config`): what is learned. Every section is frozen and refuses unknown keys."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

CalendarFeature = Literal[
    "minute",
    "hour",
    "day_of_week",
    "day_of_month",
    "day_of_year",
    "week_of_year",
    "month",
    "quarter",
    "is_weekend",
    "is_month_start",
    "is_month_end",
]


def one_or_many(value: object) -> object:
    """Lets a JSON say `"close"` where `["close"]` is meant."""
    if isinstance(value, str):
        return (value,)
    # What comes out of here is checked as a Python value, for which a list is no tuple.
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(one_or_many)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of the run JSON."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)


class BarColumns(Section):
    """Names of the bar columns that `features: "ohlcv"` reads."""

    open: str = "open"
    """First price of the step."""
    high: str = "high"
    """Highest price."""
    low: str = "low"
    """Lowest price."""
    close: str = "close"
    """Last price; the target where none is named."""
    volume: str | None = "volume"
    """`null` asks for the smaller set of indicators that needs no volume."""


class DataSettings(Section):
    """Which columns are read, in which role, and what is done about rows that are not as they should be."""

    time: str | None = None
    """Time column; `null` lets it be inferred."""
    series: Names | None = None
    """Columns that together name a series; `null` infers them, `[]` says that the file is one series."""
    target: Names | None = None
    """Columns to forecast."""
    static_reals: Names = ()
    """Numbers that stay the same within a series."""
    static_categories: Names = ()
    """Categories that stay the same within a series; the columns of `series` are among them by themselves."""
    known_reals: Names = ()
    """Numbers known for the horizon too, such as a planned price. Never inferred: a mistake is leakage."""
    known_categories: Names = ()
    """Categories known for the horizon too, such as a holiday."""
    observed_reals: Names = ()
    """Numbers known for the past only."""
    observed_categories: Names = ()
    """Categories known for the past only."""
    ignored: Names = ()
    """Columns not to read."""
    other_columns: Literal["auto", "infer", "ignore"] = "auto"
    """Columns named in no role: `infer` one, or `ignore` them. `auto` ignores them for bars, else infers."""
    weight: str | None = None
    """Column of non-negative weights of rows in the loss."""
    features: Literal["none", "ohlcv"] = "none"
    """`ohlcv` computes indicators from the columns of `bars`."""
    bars: BarColumns = BarColumns()
    calendar: Literal["auto", "none"] | tuple[CalendarFeature, ...] = "auto"
    """Calendar features of the time column as known inputs. `auto` adds them when nothing else is known."""
    timezone: str | None = None
    """Zone of the clock that calendar features and steps of days or longer follow; `null` uses the one of the
    time column. With a zone, times stored without one are taken for UTC."""
    frequency: str = "auto"
    """Step of the time column: `auto`, `index`, or count and unit such as `1min`, `1h`, `1D`, `1B`, `1MS`."""
    duplicates: Literal["error", "first", "last"] = "error"
    """Several rows of one series at one time: refuse, or keep the first or last in file order."""
    missing: Literal["error", "drop", "fill"] = "fill"
    """Nulls, NaN and infinities of inputs: refuse; drop every window that touches one; or carry the last
    value forward and add an indicator input. Missing targets are never filled as labels."""
    gaps: Literal["auto", "fill", "tolerate", "split", "error"] = "auto"
    """Missing time steps: insert rows (`fill`), treat neighbouring rows as consecutive (`tolerate`), end the
    segment (`split`), or refuse. `auto` tolerates for bars, else fills."""
    max_gap_steps: Annotated[int, Field(ge=0)] = 5
    """A gap of more missing steps than this ends the segment, whatever `gaps` says."""

    @model_validator(mode="after")
    def _check(self) -> DataSettings:
        if not isinstance(self.calendar, str) and len(set(self.calendar)) != len(self.calendar):
            raise ValueError(f"calendar has a feature twice: {list(self.calendar)}; name it once")
        return self


class WindowSettings(Section):
    """Length of a window, in rows of a series."""

    encoder_length: Count = 60
    """Rows of history that a forecast reads."""
    horizon: Count = 10
    """Rows to forecast after the history."""
    min_encoder_length: Count | None = None
    """Shortest history used, padded and masked; `null` means half the encoder length, rounded up."""
    stride: Count = 1
    """Rows between the origins of neighbouring training windows."""
    evaluation_stride: Count = 1
    """The same for validation and test windows, counted from the first one of the split."""

    @model_validator(mode="after")
    def _check(self) -> WindowSettings:
        if self.min_encoder_length is not None and self.min_encoder_length > self.encoder_length:
            raise ValueError(
                f"min_encoder_length ({self.min_encoder_length}) is above "
                f"encoder_length ({self.encoder_length})"
            )
        return self

    @property
    def shortest_history(self) -> int:
        """Shortest history that a window may have."""
        return self.min_encoder_length or (self.encoder_length + 1) // 2


class SplitSettings(Section):
    """Split by time: every label of a split lies in its own period."""

    train: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Share of the time steps, oldest first, unless dates are given."""
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.15
    """Share that follows; the rest is the test period."""
    validation_start: str | int | None = None
    """First time of validation labels, as an ISO date or, for an integer time column, a number."""
    test_start: str | int | None = None
    """First time of test labels."""
    embargo_steps: Annotated[int, Field(ge=0)] = 0
    """Steps before each cutoff in which no training (or validation) label may lie."""

    @model_validator(mode="after")
    def _check(self) -> SplitSettings:
        if self.train + self.validation > 1 + 1e-9:
            raise ValueError(f"train ({self.train}) + validation ({self.validation}) is above 1")
        if (self.validation_start is None) != (self.test_start is None):
            raise ValueError("validation_start and test_start belong together; give both or neither")
        return self


class TargetScaling(Section):
    """How the target is brought to unit scale; predictions are brought back exactly."""

    kind: Literal["standard", "robust", "none"] = "standard"
    """As `scaling.reals`. With an anchor the scale is the size of the changes from it within the horizon."""
    per_series: bool = True
    """Centre and scale of each series; one with fewer than 10 training values takes those of all."""
    transform: Literal["auto", "none", "log", "log1p"] = "auto"
    """Applied before scaling. `auto` is `log` for bars, else `none`."""
    anchor: Literal["auto", "none", "last", "mean"] = "auto"
    """What the label is measured from: the scaler's centre (`none`), the window's last value, or its mean.
    `auto` is `last` for bars; else that around which training labels vary least, but `none` only where it is
    better by a fifth."""


class ScalingSettings(Section):
    """Scaling of the real inputs; statistics come from training rows only, in float64."""

    reals: Literal["standard", "robust", "none"] = "standard"
    """Mean and standard deviation, median and interquartile range, or left as they are."""
    per_series: bool = False
    """Centre and scale of each series instead of one for all; static inputs always share one."""
    clip: Annotated[float, Field(gt=0)] | None = 10.0
    """Largest magnitude of a scaled real input; `null` sets no limit."""
    target: TargetScaling = TargetScaling()


class ModelSettings(Section):
    """Sizes of the Temporal Fusion Transformer."""

    hidden_size: Count = 64
    """Width of every layer; a multiple of `num_heads`."""
    num_heads: Count = 4
    """Heads of the attention."""
    lstm_layers: Count = 1
    """Layers of the LSTM encoder, and of the decoder."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of values dropped in training."""
    quantiles: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = (0.1, 0.5, 0.9)
    """Levels to forecast, in any order; they are sorted."""

    @model_validator(mode="after")
    def _check(self) -> ModelSettings:
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of num_heads ({self.num_heads})"
            )
        if not self.quantiles:
            raise ValueError("quantiles is empty; give at least one level, such as [0.5]")
        if len(set(self.quantiles)) != len(self.quantiles):
            raise ValueError(f"quantiles has a level twice: {list(self.quantiles)}")
        return self


class TrainingSettings(Section):
    """The loop: how long, how often it looks up, and from which seed."""

    epochs: Count = 20
    """Most passes over the training windows."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of weights, order of windows and dropout."""
    patience: Annotated[int, Field(ge=0)] = 5
    """Validations without improvement before the run stops; 0 never stops early."""
    windows_per_epoch: Count | None = None
    """Windows drawn per epoch, without replacement; `null` takes all."""
    validate_every_steps: Count | None = None
    """Validations within an epoch, in optimizer steps, besides the one at its end."""
    validation_windows: Count | None = None
    """Evenly spaced validation windows to use; `null` takes all."""
    evaluation_batch_size: Count | None = None
    """Windows per forward in evaluation; `null` means the training micro-batch."""
    log_every_steps: Count = 10
    """Optimizer steps between records of loss, speed and memory."""
    checkpoint_every_steps: Count | None = None
    """Checkpoints within an epoch, in optimizer steps, besides the one at its end."""
    keep_checkpoints: Count = 2
    """Newest checkpoints to keep; older ones are removed."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Processes that assemble batches; 0 does it in the training process."""
    max_nonfinite_steps: Count = 10
    """Optimizer steps in a row that may be skipped for a non-finite loss or gradient before the run stops."""


class RunSettings(Section):
    """The whole run JSON."""

    data: DataSettings = DataSettings()
    window: WindowSettings = WindowSettings()
    split: SplitSettings = SplitSettings()
    scaling: ScalingSettings = ScalingSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
