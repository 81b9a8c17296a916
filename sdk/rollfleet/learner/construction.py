"""From the arguments of `rollfleet.Collector` to a job and to what its workers have to do.

A job made from objects reads like any other, but names `rollfleet.learner.construction:given` where no words could say
what was given.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import gymnasium
import torch
from torch import nn

from rollfleet.data.replay_buffer import ReplayBuffer
from rollfleet.data.ring import Ring
from rollfleet.envs.factory import VectorEnv, make_env
from rollfleet.envs.spaces import supported
from rollfleet.envs.tensor_env import TensorVectorEnv
from rollfleet.errors import JobInvalid, PolicyInvalid
from rollfleet.learner.options import (
    CHOICES,
    SPEC_PATHS,
    Options,
    check_learner_options,
    check_names,
    check_together,
    device_of,
)
from rollfleet.policies.actor import Policy
from rollfleet.policies.factory import RandomPolicy
from rollfleet.processes.inline import InlineTransport
from rollfleet.schemes import scheme_of
from rollfleet.system.entrypoints import load
from rollfleet.transports.learner_side import Transport
from rollfleet.transports.workload import Space, Workload
from rollfleet_api.job import API_VERSION, KIND, CollectorJob, EnvSpec, Vectorization
from rollfleet_api.validation import JobErrors, parse_job

_GIVEN = "rollfleet.learner.construction:given"


def given(*_: object, **__: object) -> NoReturn:
    """Stands in a job for an environment or a policy that was given as an object.

    Raises:
        JobInvalid: Always: the object itself is not in the job.
    """
    raise JobInvalid("this environment or policy was given to rollfleet.Collector as an object; a job needs its name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Construction:
    """What a collector is made of.

    Attributes:
        workload: What its workers have to do.
        in_this_process: There is one worker, and it is here.
        acts_with_the_learners_policy: That worker's policy is the very object that the learner has.
    """

    workload: Workload
    in_this_process: bool
    acts_with_the_learners_policy: bool


def construct(env: Any, policy: Any, options: Options) -> Construction:
    """Check the arguments of `rollfleet.Collector`.

    Raises:
        JobInvalid: They contradict each other, or one of them is none. The message names the keyword.
    """
    check_names(options, Options, "rollfleet.Collector")
    check_learner_options(options)
    workers = options.get("workers", 0)
    here = workers == 0
    factory = options.get("policy_factory")
    if policy is not None and factory is not None:
        raise PolicyInvalid("policy and policy_factory are both given; write one of them")
    check_together(options)
    if "policy_device" in options and policy is not None and not isinstance(policy, nn.Module):
        raise JobInvalid(f"`policy_device` moves an nn.Module; a {type(policy).__name__} stays where it is, remove it")
    if "device" in options and not here and _ring(options) is not None:
        raise JobInvalid(
            "`device` is where batches are put, and with this `replay_buffer` workers write frames into the buffer "
            "themselves; remove `device`, and move what you sample"
        )
    job = _job(env, options, count=1 if here else workers)
    count = job.spec.workers
    envs = _for_each(env, count, "env")
    _check_envs(envs, job.spec.env, here=here)
    policies = _Policies(
        policy=policy,
        factories=None if factory is None else _for_each(_callables(factory), count, "policy_factory"),
        devices=_devices(options.get("policy_device"), count, "policy_device"),
        copies=not here,
    )
    if "policy_device" in options and policy is None and factory is None:
        raise JobInvalid("`policy_device` is where a policy acts, and there is none; pass a policy, or remove it")
    kwargs = _for_each(options.get("env_kwargs", {}), count, "env_kwargs")
    _check_kwargs(kwargs, envs)
    workload = Workload(
        job=job,
        make_env=_Envs(
            spec=job.spec.env,
            given=envs,
            kwargs=kwargs,
            devices=_devices(options.get("env_device"), count, "env_device"),
            no_cuda_sync=options.get("no_cuda_sync", False),
        ),
        make_policy=policies,
        scheme=options.get("weight_scheme") or scheme_of(job.spec.weights),
    )
    shared = here and isinstance(policy, nn.Module) and policies.leaves_it_where_it_is
    return Construction(workload=workload, in_this_process=here, acts_with_the_learners_policy=shared)


def start(env: Any, policy: Any, options: Options) -> tuple[Transport, CollectorJob, bool]:
    """Begin to collect: here, or in worker processes.

    Returns:
        Where batches come from; the job that the arguments amount to; whether the learner's own policy acts.

    Raises:
        JobInvalid: See `construct`; or an environment or policy cannot be made.
    """
    made = construct(env, policy, options)
    transport = _transport(made, options)
    return transport, made.workload.job, made.acts_with_the_learners_policy


def _transport(made: Construction, options: Options) -> Transport:
    device = None if (device := options.get("device")) is None else device_of(device, "device")
    no_cuda_sync = options.get("no_cuda_sync", False)
    if made.in_this_process:
        return InlineTransport(
            made.workload,
            device=device,
            no_cuda_sync=no_cuda_sync,
            acts_with_the_learners_policy=made.acts_with_the_learners_policy,
        )
    from rollfleet.processes.transport import ProcessesTransport

    return ProcessesTransport(
        made.workload,
        device=device,
        no_cuda_sync=no_cuda_sync,
        start_method=options.get("start_method", "spawn"),
        max_restarts_per_worker=options.get("max_restarts_per_worker", 0),
        quiet=options.get("quiet", True),
        ring=_ring(options),
    )


def _ring(options: Options) -> Ring | None:
    """Where workers write frames themselves: in a buffer that they can reach, frames that are done with as they are."""
    buffer = options.get("replay_buffer")
    return buffer.ring if isinstance(buffer, ReplayBuffer) and options.get("postproc") is None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Envs:
    """Makes a worker's environments."""

    spec: EnvSpec
    given: Sequence[Any]
    kwargs: Sequence[Mapping[str, object]]
    devices: Sequence[torch.device | None]
    no_cuda_sync: bool

    def __call__(self, worker: int) -> VectorEnv:
        env, kwargs = self.given[worker % len(self.given)], self.kwargs[worker % len(self.kwargs)]
        device = self.devices[worker % len(self.devices)]
        if isinstance(env, gymnasium.vector.VectorEnv):
            return env if device is None else TensorVectorEnv(env, device, self.no_cuda_sync)
        make = partial(make_env, device=device, no_cuda_sync=self.no_cuda_sync)
        update: dict[str, object] = {"kwargs": dict(kwargs)}
        if isinstance(env, str):
            return make(self.spec.model_copy(update=update | {"id": env, "entrypoint": None}))
        return make(self.spec.model_copy(update=update | {"id": None, "entrypoint": _GIVEN}), env)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Policies:
    """Makes a worker's policy."""

    policy: Any
    factories: Sequence[Callable[..., Any]] | None
    devices: Sequence[torch.device | None]
    copies: bool

    @property
    def leaves_it_where_it_is(self) -> bool:
        """Whether no device is asked for that the policy is not on."""
        device = self.devices[0]
        return device is None or all(
            tensor.device == device for tensor in (*self.policy.parameters(), *self.policy.buffers())
        )

    def __call__(self, worker: int, observation_space: Space, action_space: Space) -> Policy:
        device = self.devices[worker % len(self.devices)]
        policy: Any
        if self.factories is not None:
            policy = self.factories[worker % len(self.factories)](observation_space, action_space)
        elif self.policy is None:
            return RandomPolicy(supported(action_space, "action", "the random policy"))
        elif not isinstance(self.policy, nn.Module) or (not self.copies and self.leaves_it_where_it_is):
            policy = self.policy
        else:
            policy = copy.deepcopy(self.policy)
        if not callable(policy):
            raise PolicyInvalid(f"a policy is an nn.Module or another callable, not a {type(policy).__name__}")
        if device is not None and isinstance(policy, nn.Module):
            policy.to(device)
        made: Policy = policy
        return made


