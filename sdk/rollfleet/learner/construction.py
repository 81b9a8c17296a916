"""Makes a job, and the work of its workers, from the arguments of `rollfleet.Collector`.

A job made from objects reads like any other. In place of an object it names `rollfleet.learner.construction:given`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import gymnasium
import torch
from pydantic.alias_generators import to_camel
from torch import nn

from rollfleet.arguments import as_json, for_each, shown
from rollfleet.envs.factory import VectorEnv, make_env
from rollfleet.envs.tensor_env import TensorVectorEnv
from rollfleet.envs.torchrl_env import TorchRLEnv, is_torchrl
from rollfleet.envs.vector import ServedVectorEnv
from rollfleet.errors import JobInvalid, PolicyInvalid
from rollfleet.learner.job_keywords import job_of
from rollfleet.learner.keywords import PLACES
from rollfleet.learner.options import Options, check_place
from rollfleet.policies.actor import Policy
from rollfleet.policies.factory import spaces_taken
from rollfleet.policies.lazy import initialise, initialise_as_learner
from rollfleet.policies.random_policy import random_policy
from rollfleet.processes.inline import InlineTransport
from rollfleet.schemes import scheme_of
from rollfleet.system.devices import device_of, same_device
from rollfleet.system.entrypoints import load
from rollfleet.transports.hooks import HOOKS, Hooks
from rollfleet.transports.learner_side import Transport
from rollfleet.transports.workload import Space, Workload
from rollfleet.weights.models import models_of
from rollfleet.weights.modules import copy_of, unwrapped
from rollfleet_api.job import CollectorJob, CollectorJobSpec, EnvSpec, Vectorization

if TYPE_CHECKING:
    from rollfleet.cluster.sources import Sources

STEPS_AT_ONCE = 128  # memory of a worker that collects whole trajectories
GIVEN = "rollfleet.learner.construction:given"


def given(*spaces: object, **__: object) -> NoReturn:
    """Stand in a job for an environment, or for a policy of two spaces, that was passed as an object.

    Raises:
        JobInvalid: Always: the job does not hold the object.
    """
    raise JobInvalid(f"the {'policy' if spaces else 'environment'} was passed as an object; a job needs its name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Construction:
    """The parts of a collector, before anything is started.

    Attributes:
        workload: The work of its workers.
        in_this_process: Whether its one worker runs in this process and thread.
        acts_with_the_learners_policy: Whether that worker's policy is the very object that the learner has.
        sources: The modules that a job on a cluster needs; None: its workers are on this machine.
    """

    workload: Workload
    options: Options
    in_this_process: bool
    acts_with_the_learners_policy: bool
    sources: "Sources | None" = None


def construct(env: Any, policy: Any, options: Options) -> Construction:
    """Check the arguments of `rollfleet.Collector`, and make a job of them.

    In this process the learner's own module acts only if each batch has a version of its own and nothing fills a buffer
    in the background. Else its weights could change within a version. A `weight_scheme` decides which weights act, so
    it needs a copy, too.

    Raises:
        JobInvalid: They contradict each other, or a value cannot be used. The message names the keyword.
    """
    policy = unwrapped(policy, compiled=False)
    inline, cluster, factory = options["workers"] == 0, options["cluster"], options["policy_factory"]
    check_place(options)
    values = _values(env, policy, options)
    job = job_of(values, _given_parts(env, options), {"name": "collector"})
    count = job.spec.workers
    envs = for_each(env, count, "env")
    _check_envs(envs, job.spec, inline=inline)
    own_acts = job.spec.weights.interval == 1 and options["replay_buffer"] is None and options["weight_scheme"] is None
    copies = not inline or not own_acts
    policies = _Policies(
        policy=policy if factory is None else None,
        factories=None if factory is None else _factories(factory, count),
        devices=_devices(options, count, "policy_device"),
        copies=copies,
    )
    _check_policy(policy, options)
    env_kwargs = options["env_kwargs"]
    kwargs = for_each({} if env_kwargs is None else env_kwargs, count, "env_kwargs")
    _check_kwargs(kwargs, envs)
    workload = Workload(
        job=job,
        make_env=_Envs(
            spec=job.spec.env,
            given=envs,
            kwargs=kwargs,
            devices=_devices(options, count, "env_device"),
            no_cuda_sync=options["no_cuda_sync"],
        ),
        make_policy=policies,
        scheme=options["weight_scheme"] or scheme_of(job.spec.weights),
        make_hooks=partial(
            Hooks.of, job.spec.collect, {name: options[name] for name in HOOKS if callable(options[name])}
        ),
    )
    if copies or factory is not None:
        initialise_as_learner(policy, partial(workload.make_env, 0))
    sources = None
    if cluster is not None:
        from rollfleet.learner.on_cluster import on_cluster

        job, sources = on_cluster(values, env, unwrapped(policy), options)
        workload = replace(workload, job=job)
    return Construction(
        workload=workload,
        options=options,
        in_this_process=inline,
        acts_with_the_learners_policy=(
            not copies and factory is None and isinstance(policy, nn.Module) and policies.stays_on_its_device
        ),
        sources=sources,
    )


def start(construction: Construction) -> tuple[Transport, CollectorJob]:
    """Start to collect, in this process, in worker processes or on a cluster.

    Returns:
        The transport that batches come from, and the job: on a cluster, as it was published.

    Raises:
        JobInvalid: An environment or a policy cannot be made, or there is no such start method.
        ClusterError: The cluster refuses the job, its workers do not start, or it cannot be reached.
    """
    job, options = construction.workload.job, construction.options
    if construction.in_this_process:
        inline = InlineTransport(
            construction.workload,
            device=options["device"],
            no_cuda_sync=options["no_cuda_sync"],
            acts_with_the_learners_policy=construction.acts_with_the_learners_policy,
        )
        return inline, job
    if construction.sources is not None:
        from rollfleet.learner.on_cluster import start_on_cluster

        return start_on_cluster(
            job,
            construction.sources,
            options["cluster"],
            device=options["device"],
            no_cuda_sync=options["no_cuda_sync"],
        )
    from rollfleet.processes.transport import ProcessesTransport

    processes = ProcessesTransport(
        construction.workload,
        device=options["device"],
        no_cuda_sync=options["no_cuda_sync"],
        start_method=options["start_method"],
        max_restarts_per_worker=options["max_restarts_per_worker"] or 0,
        quiet=options["quiet"],
        close_timeout_s=options["close_timeout_s"],
    )
    return processes, job


@dataclass(frozen=True, slots=True, kw_only=True)
class _Envs:
    """A function that makes a worker's environments."""

    spec: EnvSpec
    given: Sequence[Any]
    kwargs: Sequence[Mapping[str, object]]
    devices: Sequence[torch.device | None]
    no_cuda_sync: bool

    def __call__(self, worker: int) -> VectorEnv:
        env, kwargs = self.given[worker % len(self.given)], self.kwargs[worker % len(self.kwargs)]
        device = self.devices[worker % len(self.devices)]
        if isinstance(env, gymnasium.vector.VectorEnv):
            if device is None or (device.type == "cpu" and isinstance(env, ServedVectorEnv)):  # it makes no tensors
                return env
            return TensorVectorEnv(env, device, self.no_cuda_sync)
        if is_torchrl(env):
            return TorchRLEnv(env, device)  # type: ignore[return-value]
        make = partial(make_env, device=device, no_cuda_sync=self.no_cuda_sync)
        update: dict[str, object] = {"kwargs": dict(kwargs)}
        if isinstance(env, str):
            return make(self.spec.model_copy(update=update | {"id": env, "entrypoint": None}))
        return make(self.spec.model_copy(update=update | {"id": None, "entrypoint": GIVEN}), env)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Policies:
    """A function that makes a worker's policy."""

    policy: Any
    factories: Sequence[Callable[..., Any] | str] | None
    devices: Sequence[torch.device | None]
    copies: bool

    @property
    def stays_on_its_device(self) -> bool:
        """Whether the policy is already on the device asked for, or no device is asked for."""
        device = self.devices[0]
        return device is None or all(
            same_device(tensor.device, device) for tensor in (*self.policy.parameters(), *self.policy.buffers())
        )

    def __call__(self, worker: int, observation_space: Space, action_space: Space) -> Policy:
        device = self.devices[worker % len(self.devices)]
        policy: Any
        if self.factories is not None:
            policy = _called(self.factories[worker % len(self.factories)], observation_space, action_space)
        elif self.policy is None:
            return random_policy(action_space)
        elif not isinstance(self.policy, nn.Module) or (not self.copies and self.stays_on_its_device):
            policy = self.policy
        else:
            initialise(self.policy, observation_space, action_space)
            policy = copy_of(self.policy)
        if self.factories is not None and not callable(policy):
            raise PolicyInvalid(
                f"policy_factory returned {shown(policy)}; a policy is an nn.Module or another callable"
            )
        if device is not None and isinstance(policy, nn.Module):
            policy.to(device)
        initialise(policy, observation_space, action_space)
        built: Policy = policy
        return built


