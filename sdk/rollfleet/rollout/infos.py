"""Chosen values of the environments' infos, as numbers."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rollfleet.arguments import shown
from rollfleet.data.batch import INFO, Key
from rollfleet.data.tensor_memory import Array
from rollfleet.envs.factory import VectorEnv
from rollfleet.envs.serial import place_of
from rollfleet.errors import EnvironmentInvalid


class Infos:
    """Reads chosen values from the infos of a vector environment, in Gymnasium's form.

    Each is a float64 number or array, NaN where the environment did not report it: so keys, dtypes and shapes of a
    batch do not depend on what happened to come first.

    Attributes:
        shapes: The shape in one environment of each value, by its key in a batch: that of the first reset's info. A
            value that is missing there is one number.
    """

    def __init__(self, env: VectorEnv, keys: Collection[str], first: Mapping[str, Any]) -> None:
        """Read the shapes from the info of the first reset.

        Raises:
            EnvironmentInvalid: A value is neither a number nor an array of numbers.
        """
        self._env, self._keys = env, tuple(dict.fromkeys(keys))
        self._all: NDArray[np.bool_] = np.ones(env.num_envs, np.bool_)
        self.shapes: dict[Key, tuple[int, ...]] = {}
        self._reported: set[str] = set()
        for key in self._keys:
            present = self._present(first, key, self._all)
            self._reported |= {key} if present.any() else set()
            shape = self._values(first, key, present).shape[1:] if present.any() else ()
            self.shapes[*INFO, key] = shape

    @property
    def missing(self) -> set[str]:
        """The keys that no environment has reported so far."""
        return {*self._keys} - self._reported

    def write(self, info: Mapping[str, Any], rows: Sequence[Array], envs: NDArray[np.bool_] | None = None) -> None:
        """Write the values of one step's info into `rows`: one array [envs, ...] for each of `shapes`.

        `envs`: bool [envs], the environments whose values are written; None: all.

        Raises:
            EnvironmentInvalid: A value is not a number, or its shape has changed.
        """
        envs = self._all if envs is None else envs
        for key, row in zip(self._keys, rows, strict=True):
            row[envs] = np.nan
            if (present := self._present(info, key, envs)).any():
                values = self._values(info, key, present)
                if values.shape[1:] != row.shape[1:]:
                    raise self._misfit(key, f"of shape {list(values.shape[1:])}", row.shape[1:])
                row[present] = values
                self._reported.add(key)

    def _present(self, info: Mapping[str, Any], key: str, envs: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of `envs` report a value: bool [envs]."""
        holder, name = place_of(info, key)
        return envs & holder.get(f"_{name}", True) if name in holder else np.zeros_like(envs)

    def _values(self, info: Mapping[str, Any], key: str, present: NDArray[np.bool_]) -> Array:
        """Return the values of the environments in `present`: [n, ...]."""
        holder, name = place_of(info, key)
        try:
            values = np.asarray(holder[name])[present]
            if values.dtype == object:
                values = np.stack([_array(value) for value in values])
        except (IndexError, TypeError, ValueError):
            raise self._misfit(key, f"as {shown(holder[name])}") from None
        if values.dtype.kind not in "biuf":
            raise self._misfit(key, f"as {shown(values[0])}")
        return values

    def _misfit(self, key: str, found: str, expected: tuple[int, ...] | None = None) -> EnvironmentInvalid:
        wanted = "numbers, or arrays of numbers of one shape"
        if expected is not None:
            wanted = f"{list(expected)}, the shape in the first reset's info" if expected else "one number"
            wanted += "" if expected else ": for an array, return it from `reset` too"
        return EnvironmentInvalid(f"environment {self._env} reports the info {key!r} {found}; expected {wanted}")


def _array(value: object) -> Array:
    return value.double().numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)
