"""The seam for the weights that a learner sends and their form: `WeightScheme`, with `Whole` and `Trained`.

A job names a scheme by its entrypoint in `weights.scheme`; a new scheme needs no other change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from rollfleet.arguments import shown
from rollfleet.errors import JobInvalid
from rollfleet.system.entrypoints import load
from rollfleet.weights.layout import Snapshot, State, WeightLayout
from rollfleet.weights.models import models_of
from rollfleet.weights.modules import sources_of
from rollfleet_api.job import Precision, WeightsSpec
from rollfleet_api.transfers import Flags, Parameter


class Layout(Protocol):
    """The form of one policy's weights in a fixed number of bytes, such as `rollfleet.weights.layout.WeightLayout`."""

    flags: Flags
    """The `training` flags of the next version. The learner sets them, and a snapshot has them."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters in the bytes, for workers to compare; empty: no weights are sent."""

    @property
    def total_bytes(self) -> int:
        """The size of a version."""

    def snapshot(self, models: Mapping[str, State], into: Tensor | None = None) -> Snapshot:
        """Copy the models' current tensors into bytes: those of `into`, uint8 `[total_bytes]`; None: new ones."""

    def load(self, data: Tensor, models: Mapping[str, State]) -> None:
        """Copy bytes, uint8 `[total_bytes]`, into the models, in place."""

    def states(self, data: Tensor) -> dict[str, State]:
        """Return the tensors in bytes, by model and name."""

    def check(self, parameters: tuple[Parameter, ...]) -> None:
        """Compare the learner's parameters with this layout, a worker's.

        Raises:
            WeightMismatch: They differ; names the first difference.
        """


class WeightScheme(Protocol):
    """Selects the weights that a learner sends, and their form. The learner and its workers must use the same scheme.

    Example:
        A scheme that sends one model of several, such as the actor of an `ActorCritic` without its critic:

        >>> from torch import nn
        >>> from rollfleet.weights.layout import WeightLayout, state_of
        >>> class OnlyActor:
        ...     def select(self, policy):
        ...         return {"actor": state_of(policy.actor)}
        ...     def layout(self, models):
        ...         return WeightLayout(models)
        >>> policy = nn.ModuleDict({"actor": nn.Linear(4, 2), "critic": nn.Linear(4, 1)})
        >>> scheme: WeightScheme = OnlyActor()
        >>> [parameter.name for parameter in scheme.layout(scheme.select(policy)).parameters]
        ['weight', 'bias']
    """

    def select(self, policy: Any) -> dict[str, State]:
        """Return the tensors to send, by model and name. Nothing is copied."""

    def layout(self, models: Mapping[str, State]) -> Layout:
        """Return the form of these tensors in bytes."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Sends all parameters and buffers, in their order.

    Attributes:
        precision: "bfloat16" narrows float32 and float64 on the wire, to half the bytes of float32.

    Raises:
        JobInvalid: The precision is unknown.

    Example:
        >>> policy = nn.Linear(4, 2)
        >>> scheme = Whole("bfloat16")
        >>> [parameter.dtype for parameter in scheme.layout(scheme.select(policy)).parameters]
        ['bfloat16', 'bfloat16']
    """

    precision: str = Precision.FLOAT32

    def __post_init__(self) -> None:
        if self.precision not in list(Precision):
            known = ", ".join(repr(each.value) for each in Precision)
            raise JobInvalid(f"precision: expected one of {known}, got {shown(self.precision)}")

    def select(self, policy: Any) -> dict[str, State]:
        """See `WeightScheme`."""
        return models_of(policy)

    def layout(self, models: Mapping[str, State]) -> WeightLayout:
        """See `WeightScheme`."""
        return WeightLayout(models, self.precision)


@dataclass(frozen=True, slots=True)
class Trained(Whole):
    """Sends only weights that training changes: parameters that require a gradient, and buffers.

    Workers must already have the frozen parameters.

    Example:
        >>> policy = nn.Linear(4, 2)
        >>> policy.weight.requires_grad_(False) is policy.weight
        True
        >>> [name for state in Trained().select(policy).values() for name in state]
        ['bias']
    """

    def select(self, policy: Any) -> dict[str, State]:
        """See `WeightScheme`."""
        selected = models_of(policy)
        for name, module in sources_of(policy).items():
            if isinstance(module, nn.Module):
                named = module.named_parameters(remove_duplicate=False)  # a tied one has two names
                frozen = {key for key, parameter in named if not parameter.requires_grad}
                selected[name] = {key: value for key, value in selected[name].items() if key not in frozen}
        return selected


def scheme_of(spec: WeightsSpec) -> WeightScheme:
    """Return a job's scheme: `weights.scheme` is called with `weights.precision`.

    Raises:
        JobInvalid: The scheme cannot be loaded, or its call failed.
    """
    if spec.scheme is None:
        return Whole(spec.precision)
    try:
        return load(spec.scheme)(spec.precision)  # type: ignore[return-value]
    except Exception as exc:
        raise JobInvalid(f"weights.scheme {spec.scheme!r}: {type(exc).__name__}: {exc}") from exc
