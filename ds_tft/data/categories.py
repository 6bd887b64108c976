"""Category codes that mean the same in every file: fitted by value on training rows and saved with the model.

Letters: N rows, U distinct values of a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

NULL = "<null>"
_NAMED = 5


class CategoryMap(BaseModel):
    """Codes of one categorical variable: 0 unseen in training, then the values in order, then null."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    values: tuple[str, ...]
    """Values of the training rows, sorted; the first has code 1."""
    has_null: bool
    """Whether training rows were null: then null is a value of its own, with the last code, not unseen."""

    @classmethod
    def fit(cls, codes: NDArray[np.integer], values: Sequence[str], train: NDArray[np.bool_]) -> Self:
        """Collects the values of the training rows.

        Args:
            codes: (N,) position in `values` of each row; negative for null.
            values: U values of this file, in any order.
            train: (N,) True for training rows.

        Returns:
            The fitted map.
        """
        seen = np.unique(codes[train])
        names = sorted({values[code] for code in seen[seen >= 0].tolist()})
        return cls(values=tuple(names), has_null=bool((seen < 0).any()))

    @property
    def cardinality(self) -> int:
        """Number of codes, the one of unseen values included."""
        return 1 + len(self.values) + self.has_null

    def encode(
        self, codes: NDArray[np.integer], values: Sequence[str]
    ) -> tuple[NDArray[np.int32], dict[str, int]]:
        """Encodes by value, so that a file may number its values as it likes.

        Args:
            codes: (N,) position in `values` of each row; negative for null.
            values: U values of this file, in any order.

        Returns:
            The codes of this map (N,), and the number of rows of each value that was not seen in training.
        """
        own = {value: code for code, value in enumerate(self.values, start=1)}
        null_code = len(self.values) + 1 if self.has_null else 0
        # Null comes after the values.
        table = np.array([own.get(value, 0) for value in values] + [null_code], dtype=np.int32)
        position = np.where(codes < 0, len(values), codes)
        encoded = table[position]
        missed = np.bincount(position[encoded == 0], minlength=len(table))
        unseen: dict[str, int] = {}
        for position_missed in np.flatnonzero(missed).tolist():
            name = NULL if position_missed == len(values) else values[position_missed]
            unseen[name] = unseen.get(name, 0) + int(missed[position_missed])
        return encoded, unseen


def unseen_line(column: str, unseen: Mapping[str, int]) -> str:
    """Says which values of a column were not seen in training; names the most frequent ones.

    Args:
        column: Name of the column.
        unseen: Rows of each unseen value, at least one.

    Returns:
        One line for the log.
    """
    ordered = sorted(unseen.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(f"'{value}' ({count})" for value, count in ordered[:_NAMED])
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    rows = sum(unseen.values())
    return (
        f"{column}: {len(ordered)} values unseen in training, taken as unknown, {rows} times: {named}{more}"
    )