def _values(env: Any, policy: Any, options: Options) -> dict[str, Any]:
    """Return the values of keywords that are fields of a job, with those that follow from other arguments."""
    values = {name: options[name] for name in PLACES} | {"workers": options["workers"] or 1}
    if policy is None and options["policy_factory"] is not None and "weights_interval" not in options.given:
        values["weights_interval"] = 0  # its policies act with their own weights
    if (count := _envs_in(_first(env))) is not None and "num_envs" not in options.given:
        values["num_envs"] = count
    if isinstance(_first(env), ServedVectorEnv) and "vectorization" not in options.given:
        values["vectorization"] = Vectorization.ASYNC  # a step of a server may have a limit
    if values["frames_per_batch"] is None and values["trajs_per_batch"]:
        shares = values["workers"] if str(values["mode"]).lower() == "sync" else 1
        envs = values["num_envs"] if isinstance(values["num_envs"], int) else 1  # the job's model refuses others
        values["frames_per_batch"] = STEPS_AT_ONCE * shares * envs
    return values


def _given_parts(env: Any, options: Options) -> dict[str, Any]:
    """Return the fields of a job that stand for objects."""
    first = _first(env)
    made: dict[str, Any] = {"id": first} if isinstance(first, str) else {"entrypoint": GIVEN}
    if isinstance(kwargs := options["env_kwargs"], Mapping):
        with suppress(JobInvalid):  # objects have no place in a job
            made["kwargs"] = as_json(dict(kwargs), "env_kwargs")
    hooks = {to_camel(name): GIVEN for name in HOOKS if callable(options[name])}
    return {"env": made, "policy": {"entrypoint": GIVEN}, "collect": hooks}


