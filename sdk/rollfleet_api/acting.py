"""What a worker acts in, and by what: its environments and its policy."""

from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from rollfleet_api.fields import Entrypoint, FreeForm, Model, matches, matching_text, refusal, rule

MAX_ENVS: Final = 65_536
"""Environments of one worker."""


class Vectorization(StrEnum):
    """How a worker steps its environments."""

    SYNC = "Sync"
    ASYNC = "Async"
    NATIVE = "Native"


class Backend(StrEnum):
    """What implements the environments."""

    GYMNASIUM = "Gymnasium"
    ENVPOOL = "EnvPool"


class Activation(StrEnum):
    """What follows each hidden layer."""

    TANH = "Tanh"
    RELU = "Relu"


# --- Environment -----------------------------------------------------------------------------------------------------

ENV_ID_PATTERN: Final = r"^([A-Za-z0-9_.]+:)?([A-Za-z0-9_-]+/)?[A-Za-z0-9_.-]+$"
MAX_ENV_ID_LENGTH: Final = 253
_EXPECTED_ENV_ID: Final = "expected one such as `CartPole-v1` or `ALE/Pong-v5`"


def _env_id(text: str) -> str:
    if not matches(text, ENV_ID_PATTERN, MAX_ENV_ID_LENGTH):
        raise refusal(("", f"`{text}` is no environment id; {_EXPECTED_ENV_ID}"))
    return text


EnvId = Annotated[str, AfterValidator(_env_id), matching_text(ENV_ID_PATTERN, MAX_ENV_ID_LENGTH, _EXPECTED_ENV_ID)]
"""An id of Gymnasium's registry: `[module:][namespace/]name[-vN]`."""

_ONE_ENV = "write either `id` (a registered environment, e.g. `CartPole-v1`) or `entrypoint` (e.g. `my_pkg.envs:make`)"
_NATIVE_WRAPPERS = (
    "wrappers wrap single environments, and `vectorization: Native` has none; "
    "remove `wrappers`, or write `vectorization: Sync` or `Async`"
)
_ENVPOOL_ALONE = (
    "`backend: EnvPool` has its own environments and steps them on its own threads; write their `id`, and remove "
    "`entrypoint`, `wrappers`, `vectorization` and `processes`"
)
_PROCESSES_OF_ASYNC = (
    "`processes` are what `vectorization: Async` spreads the environments over; write that, or remove it"
)
_IDLE_PROCESSES = "more than `numEnvs`: each process needs an environment"


DEVICE_PATTERN: Final = r"^(cpu|mps|cuda(:[0-9]{1,3})?)$"
MAX_DEVICE_LENGTH: Final = 16
_EXPECTED_DEVICE: Final = "expected `cpu`, `cuda`, `cuda:<index>` or `mps`"


def _device(text: str) -> str:
    if not matches(text, DEVICE_PATTERN, MAX_DEVICE_LENGTH):
        raise refusal(("", f"`{text}` is no device; {_EXPECTED_DEVICE}"))
    return text


Device = Annotated[str, AfterValidator(_device), matching_text(DEVICE_PATTERN, MAX_DEVICE_LENGTH, _EXPECTED_DEVICE)]
"""A torch device by name."""


class WrapperSpec(Model):
    """A wrapper around each single environment."""

    entrypoint: Entrypoint = Field(
        description="The wrapper, as `module:callable`; it is called with the environment and `kwargs`.",
        examples=["gymnasium.wrappers:ClipAction"],
    )
    kwargs: FreeForm = Field(default={}, description="Keyword arguments of the wrapper.")