def _job(env: Any, options: Options, *, count: int) -> CollectorJob:
    spec: dict[str, Any] = {"policy": {"entrypoint": _GIVEN}, "mode": "Sync", "env": {}, "collect": {}}
    for keyword, value in options.items():
        if keyword in SPEC_PATHS:
            *outer, last = SPEC_PATHS[keyword]
            place = spec
            for name in outer:
                place = place.setdefault(name, {})
            place[last] = value.capitalize() if keyword in CHOICES and isinstance(value, str) else value
    if str(spec["env"].get("backend", "")).lower() == "envpool":
        spec["env"]["backend"] = "EnvPool"
    spec["workers"] = count
    first = env[0] if isinstance(env, list | tuple) and env else env
    spec["env"] |= {"id": first} if isinstance(first, str) else {"entrypoint": _GIVEN}
    if isinstance(first, gymnasium.vector.VectorEnv):
        spec["env"].setdefault("numEnvs", first.num_envs)
    try:
        return parse_job({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "collector"}, "spec": spec})
    except JobErrors as error:
        words = {f"spec.{'.'.join(path)}": keyword for keyword, path in SPEC_PATHS.items()}
        found = "; ".join(_in_python(str(problem), words) for problem in error.problems)
        raise JobInvalid(found) from None


def _in_python(problem: str, words: Mapping[str, str]) -> str:
    for path, keyword in sorted(words.items(), key=lambda each: -len(each[0])):
        problem = problem.replace(path, keyword).replace(f"`{path.rpartition('.')[2]}", f"`{keyword}")
    return problem


