"""Weights as one contiguous buffer: copied from a module in one call, into another in one call.

A version's bytes hold every parameter and buffer of its models in `state_dict` order, each at a multiple of 16 bytes.
A tuple of `Parameter` describes the buffer. Workers compare the learner's with their own, and name the first that
differs.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rollfleet.data.tensor_memory import copy_all
from rollfleet.errors import WeightMismatch
from rollfleet.weights.modules import POLICY as POLICY
from rollfleet.weights.modules import unwrapped
from rollfleet_api.job import Precision
from rollfleet_api.transfers import Flags, Parameter

ALIGNMENT_BYTES = 16

State = dict[str, Tensor]

_NARROWED = (torch.float32, torch.float64)


def state_of(source: Any) -> State:
    """Return the named tensors of a module, a mapping of names to tensors, or a TensorDict. Nothing is copied.

    Extra state of a module is left out, with a warning, if it is no tensor.

    Raises:
        WeightMismatch: The source is none of these, or holds anything but dense tensors.
    """
    if isinstance(source, nn.Module):
        source = unwrapped(source).state_dict()
        if left := [name for name, value in source.items() if not isinstance(value, Tensor)]:
            advice = "return a tensor from get_extra_state(), or register a buffer"
            warnings.warn(f"{', '.join(left)}: this is no tensor, so no version has it; {advice}", stacklevel=2)
            source = {name: value for name, value in source.items() if name not in left}
    elif hasattr(source, "flatten_keys"):  # a TensorDict, without importing tensordict
        source = dict(source.flatten_keys(".").items())
    if not isinstance(source, Mapping):
        raise WeightMismatch(f"weights come from a module, a dict or a TensorDict, not from a {type(source).__name__}")
    for name, value in source.items():
        if is_lazy(value):
            raise WeightMismatch(f"{name}: this parameter is lazy, its shape is unknown; call the module once before")
        if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_meta:
            raise WeightMismatch(f"{name}: only dense tensors can be sent, this is {_describe(value)}")
    return {str(name): value.detach() for name, value in source.items()}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The bytes of one version.

    Attributes:
        parameters: The parameters in the bytes.
        data: uint8 `[total_bytes]`, on the CPU.
        flags: See `rollfleet.schemes.Layout`.
    """

    parameters: tuple[Parameter, ...]
    data: Tensor
    flags: Flags = ()


