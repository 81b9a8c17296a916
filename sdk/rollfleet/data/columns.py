"""What each row of a table of tensors has under which key, and where its columns lie in memory."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollfleet.errors import JobInvalid
from rollfleet_api.messages import pack, unpack

Key = tuple[str, ...]

ALIGNMENT = 64
"""Bytes. Columns begin at multiples of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What each row has under one key."""

    key: Key
    dtype: str
    shape: tuple[int, ...]

    @property
    def torch_dtype(self) -> torch.dtype:
        """As torch has it."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def nbytes(self, rows: int) -> int:
        """Of so many rows, up to where another column may begin."""
        exact = rows * math.prod(self.shape) * self.torch_dtype.itemsize
        return -(-exact // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table, one behind the other in memory."""

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, values: Mapping[Key, Tensor]) -> Self:
        """As these are laid out, `[rows, ...]` each."""
        return cls(
            tuple(
                Column(key=key, dtype=str(value.dtype).removeprefix("torch."), shape=tuple(value.shape[1:]))
                for key, value in values.items()
            )
        )

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """The inverse of `text`."""
        return unpack(cls, text)

    def text(self) -> bytes:
        """For another process."""
        return pack(self)

    def nbytes(self, rows: int) -> int:
        """Of so many rows of all columns."""
        return sum(column.nbytes(rows) for column in self.columns)

    def views(self, memory: NDArray[np.uint8], rows: int) -> dict[Key, Tensor]:
        """The columns `[rows, ...]` that lie in this memory."""
        views, start = {}, 0
        for column in self.columns:
            exact = rows * math.prod(column.shape) * column.torch_dtype.itemsize
            raw = torch.from_numpy(memory[start : start + exact])
            views[column.key] = raw.view(column.torch_dtype).view(rows, *column.shape)
            start += column.nbytes(rows)
        return views

    def check_alike(self, frames: "Columns") -> None:
        """Whether frames of that layout fit.

        Raises:
            JobInvalid: They do not; names the keys.
        """
        if differ := set(self.columns) ^ set(frames.columns):
            keys = sorted({".".join(column.key) for column in differ})
            raise JobInvalid(f"these frames differ from those in the buffer in {keys}: by key, dtype or shape")