def _check_envs(envs: Sequence[Any], spec: EnvSpec, *, here: bool) -> None:
    for env in envs:
        if isinstance(env, gymnasium.vector.VectorEnv):
            if not here:
                raise JobInvalid(
                    "env: a VectorEnv that is already made cannot be moved into worker processes; give a function that "
                    "makes it"
                )
            if env.num_envs != spec.num_envs:
                raise JobInvalid(f"num_envs is {spec.num_envs}, but the VectorEnv given has {env.num_envs}")
            if spec.vectorization is not Vectorization.SYNC or spec.processes:
                raise JobInvalid("env: a VectorEnv steps itself; remove `vectorization` and `env_processes`")
        elif not isinstance(env, str) and not callable(env):
            raise JobInvalid(
                f"env: an id such as 'CartPole-v1', a function that makes an environment, or a VectorEnv, not a "
                f"{type(env).__name__}"
            )


def _check_kwargs(kwargs: Sequence[Any], envs: Sequence[Any]) -> None:
    for each in kwargs:
        if not isinstance(each, Mapping):
            raise JobInvalid(f"`env_kwargs` are names and values, not a {type(each).__name__}")
        if each and any(isinstance(env, gymnasium.vector.VectorEnv) for env in envs):
            raise JobInvalid("env: a VectorEnv that is there was made with its own arguments; remove `env_kwargs`")


def _for_each(value: Any, workers: int, name: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        return [value]
    if len(value) != workers:
        raise JobInvalid(
            f"`{name}` lists {len(value)}, but there are {workers} workers; write one for each, or one for all"
        )
    return value


def _devices(value: Any, workers: int, name: str) -> list[torch.device | None]:
    return [None if each is None else device_of(each, name) for each in _for_each(value, workers, name)]


def _callables(factory: Any) -> Any:
    """Factories by name, `module:callable`, are looked up where they are used."""
    if isinstance(factory, list | tuple):
        return [_callables(each) for each in factory]
    if isinstance(factory, str):
        return _ByName(factory)
    if not callable(factory):
        raise PolicyInvalid(f"policy_factory is called as factory(observation_space, action_space); it is {factory!r}")
    return factory


@dataclass(frozen=True, slots=True)
class _ByName:
    entrypoint: str

    def __call__(self, *args: Any) -> Any:
        try:
            return load(self.entrypoint)(*args)
        except ValueError as exc:
            raise PolicyInvalid(f"policy_factory: {exc}") from exc
