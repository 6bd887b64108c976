"""Finding parquet files and reading them batch by batch; whatever Arrow reports becomes a one-line error."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ds_tft.data.column_types import ShardColumn, shard_column
from ds_tft.errors import DataError

_BATCH_ROWS = 65_536
# Column chunks are read through a buffer of this size instead of being held whole.
_BUFFER_BYTES = 2**16


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One parquet file: its size and its columns by name."""

    file: str
    num_rows: int
    columns: dict[str, ShardColumn]


def find_files(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Finds the parquet files that a path stands for.

    Args:
        path: A file, a folder (searched with its subfolders for `*.parquet`), or a glob.

    Returns:
        Files in sorted order, and notes about what was passed over.

    Raises:
        DataError: There is no such path, or no parquet file in the folder.
    """
    if not path:  # which Path takes for the folder of the process
        raise DataError("--parquet-file: empty, got ''; give a file, a folder or a glob")
    if Path(path).is_file():
        return (path,), ()
    if Path(path).is_dir():
        return _folder_files(path)
    matches = sorted(match for match in glob.glob(path, recursive=True) if Path(match).is_file())
    if not matches:
        raise DataError(f"{path}: no such file or folder, and no file matches it as a glob; check the path")
    return tuple(matches), ()


def _folder_files(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All `*.parquet` below a folder, but those that Spark and others mark as not data."""
    root = Path(path)
    found = sorted(file for file in root.rglob("*.parquet") if file.is_file())
    files = [file for file in found if not _is_hidden(file.relative_to(root))]
    if not files:
        raise DataError(f"{path}: the folder holds no *.parquet file; check the path")
    notes = []
    if len(files) < len(found):
        notes.append(f"{len(found) - len(files)} files under names that start with '.' or '_' are skipped")
    if any("=" in part for file in files for part in file.relative_to(root).parts[:-1]):
        notes.append("folder names such as 'symbol=ES' are not read as columns")
    return tuple(str(file) for file in files), tuple(notes)


def _is_hidden(relative: Path) -> bool:
    """Whether a file, or a folder above it, is marked as not data."""
    return any(part.startswith((".", "_")) for part in relative.parts)


def read_shard(file: str) -> Shard:
    """Reads the size and the columns of a file, not its values.

    Raises:
        DataError: The file is not parquet, or is damaged.
    """
    with _reading(file), _opened(file, "us") as parquet:
        schema = parquet.schema_arrow
        names = Counter(schema.names)
        physical = {
            column.path: column.physical_type
            for column in (parquet.schema.column(i) for i in range(len(parquet.schema)))
        }
        columns = {
            field.name: shard_column(
                field, int96=physical.get(field.name) == "INT96", repeated=names[field.name] > 1
            )
            for field in schema
        }
        return Shard(file=file, num_rows=parquet.metadata.num_rows, columns=columns)


def read_batches(
    file: str, names: Sequence[str], num_rows: int, int96_unit: str = "us"
) -> Iterator[pa.RecordBatch]:
    """Reads some columns of a file, batch by batch.

    Args:
        file: Path of the file.
        names: Columns to read.
        num_rows: Rows that the file must turn out to have.
        int96_unit: Unit to which INT96 timestamps are brought.

    Raises:
        DataError: The file is damaged, or does not hold `num_rows` rows.
    """
    rows = 0
    with _reading(file), _opened(file, int96_unit) as parquet:
        for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=list(names)):
            rows += batch.num_rows
            if rows > num_rows:
                break
            yield batch
    if rows != num_rows:
        raise DataError(f"{file}: damaged or changed, got {rows} rows instead of {num_rows}; write it anew")


def _opened(file: str, int96_unit: str) -> pq.ParquetFile:
    """The file, ready to be read with page checksums verified where it has them."""
    return pq.ParquetFile(
        file,
        buffer_size=_BUFFER_BYTES,
        pre_buffer=False,  # it would hold whole column chunks
        coerce_int96_timestamp_unit=int96_unit,
        page_checksum_verification=True,
    )


@contextmanager
def _reading(file: str) -> Iterator[None]:
    """Turns what Arrow raises about a file into a DataError."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise DataError(
            f"{file}: cannot be read as parquet, got '{lines[0]}'; check that the file is whole"
        ) from error