def _first(env: Any) -> Any:
    return env[0] if isinstance(env, list | tuple) and env else env


def _check_policy(policy: Any, options: Options) -> None:
    factory, moves = options["policy_factory"], options["policy_device"] is not None
    if isinstance(policy, type):
        raise PolicyInvalid(f"policy is the class {policy.__name__}; pass an object of it, or `policy_factory=`")
    if policy is not None and not callable(policy):
        raise PolicyInvalid(f"a policy is an nn.Module or another callable, not a {type(policy).__name__}")
    unsent = policy is not None and not isinstance(policy, nn.Module) and not any(models_of(policy).values())
    if factory is not None and unsent and options["weight_scheme"] is None:
        raise JobInvalid(f"`policy_factory`: the policy {shown(policy)} has no weights for its policies; remove it")
    if factory is not None or isinstance(policy, nn.Module):
        return
    if moves:
        raise JobInvalid(
            f"`policy_device` requires an nn.Module or a `policy_factory`, got the policy {shown(policy)}; remove it"
        )
    if options["evaluation"] is not None:
        raise JobInvalid(
            f"`evaluation` needs a policy with weights, an nn.Module or a `policy_factory`, and not {shown(policy)}"
        )


def _check_envs(envs: Sequence[Any], job: CollectorJobSpec, *, inline: bool) -> None:
    spec = job.env
    for env in envs:
        if (count := _envs_in(env)) is not None:
            kind = "an EnvBase" if is_torchrl(env) else "a VectorEnv"
            if not inline:
                raise JobInvalid(
                    f"env: {kind} object cannot be moved into worker processes; pass a function that makes it"
                )
            if job.evaluation is not None:
                raise JobInvalid("env: `evaluation` needs environments of its own; pass a function that makes them")
            if count != spec.num_envs:
                raise JobInvalid(f"num_envs is {spec.num_envs}, but the {kind.split()[1]} has {count}")
            stepped = Vectorization.ASYNC if isinstance(env, ServedVectorEnv) else Vectorization.SYNC
            if spec.vectorization is not stepped or spec.processes:
                raise JobInvalid(f"env: {kind} steps itself; remove `vectorization` and `env_processes`")
        elif not isinstance(env, str) and not callable(env):
            raise JobInvalid(
                f"env: an id such as 'CartPole-v1', a function that makes an environment, a VectorEnv, or an EnvBase "
                f"of TorchRL, not a {type(env).__name__}"
            )


