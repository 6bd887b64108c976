"""Writes a trained model as an ONNX file, and compares the file with the model before it gets its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnxruntime
from rich.console import Console
from rich.text import Text

import ds_tft
from ds_tft.errors import ConfigError
from ds_tft.export import LoadedModel, read_export
from ds_tft.forecast.forecasting_form import forecasting_form
from ds_tft.forecast.metrics import level_name
from ds_tft.forecast.model_data import output_folder
from ds_tft.forecast.report import facts_table, note_facts, print_report
from ds_tft.formatting import format_bytes
from ds_tft.onnx_export.comparison import BATCH_SIZES, Comparison, compare
from ds_tft.onnx_export.graph import OPSET
from ds_tft.onnx_export.metadata import metadata
from ds_tft.onnx_export.model_file import FileBytes, check_size, named_at_the_end, save_model
from ds_tft.onnx_export.network import write_network
from ds_tft.onnx_export.runtime import OnnxForecaster
from ds_tft.onnx_export.windows import Windows, made_up_windows, windows_of_file

SUFFIX = ".onnx"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportOnnxArguments:
    """What the command line of `launch/export_onnx.py` said."""

    model: str
    output: str
    parquet: str | None = None
    """None compares on synthetic windows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Written:
    """The file and what it was compared on."""

    bytes: FileBytes
    forecaster: OnnxForecaster
    windows: Windows
    comparison: Comparison


def export_onnx(arguments: ExportOnnxArguments, console: Console) -> Path:
    """Writes the file, and prints what is in it and how close it is.

    Args:
        arguments: The command line.
        console: Where to print.

    Returns:
        The file. There is one only if it forecasts what the model does.

    Raises:
        UserError: Something that the user can mend, or a file that forecasts something else.
    """
    output = Path(arguments.output)
    if output.suffix.lower() != SUFFIX:
        raise ConfigError(f"--output: the model is ONNX, got '{output.name}'; end it in {SUFFIX}")
    loaded = read_export(Path(arguments.model))
    windows = _choose_windows(arguments, loaded)
    output_folder(output)
    written = _write(loaded, windows, output)
    _print(arguments, loaded, written, console)
    console.print(Text(f"written: {format_bytes(written.bytes.total)} to {output}"), soft_wrap=True)
    return output


def _choose_windows(arguments: ExportOnnxArguments, loaded: LoadedModel) -> Windows:
    """The windows to compare on."""
    description = loaded.description
    preprocessor = description.preprocessor
    if arguments.parquet is None:
        return made_up_windows(description.size, preprocessor.window.shortest_history)
    return windows_of_file(arguments.parquet, preprocessor)


def _write(loaded: LoadedModel, windows: Windows, output: Path) -> _Written:
    """Writes and compares."""
    model, description = forecasting_form(loaded.model), loaded.description
    graph, texts = write_network(model), metadata(description)
    check_size(graph.nbytes + sum(map(len, texts.values())))
    content = graph.model("temporal_fusion_transformer", ds_tft.__version__, texts)
    with named_at_the_end(output) as path:
        size = save_model(content, path)
        forecaster = OnnxForecaster(path)
        comparison = compare(model, forecaster.forecast, windows, is_int8=description.int8 is not None)
        comparison.require()
    return _Written(bytes=size, forecaster=forecaster, windows=windows, comparison=comparison)


def _print(arguments: ExportOnnxArguments, loaded: LoadedModel, written: _Written, console: Console) -> None:
    """Prints what was written, and how it was compared."""
    description, size, windows = loaded.description, written.bytes, written.windows
    kind = "fp32" if description.int8 is None else description.int8.line
    name, shape = written.forecaster.output
    levels = ", ".join(level_name(level).upper() for level in description.size.quantiles)
    targets = ", ".join(description.preprocessor.layout.roles.target)
    batches = " and of ".join(str(number) for number in BATCH_SIZES)
    facts = [
        ("Model", f"{arguments.model}: step {description.step:,}, {kind}"),
        ("Format", f"ONNX opset {OPSET}"),
        *_named("Inputs", [f"{each} {_shape(dims)}" for each, dims in written.forecaster.inputs.items()]),
        ("Output", f"{name} {_shape(shape)}: {levels} of {targets}, in scaled units"),
        ("Weights", f"{format_bytes(size.codes)} in 8 bits, {format_bytes(size.floats)} in fp32"),
        ("Compared", f"{windows.origin}, in batches of {batches}"),
        ("With", f"ONNX Runtime {onnxruntime.__version__} on the CPU"),
        ("Difference", written.comparison.found),
        ("Allowed", written.comparison.bound),
        *note_facts(windows.notes),
    ]
    print_report([facts_table(facts), Text("")], console)


def _named(name: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    """Returns lines as facts, of which only the first has a name."""
    return [(name if place == 0 else "", line) for place, line in enumerate(lines)]


def _shape(lengths: Sequence[int | str]) -> str:
    """Writes a shape."""
    return f"({', '.join(map(str, lengths))})" if len(lengths) > 1 else f"({lengths[0]},)"
