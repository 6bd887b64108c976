"""Writing forecasts batch by batch, so that memory does not grow with their number."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from ds_tft.errors import ConfigError

SUFFIXES = (".parquet", ".csv")
ROWS_PER_GROUP = 65_536
"""Rows that are gathered before they are written: a parquet file of tiny row groups is slow to read."""


class ForecastFile:
    """A parquet or csv file, by suffix, that has its name only once it is whole. Use it in a `with`."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        """Opens the file.

        Args:
            path: Where to; its folder is there.
            schema: Columns of every batch.

        Raises:
            ConfigError: It cannot be written to.
        """
        self.path = path
        self.num_rows = 0
        self._schema = schema
        self._gathered: list[pa.RecordBatch] = []
        self._num_gathered = 0
        self._unfinished = path.with_name(f".{path.name}.unfinished")
        make = pacsv.CSVWriter if path.suffix.lower() == ".csv" else pq.ParquetWriter
        with _writing(path):
            self._writer = make(str(self._unfinished), schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Gives the file its name, or removes it after an error."""
        if kind is not None:
            with suppress(OSError):  # what went wrong before is what the user should hear of
                self._writer.close()
            self._unfinished.unlink(missing_ok=True)
            return
        with _writing(self.path):
            self._flush()
            self._writer.close()
            os.replace(self._unfinished, self.path)

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows.

        Raises:
            ConfigError: The file cannot be written to.
        """
        self._gathered.append(batch)
        self._num_gathered += batch.num_rows
        self.num_rows += batch.num_rows
        if self._num_gathered >= ROWS_PER_GROUP:
            with _writing(self.path):
                self._flush()

    def _flush(self) -> None:
        """Writes what was gathered."""
        if self._gathered:
            self._writer.write_table(pa.Table.from_batches(self._gathered, self._schema))
        self._gathered, self._num_gathered = [], 0


def check_suffix(path: Path) -> None:
    """Refuses a file of another kind than can be written.

    Raises:
        ConfigError: It has another suffix.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"--output: the suffix decides the format, got '{path.name}'; end it in {' or '.join(SUFFIXES)}"
        )


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns what the system says about a file into a ConfigError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error).splitlines()[0]
        raise ConfigError(
            f"--output: cannot write '{path}', got {reason}; give another path or make room"
        ) from None