def _envs_in(env: Any) -> int | None:
    """Return the number of environments in an object that steps itself; None: it is no such object."""
    if isinstance(env, gymnasium.vector.VectorEnv):
        return env.num_envs
    return math.prod(env.batch_size) if is_torchrl(env) else None


def _check_kwargs(kwargs: Sequence[Any], envs: Sequence[Any]) -> None:
    for each in kwargs:
        if not isinstance(each, Mapping):
            raise JobInvalid(f"`env_kwargs` must map names to values, not be a {type(each).__name__}")
        if wrong := [name for name in each if not isinstance(name, str) or not name.isidentifier()]:
            raise JobInvalid(
                f"`env_kwargs` must map names of keyword arguments to values; {shown(wrong[0])} is no name"
            )
        if each and any(_envs_in(env) is not None for env in envs):
            raise JobInvalid("env: a VectorEnv or EnvBase object has its arguments already; remove `env_kwargs`")


def _devices(options: Options, workers: int, name: str) -> list[torch.device | None]:
    value = options[name] if options["cluster"] is None else None  # pods may have devices that this machine lacks
    return [None if each is None else device_of(each, name) for each in for_each(value, workers, name)]


def _factories(factory: Any, workers: int) -> Sequence[Any]:
    factories = for_each(factory, workers, "policy_factory")
    for each in factories:
        if not isinstance(each, str):
            _check_factory(each)
    return factories


def _called(factory: Any, *spaces: Space) -> Any:
    """Call a policy factory, which may be named `module:callable`: it is imported on the worker."""
    if isinstance(factory, str):
        try:
            factory = load(factory)
        except ValueError as exc:
            raise PolicyInvalid(f"policy_factory: {exc}") from exc
    return factory(*spaces[: _check_factory(factory)])


def _check_factory(factory: Any) -> int:
    """Return the number of spaces that a policy factory takes."""
    if isinstance(factory, nn.Module):
        raise PolicyInvalid("policy_factory makes a policy, and this nn.Module is one; pass it as `policy`")
    if not callable(factory) or (taken := spaces_taken(factory)) is None:
        raise PolicyInvalid(
            f"policy_factory is called as factory(observation_space, action_space) or factory(); {shown(factory)} "
            f"cannot be"
        )
    return taken