class WeightLayout:
    """The position of each parameter in a version's bytes.

    Args:
        models: The named tensors of each model, by the model's name (see `state_of`).
        precision: `bfloat16` narrows float32 and float64 in the buffer; other dtypes stay.

    Example:
        >>> layout = WeightLayout({POLICY: state_of(nn.Linear(4, 2))})
        >>> [(parameter.name, parameter.shape) for parameter in layout.parameters], layout.total_bytes
        ([('weight', (2, 4)), ('bias', (2,))], 48)
    """

    def __init__(self, models: Mapping[str, State], precision: str = Precision.FLOAT32) -> None:
        narrow = Precision(precision) is Precision.BFLOAT16
        self._entries: list[tuple[Parameter, torch.dtype, int]] = []
        self._strides: list[tuple[int, ...]] = []  # of each entry
        self._gaps: list[slice] = []  # between parameters
        offset = 0
        for model, state in models.items():
            for name, tensor in state.items():
                dtype = torch.bfloat16 if narrow and tensor.dtype in _NARROWED else tensor.dtype
                shape = tuple(tensor.shape)
                parameter = Parameter(model=model, name=name, dtype=str(dtype).removeprefix("torch."), shape=shape)
                self._entries.append((parameter, dtype, offset))
                self._strides.append(torch.empty(shape, device="meta").stride())
                end = offset + tensor.numel() * dtype.itemsize
                offset = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
                if offset > end:
                    self._gaps.append(slice(end, offset))
        self.flags: Flags = ()
        self.parameters = tuple(parameter for parameter, _, _ in self._entries)
        self.total_bytes = offset
        self._dtypes = {dtype for _, dtype, _ in self._entries}

    def snapshot(self, models: Mapping[str, State], into: Tensor | None = None) -> Snapshot:
        """Copy the models' tensors, on any device, into one buffer.

        Args:
            models: The models, each with its tensors.
            into: The buffer, uint8 `[total_bytes]` on the CPU; None: a new one.

        Raises:
            WeightMismatch: Names, shapes or dtypes differ from this layout.
        """
        sources = self._tensors(models)
        data = torch.empty(self.total_bytes, dtype=torch.uint8, device="cpu") if into is None else into
        for gap in self._gaps:
            data[gap] = 0
        copy_all(self._views(data), sources)
        return Snapshot(self.parameters, data, self.flags)

    def load(self, data: Tensor, models: Mapping[str, State]) -> None:
        """Copy a version's bytes (uint8 `[total_bytes]`) into the models' tensors, in place.

        Raises:
            WeightMismatch: The models, or the number of bytes, differ from this layout.
        """
        targets = self._tensors(models)
        if data.numel() != self.total_bytes:
            raise WeightMismatch(f"{data.numel()} bytes of weights for a layout of {self.total_bytes}")
        copy_all(targets, self._views(data))

    def states(self, data: Tensor) -> dict[str, State]:
        """Return the models' tensors as views of a version's bytes, in the buffer's precision."""
        models: dict[str, State] = {}
        for (parameter, _, _), view in zip(self._entries, self._views(data), strict=True):
            models.setdefault(parameter.model, {})[parameter.name] = view
        return models

    def check(self, parameters: tuple[Parameter, ...]) -> None:
        """Compare the learner's parameters with this layout, a worker's.

        Raises:
            WeightMismatch: They differ; names the first difference.
        """
        if parameters == self.parameters:
            return
        here = {(parameter.model, parameter.name): parameter for parameter in self.parameters}
        sent = {(parameter.model, parameter.name): parameter for parameter in parameters}
        for key, parameter in sent.items():
            if key not in here:
                raise WeightMismatch(f"{_name(parameter)}: the learner has it, the policy here does not")
            if here[key] != parameter:
                raise WeightMismatch(
                    f"{_name(parameter)}: the learner has {_form(parameter)}, the policy here has {_form(here[key])}"
                )
        for key, parameter in here.items():
            if key not in sent:
                raise WeightMismatch(f"{_name(parameter)}: the policy here has it, the learner does not")
        for mine, other in zip_longest(self.parameters, parameters):
            if mine != other:
                name = _name(mine or other)
                raise WeightMismatch(f"{name}: the learner has the same parameters in another order, or twice")

    def _tensors(self, models: Mapping[str, State]) -> list[Tensor]:
        tensors: list[Tensor] = []
        for parameter, dtype, _ in self._entries:
            tensor = models.get(parameter.model, {}).get(parameter.name)
            if tensor is None:
                raise WeightMismatch(f"{_name(parameter)}: it was in an earlier version and is missing now")
            narrowed = dtype is torch.bfloat16 and tensor.dtype in _NARROWED
            if tuple(tensor.shape) != parameter.shape or not (narrowed or tensor.dtype is dtype):
                raise WeightMismatch(
                    f"{_name(parameter)}: it was {_form(parameter)} in an earlier version, now {_describe(tensor)}"
                )
            tensors.append(tensor)
        extra = sum(map(len, models.values())) - len(tensors)
        if extra:
            known = {(parameter.model, parameter.name) for parameter in self.parameters}
            model, name = next((m, n) for m, state in models.items() for n in state if (m, n) not in known)
            raise WeightMismatch(f"{_full_name(model, name)}: it was not in an earlier version")
        return tensors

    def _views(self, data: Tensor) -> list[Tensor]:
        """Return the tensors in a version's bytes: one call of torch for each, since every version needs them."""
        typed = {dtype: data.view(dtype) for dtype in self._dtypes}
        views: list[Tensor] = []
        for (parameter, dtype, offset), strides in zip(self._entries, self._strides, strict=True):
            whole = typed[dtype]
            at = whole.storage_offset() + offset // dtype.itemsize
            views.append(whole.as_strided(parameter.shape, strides, at))
        return views


def _name(parameter: Parameter) -> str:
    return _full_name(parameter.model, parameter.name)


def _full_name(model: str, name: str) -> str:
    return name if model == POLICY else f"{model}.{name}"


def _form(parameter: Parameter) -> str:
    return f"{parameter.dtype} {list(parameter.shape)}"


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        layout = "meta" if value.is_meta else str(value.layout).removeprefix("torch.")
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} ({layout})"
    return f"a {type(value).__name__}"