class EnvSpec(Model):
    """The environments of each worker."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule("has(self.id) || has(self.entrypoint)", f"no environment is named; {_ONE_ENV}"),
                rule("!(has(self.id) && has(self.entrypoint))", f"both `id` and `entrypoint` are given; {_ONE_ENV}"),
                rule(
                    "self.vectorization != 'Native' || !has(self.wrappers) || size(self.wrappers) == 0",
                    _NATIVE_WRAPPERS,
                    field=".wrappers",
                ),
                rule(
                    "self.backend != 'EnvPool' || (!has(self.entrypoint) && self.vectorization == 'Sync' && "
                    "self.processes == 0 && (!has(self.wrappers) || size(self.wrappers) == 0))",
                    _ENVPOOL_ALONE,
                    field=".backend",
                ),
                rule(
                    "self.backend == 'EnvPool' || self.processes == 0 || self.vectorization == 'Async'",
                    _PROCESSES_OF_ASYNC,
                    field=".processes",
                ),
                rule("self.processes <= self.numEnvs", _IDLE_PROCESSES, field=".processes"),
            ]
        }
    )

    id: EnvId | None = Field(
        default=None,
        description="A registered Gymnasium environment, e.g. `CartPole-v1`. Exactly one of `id` and `entrypoint`.",
        examples=["CartPole-v1"],
    )
    entrypoint: Entrypoint | None = Field(
        default=None,
        description="A `module:callable` that makes one environment from `kwargs` (with `vectorization: Native` a "
        "whole `VectorEnv`, from `num_envs` and `kwargs`), e.g. `my_pkg.envs:make`.",
        examples=["my_pkg.envs:make"],
    )
    num_envs: int = Field(default=1, ge=1, le=MAX_ENVS, description="Copies of the environment in each worker.")
    kwargs: FreeForm = Field(default={}, description="Keyword arguments of the environment.")
    wrappers: list[WrapperSpec] = Field(
        default=[], max_length=32, description="Wrappers around each single environment, the innermost first."
    )
    vectorization: Vectorization = Field(
        default=Vectorization.SYNC,
        strict=False,
        description="How a worker steps its environments: `Sync` one after the other in the worker's process, `Async` "
        "in processes of their own, `Native` by the environment's own vector implementation.",
    )
    processes: int = Field(
        default=0,
        ge=0,
        le=MAX_ENVS,
        description="Processes that `vectorization: Async` spreads the environments over, each stepping its share one "
        "after the other; 0: one for each environment.",
    )
    backend: Backend = Field(
        default=Backend.GYMNASIUM,
        strict=False,
        description="What implements the environments: `Gymnasium`, or `EnvPool`, which has its own, in C++; `id` is "
        "then one of EnvPool's, e.g. `Pong-v5`.",
    )
    device: Device | None = Field(
        default=None,
        description="Where environments are that make tensors: `cpu`, `cuda`, `cuda:<index>` or `mps`; actions are put "
        "there. Default: they make arrays.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        found = []
        if self.id is None and self.entrypoint is None:
            found.append(("", f"no environment is named; {_ONE_ENV}"))
        if self.id is not None and self.entrypoint is not None:
            found.append(("", f"both `id` and `entrypoint` are given; {_ONE_ENV}"))
        if self.vectorization is Vectorization.NATIVE and self.wrappers:
            found.append(("wrappers", _NATIVE_WRAPPERS))
        if self.backend is Backend.ENVPOOL:
            if self.entrypoint or self.wrappers or self.processes or self.vectorization is not Vectorization.SYNC:
                found.append(("backend", _ENVPOOL_ALONE))
        elif self.processes and self.vectorization is not Vectorization.ASYNC:
            found.append(("processes", _PROCESSES_OF_ASYNC))
        if self.processes > self.num_envs:
            found.append(("processes", _IDLE_PROCESSES))
        if found:
            raise refusal(*found)
        return self


# --- Policy ----------------------------------------------------------------------------------------------------------

_ONE_POLICY = "write exactly one of `entrypoint: my_pkg.policy:make`, `mlp: {}` and `random: {}`"
_KWARGS_OF_ENTRYPOINT = "`kwargs` are for `entrypoint` alone; remove them"


class MlpSpec(Model):
    """The built-in actor-critic: two multi-layer perceptrons, one for actions, one for values."""

    hidden: list[Annotated[int, Field(ge=1, le=65_536)]] = Field(
        default=[64, 64], max_length=16, description="Units of each hidden layer; an empty list makes a linear policy."
    )
    activation: Activation = Field(default=Activation.TANH, strict=False, description="What follows each hidden layer.")


class RandomSpec(Model):
    """The built-in policy that samples the action space uniformly. It has no settings and needs no weights."""


class PolicySpec(Model):
    """What the workers act by."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "[has(self.entrypoint), has(self.mlp), has(self.random)].filter(given, given).size() == 1",
                    f"the policy must be one thing; {_ONE_POLICY}",
                ),
                rule("!has(self.kwargs) || has(self.entrypoint)", _KWARGS_OF_ENTRYPOINT, field=".kwargs"),
            ]
        }
    )

    entrypoint: Entrypoint | None = Field(
        default=None,
        description="A `module:callable` that makes the policy on the worker, from the observation space, the action "
        "space and `kwargs`, e.g. `my_pkg.policy:make`. Exactly one of `entrypoint`, `mlp` and `random`.",
        examples=["my_pkg.policy:make"],
    )
    kwargs: FreeForm = Field(default={}, description="Keyword arguments of `entrypoint`.")
    mlp: MlpSpec | None = Field(default=None, description="The built-in actor-critic; `{}` takes its defaults.")
    random: RandomSpec | None = Field(default=None, description="The built-in random policy: `{}`.")
    device: Device = Field(
        default="cpu", description="Where the policy runs on the worker: `cpu`, `cuda`, `cuda:<index>` or `mps`."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        choices = {"entrypoint": self.entrypoint, "mlp": self.mlp, "random": self.random}
        given = [f"`{name}`" for name, choice in choices.items() if choice is not None]
        found = []
        if not given:
            found.append(("", f"no policy is named; {_ONE_POLICY}"))
        elif len(given) > 1:
            found.append(("", f"{' and '.join(given)} are given; {_ONE_POLICY}"))
        # The API server can only see whether `kwargs` is there, not whether it is empty: the same rule here.
        if "kwargs" in self.model_fields_set and self.entrypoint is None:
            found.append(("kwargs", _KWARGS_OF_ENTRYPOINT))
        if found:
            raise refusal(*found)
        return self
