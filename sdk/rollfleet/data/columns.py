"""The columns of a table of tensors: their keys, dtypes and shapes, and their positions in memory."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollfleet.data.batch import Key
from rollfleet.errors import JobInvalid
from rollfleet_api.messages import pack, unpack

ALIGNMENT = 64
"""Bytes. Columns start at multiples of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The values of all rows under one key.

    Attributes:
        key: The key in a batch.
        dtype: The name of a torch dtype, such as "float32".
        shape: The shape in one row.
    """

    key: Key
    dtype: str
    shape: tuple[int, ...]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch dtype."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def nbytes(self, rows: int) -> int:
        """Return the size of `rows` rows, up to the start of the next column."""
        exact = rows * math.prod(self.shape) * self.torch_dtype.itemsize
        return -(-exact // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table, in their order in memory."""

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, values: Mapping[Key, Tensor]) -> Self:
        """Return the columns of these tensors, `[rows, ...]` each."""
        return cls(
            tuple(
                Column(key=key, dtype=str(value.dtype).removeprefix("torch."), shape=tuple(value.shape[1:]))
                for key, value in values.items()
            )
        )

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Parse a `text`."""
        return unpack(cls, text)

    def text(self) -> bytes:
        """Return a description for another process, to `parse`."""
        return pack(self)

    def nbytes(self, rows: int) -> int:
        """Return the size of `rows` rows of all columns."""
        return sum(column.nbytes(rows) for column in self.columns)

    def views(self, memory: NDArray[np.uint8], rows: int) -> dict[Key, Tensor]:
        """Return views of the columns `[rows, ...]` in `memory`."""
        views, start = {}, 0
        for column in self.columns:
            exact = rows * math.prod(column.shape) * column.torch_dtype.itemsize
            raw = torch.from_numpy(memory[start : start + exact])
            views[column.key] = raw.view(column.torch_dtype).view(rows, *column.shape)
            start += column.nbytes(rows)
        return views

    def check_alike(self, frames: "Columns") -> None:
        """Check that frames have these columns.

        Raises:
            JobInvalid: They differ; names the keys.
        """
        if differ := set(self.columns) ^ set(frames.columns):
            keys = sorted({".".join(column.key) for column in differ})
            raise JobInvalid(f"these frames differ from those in the buffer in {keys}: by key, dtype or shape")
