"""The `policy` of a job: the policy that its workers run."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rollfleet_api.fields import Device, Entrypoint, FreeForm, Model, Rule


class Activation(StrEnum):
    """The activation function after each hidden layer."""

    TANH = "Tanh"
    RELU = "Relu"


class MlpSpec(Model):
    """The built-in actor-critic: two multi-layer perceptrons, one for actions, one for values."""

    hidden: list[Annotated[int, Field(ge=1, le=65_536)]] = Field(
        default=[64, 64],
        max_length=16,
        description="Units of each hidden layer; `[]`: a linear policy. Default: [64, 64].",
    )
    activation: Activation = Field(
        default=Activation.TANH, strict=False, description="The activation after each hidden layer. Default: Tanh."
    )


class RandomSpec(Model):
    """The built-in policy that samples the action space uniformly. It has no settings and needs no weights."""


class PolicySpec(Model):
    """The policy that workers run.

    Example:
        >>> PolicySpec(mlp=MlpSpec(hidden=[32])).device
        'cpu'
    """

    RULES = (
        Rule(
            cel="[has(self.entrypoint), has(self.mlp), has(self.random)].filter(given, given).size() == 1",
            message="a job has one policy; "
            "write exactly one of `entrypoint: my_pkg.policy:make`, `mlp: {{}}` and `random: {{}}`",
            holds=lambda policy: [policy.entrypoint, policy.mlp, policy.random].count(None) == 2,
        ),
        Rule(
            cel="!has(self.kwargs) || has(self.entrypoint)",
            message="{kwargs} need an {entrypoint}; remove them",
            # The API server sees whether `kwargs` is present, not whether it is empty: the same rule here.
            holds=lambda policy: "kwargs" not in policy.model_fields_set or policy.entrypoint is not None,
            field="kwargs",
        ),
    )

    entrypoint: Entrypoint | None = Field(
        default=None,
        description="A `module:callable` that makes the policy on the worker from the observation space, the action "
        "space and `kwargs`, e.g. `my_pkg.policy:make`. Exactly one of `entrypoint`, `mlp` and `random`.",
        examples=["my_pkg.policy:make"],
    )
    kwargs: FreeForm = Field(default={}, description="Keyword arguments of `entrypoint`.")
    mlp: MlpSpec | None = Field(default=None, description="The built-in actor-critic; `{}` uses its defaults.")
    random: RandomSpec | None = Field(default=None, description="The built-in random policy: `{}`.")
    device: Device = Field(
        default="cpu", description="The device of the policy on a worker: `cpu`, `cuda`, `cuda:<index>` or `mps`."
    )
