"""The `env` of a job: the environments of each worker."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from rollfleet_api.env_servers import EnvServersSpec
from rollfleet_api.fields import Device, Entrypoint, FreeForm, Matching, Model, Rule

MAX_ENVS: Final = 65_536
"""The most environments of one worker."""

EnvId = Annotated[
    str,
    Matching(
        r"^([A-Za-z0-9_.]+:)?([A-Za-z0-9_-]+/)?[A-Za-z0-9_.-]+$",
        253,
        "expected an environment id, e.g. `CartPole-v1` or `ALE/Pong-v5`",
    ),
]
"""An id in Gymnasium's registry: `[module:][namespace/]name[-vN]`."""

MethodName = Annotated[str, Matching(r"^([A-Za-z][A-Za-z0-9_]*)?$", 253, "expected a method's name, e.g. `set_task`")]

_ONE_ENV = "write either {id} (a registered environment, e.g. `CartPole-v1`) or {entrypoint} (e.g. `my_pkg.envs:make`)"


class Vectorization(StrEnum):
    """The way in which a worker steps its environments."""

    SYNC = "Sync"
    ASYNC = "Async"
    NATIVE = "Native"


class Backend(StrEnum):
    """The library that implements the environments."""

    GYMNASIUM = "Gymnasium"
    ENVPOOL = "EnvPool"
    TORCHRL = "TorchRL"


class WrapperSpec(Model):
    """A wrapper around each single environment."""

    entrypoint: Entrypoint = Field(
        description="The wrapper, as `module:callable`. It is called with the environment and `kwargs`.",
        examples=["gymnasium.wrappers:ClipAction"],
    )
    kwargs: FreeForm = Field(default={}, description="Keyword arguments of the wrapper.")


class EnvSpec(Model):
    """The environments of each worker.

    Example:
        >>> EnvSpec(id="CartPole-v1", num_envs=8).vectorization.value
        'Sync'
    """

    RULES = (
        Rule(
            cel="has(self.id) || has(self.entrypoint)",
            message=f"the environment is missing; {_ONE_ENV}",
            holds=lambda env: env.id is not None or env.entrypoint is not None,
        ),
        Rule(
            cel="!(has(self.id) && has(self.entrypoint))",
            message="both {id} and {entrypoint} are given; " + _ONE_ENV,
            holds=lambda env: env.id is None or env.entrypoint is None,
        ),
        Rule(
            cel="self.vectorization != 'Native' || !has(self.wrappers) || size(self.wrappers) == 0",
            message="wrappers wrap single environments, which {vectorization:Native} does not have; "
            "remove {wrappers}, or write {vectorization:Sync} or `Async`",
            holds=lambda env: env.vectorization is not Vectorization.NATIVE or not env.wrappers,
            field="wrappers",
        ),
        Rule(
            cel="self.backend != 'EnvPool' || (!has(self.entrypoint) && self.vectorization == 'Sync' && "
            "self.processes == 0 && (!has(self.wrappers) || size(self.wrappers) == 0))",
            message="EnvPool makes its own environments, in its own threads; write an {id} of EnvPool, such as "
            "`Pong-v5`, and remove {entrypoint}, {wrappers}, {vectorization} and {processes}",
            holds=lambda env: (
                env.backend is not Backend.ENVPOOL
                or not (env.entrypoint or env.wrappers or env.processes or env.vectorization is not Vectorization.SYNC)
            ),
            field="backend",
        ),
        Rule(
            cel="self.backend != 'TorchRL' || has(self.entrypoint)",
            message="TorchRL's environments come from an entrypoint; write {entrypoint} in place of {id}",
            holds=lambda env: env.backend is not Backend.TORCHRL or env.entrypoint is not None,
            field="backend",
        ),
        Rule(
            cel="self.backend == 'EnvPool' || self.processes == 0 || self.vectorization == 'Async'",
            message="only {vectorization:Async} uses processes; write that, or remove {processes}",
            holds=lambda env: (
                env.backend is Backend.ENVPOOL or not env.processes or env.vectorization is Vectorization.ASYNC
            ),
            field="processes",
        ),
        Rule(
            cel="self.processes <= self.numEnvs",
            message="must not exceed {numEnvs}: each process needs an environment",
            holds=lambda env: env.processes <= env.num_envs,
            field="processes",
        ),
        Rule(
            cel="!has(self.servers) || (self.backend == 'Gymnasium' && self.vectorization == 'Async' && "
            "self.processes == 0)",
            message="servers hold single environments of Gymnasium, in place of processes; write "
            "{vectorization:Async}, and remove {backend} and {processes}",
            holds=lambda env: (
                env.servers is None
                or (env.backend is Backend.GYMNASIUM and env.vectorization is Vectorization.ASYNC and not env.processes)
            ),
            field="servers",
        ),
        Rule(
            cel="!has(self.servers) || self.servers.replicas <= self.numEnvs",
            message="must not exceed {numEnvs}: each server needs an environment",
            holds=lambda env: env.servers is None or env.servers.replicas <= env.num_envs,
            field="servers.replicas",
        ),
    )

    id: EnvId | None = Field(
        default=None,
        description="A registered Gymnasium environment, e.g. `CartPole-v1`. Exactly one of `id` and `entrypoint`.",
        examples=["CartPole-v1"],
    )
    entrypoint: Entrypoint | None = Field(
        default=None,
        description="A `module:callable` that makes one environment from `kwargs`, e.g. `my_pkg.envs:make`. With "
        "`vectorization: Native` it makes a whole `VectorEnv` from `num_envs` and `kwargs`.",
        examples=["my_pkg.envs:make"],
    )
    num_envs: int = Field(default=1, ge=1, le=MAX_ENVS, description="Number of environments in each worker.")
    kwargs: FreeForm = Field(default={}, description="Keyword arguments of the environment.")
    wrappers: list[WrapperSpec] = Field(
        default=[], max_length=32, description="Wrappers around each single environment, innermost first."
    )
    vectorization: Vectorization = Field(
        default=Vectorization.SYNC,
        strict=False,
        description="How a worker steps its environments. `Sync`: one after the other in the worker's process. "
        "`Async`: in subprocesses. `Native`: by the environment's own vector implementation.",
    )
    processes: int = Field(
        default=0,
        ge=0,
        le=MAX_ENVS,
        description="Number of subprocesses for `vectorization: Async`. Each steps an equal part of the environments, "
        "one after the other. 0: one subprocess for each environment.",
    )
    servers: EnvServersSpec | None = Field(
        default=None,
        description="Pods for the environments, in place of subprocesses. Default: none.",
        examples=["{replicas: 4}"],
    )
    backend: Backend = Field(
        default=Backend.GYMNASIUM,
        strict=False,
        description="The library that implements the environments: `Gymnasium`, `EnvPool` (C++) or `TorchRL`. With "
        "`EnvPool`, `id` is an EnvPool id, e.g. `Pong-v5`. With `Gymnasium`, an entrypoint may return a "
        "TorchRL environment, too.",
    )
    settings_method: MethodName = Field(
        default="",
        description="The method of an environment that takes the settings of the learner's `set_env`, a dict, before "
        "each reset. A `VectorEnv` and a TorchRL environment take them once. Default: `reset(options=...)` of each "
        "single environment.",
        examples=["set_task"],
    )
    device: Device | None = Field(
        default=None,
        description="The device of environments that return tensors: `cpu`, `cuda`, `cuda:<index>` or `mps`. Actions "
        "are moved there. Default: the environments return arrays.",
    )
