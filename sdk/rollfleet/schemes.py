"""Which weights travel, and in which form: the seam for whoever knows better than "all of them, as they are"."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from rollfleet.errors import JobInvalid
from rollfleet.system.entrypoints import load
from rollfleet.weights.layout import Snapshot, State, WeightLayout
from rollfleet.weights.models import models_of
from rollfleet_api.job import Precision, WeightsSpec
from rollfleet_api.messages import Parameter


class Layout(Protocol):
    """The form of one policy's weights: a fixed number of bytes. `rollfleet.weights.layout.WeightLayout` is one."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What lies in the bytes, for the other side to compare; none: nothing travels."""
        ...

    @property
    def total_bytes(self) -> int:
        """Size of a version."""
        ...

    def snapshot(self, models: Mapping[str, State]) -> Snapshot:
        """The bytes of the models as they are now."""
        ...

    def release(self, snapshot: Snapshot) -> None:
        """This snapshot's bytes were sent."""
        ...

    def load(self, data: Tensor, models: Mapping[str, State]) -> None:
        """Bytes, uint8 `[total_bytes]`, into the models, in place."""
        ...

    def states(self, data: Tensor) -> dict[str, State]:
        """The tensors that bytes hold."""
        ...

    def check(self, parameters: tuple[Parameter, ...], *, theirs: str) -> None:
        """Compare what the other side has.

        Raises:
            WeightMismatch: It differs; names the first parameter that does.
        """
        ...


class WeightScheme(Protocol):
    """How a policy's weights travel. The learner and its workers must have the same."""

    def select(self, policy: Any) -> dict[str, State]:
        """The tensors that travel, by model and name, as they are: nothing is copied."""
        ...

    def layout(self, models: Mapping[str, State]) -> Layout:
        """Their form."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """All parameters and buffers, in their order.

    Attributes:
        precision: `bfloat16` narrows float32 and float64 on the way.
    """

    precision: Precision = Precision.FLOAT32

    def select(self, policy: Any) -> dict[str, State]:
        """See `WeightScheme`."""
        return models_of(policy)

    def layout(self, models: Mapping[str, State]) -> WeightLayout:
        """See `WeightScheme`."""
        return WeightLayout(models, self.precision)


@dataclass(frozen=True, slots=True)
class Trained:
    """Only what training changes: parameters that require a gradient, and buffers. What is frozen must be there.

    Attributes:
        precision: See `Whole`.
    """

    precision: Precision = Precision.FLOAT32

    def select(self, policy: Any) -> dict[str, State]:
        """See `WeightScheme`."""
        models = getattr(policy, "models", None)
        modules = models if isinstance(models, Mapping | nn.ModuleDict) else {next(iter(models_of(policy))): policy}
        selected = models_of(policy)
        for name, module in modules.items():
            if isinstance(module, nn.Module):
                frozen = {key for key, parameter in module.named_parameters() if not parameter.requires_grad}
                selected[name] = {key: value for key, value in selected[name].items() if key not in frozen}
        return selected

    def layout(self, models: Mapping[str, State]) -> WeightLayout:
        """See `WeightScheme`."""
        return WeightLayout(models, self.precision)


def scheme_of(spec: WeightsSpec) -> WeightScheme:
    """The scheme that a job names: `weights.scheme` is called with `weights.precision`.

    Raises:
        JobInvalid: There is no such thing.
    """
    if spec.scheme is None:
        return Whole(spec.precision)
    try:
        made: Any = load(spec.scheme)(spec.precision)
    except Exception as exc:
        raise JobInvalid(f"weights.scheme {spec.scheme!r}: {type(exc).__name__}: {exc}") from exc
    scheme: WeightScheme = made
    return scheme
