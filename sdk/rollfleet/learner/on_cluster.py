"""Makes a CollectorJob for a cluster from the arguments of `rollfleet.Collector`, and runs it."""

from collections.abc import Mapping
from contextlib import ExitStack
from inspect import Parameter, signature
from typing import Any, Final

import torch
from pydantic.alias_generators import to_camel
from torch import nn

from rollfleet.arguments import as_json
from rollfleet.cluster.settings import Cluster
from rollfleet.cluster.sources import Named, Sources
from rollfleet.cluster.submission import Submission
from rollfleet.envs.job_fields import env_fields, new_name
from rollfleet.errors import JobInvalid, PolicyInvalid
from rollfleet.learner.job_keywords import job_of
from rollfleet.learner.options import Options
from rollfleet.nats.job_source import read_job
from rollfleet.nats.opening import open_through
from rollfleet.nats.transport import NatsTransport
from rollfleet.policies.random_policy import RandomPolicy
from rollfleet.schemes import WeightScheme
from rollfleet.transports.hooks import HOOKS
from rollfleet.transports.learner_side import Transport
from rollfleet_api.job import CollectorJob
from rollfleet_api.validation import parse_job

_ENTRYPOINTS: Final = "rollfleet.learner.worker_entrypoints"
_SPACES: Final = ("observation_space", "action_space")


def on_cluster(values: Mapping[str, Any], env: Any, policy: Any, options: Options) -> tuple[CollectorJob, Sources]:
    """Return a job whose workers run in pods, and the source that they need. Its namespace is not set.

    Args:
        values: Values of the keywords that are fields of a job.
        env: The environment, as the collector takes it.
        policy: The policy, too.
        options: The collector's options.

    Raises:
        JobInvalid: Workers could not import a value, or there is no field for it. The message shows what to write.
    """
    sources, cluster = Sources(), options["cluster"]
    spec = cluster.spec() | {"collect": {}}
    spec["env"] = _env(env, options["env_kwargs"], values["workers"], sources)
    spec["policy"] = _policy(policy, options["policy_factory"], sources)
    for part in ("env", "policy"):
        device = options[f"{part}_device"]
        if isinstance(device, list | tuple):
            raise JobInvalid(f"`{part}_device`: all pods of a job are alike; write one device for all workers")
        if device is not None:
            spec[part]["device"] = str(device)
    for name in HOOKS:
        if callable(hook := options[name]):
            named = sources.name(hook, name)
            if named.kwargs:
                raise JobInvalid(f"`{name}`: a job names a function; write one without arguments of its own")
            spec["collect"][to_camel(name)] = named.entrypoint
        elif hook:
            sources.keep(hook.partition(":")[0])
    if (scheme := options["weight_scheme"]) is not None:
        spec["weights"] = _scheme(scheme, sources)
    if options["max_restarts_per_worker"] is not None:
        spec["failure"]["maxRestartsPerWorker"] = options["max_restarts_per_worker"]
    name = cluster.name or new_name(env)
    if sources.files:
        sources.write_into(spec, f"{name}-source")
    job = job_of(values, spec, {"name": name, "labels": dict(cluster.labels)})
    return parse_job(job.dump()), sources  # which refuses one that is too large for a cluster


def start_on_cluster(
    job: CollectorJob, sources: Sources, cluster: Cluster, *, device: torch.device | None, no_cuda_sync: bool
) -> tuple[Transport, CollectorJob]:
    """Submit a job, wait for its workers and become its learner. Closing the transport ends the job.

    Batches go to `device`; None: CPU memory.

    Returns:
        The transport, and the job as it was published.

    Raises:
        ClusterError: The cluster refuses the job, its workers do not start, or it cannot be reached.
        JobEnded: The job failed.
    """
    with ExitStack() as undone:
        submission = Submission(job, sources, cluster)
        undone.callback(submission.end)
        where = submission.job.key.split("/")
        link = open_through(submission.jobs.api, *where, timeout_s=cluster.timeout_s, look=submission.look)
        undone.callback(link.close)
        known = link.call(read_job(link, timeout_s=cluster.timeout_s))
        transport = NatsTransport(link, known, device=device, no_cuda_sync=no_cuda_sync, elastic=submission)
        undone.callback(transport.close)
        submission.wait()
        link.after_close(submission.end)
        undone.pop_all()
    return transport, known


def _env(env: Any, env_kwargs: Any, workers: int, sources: Sources) -> dict[str, Any]:
    if not isinstance(env, list | tuple) and not isinstance(env_kwargs, list | tuple):
        return env_fields(env, env_kwargs, sources)
    envs = env if isinstance(env, list | tuple) else [env] * workers
    kwargs = env_kwargs if isinstance(env_kwargs, list | tuple) else [env_kwargs] * workers
    entries = [env_fields(each, given, sources) for each, given in zip(envs, kwargs, strict=True)]
    return {"entrypoint": f"{_ENTRYPOINTS}:env_of_worker", "kwargs": {"entries": entries}}


def _policy(policy: Any, factory: Any, sources: Sources) -> dict[str, Any]:
    if isinstance(factory, list | tuple):
        entries = [_written(_factory(each, sources)) for each in factory]
        return {"entrypoint": f"{_ENTRYPOINTS}:policy_of_worker", "kwargs": {"entries": entries}}
    if factory is not None:
        return _written(_factory(factory, sources))
    if policy is None or isinstance(policy, RandomPolicy):
        return {"random": {}}
    if isinstance(policy, nn.Module):
        return _written(_module(policy, sources))
    named = sources.name(policy, "policy")
    if named.kwargs:
        raise PolicyInvalid("`policy` is a partial, which workers cannot import; write it as a function of a module")
    return {"entrypoint": f"{_ENTRYPOINTS}:named", "kwargs": {"name": named.entrypoint}}


def _factory(factory: Any, sources: Sources) -> Named:
    if isinstance(factory, str):
        sources.keep(factory.partition(":")[0])
        return Named(entrypoint=factory, kwargs={})
    return sources.name(factory, "policy_factory")


def _module(policy: nn.Module, sources: Sources) -> Named:
    """Name the class of a policy, with the constructor's arguments: its attributes of the same names."""
    kind = type(policy)
    kwargs = {}
    for name, parameter in signature(kind).parameters.items():
        if name in _SPACES:
            continue
        try:
            if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
                raise AttributeError(name)
            kwargs[name] = as_json(getattr(policy, name), name)
        except (AttributeError, JobInvalid):
            raise PolicyInvalid(
                f"workers build the policy themselves, and {kind.__name__} keeps no `{name}` to build it with; write "
                f"at the top of a module, and pass it beside `policy`:\n"
                f"    def make_policy(observation_space, action_space):\n"
                f"        return {kind.__name__}(...)  # then `policy_factory=make_policy`"
            ) from None
    return Named(entrypoint=sources.name(kind, "policy").entrypoint, kwargs=kwargs)


def _scheme(scheme: WeightScheme, sources: Sources) -> dict[str, Any]:
    kind, precision = type(scheme), getattr(scheme, "precision", None)
    try:
        same = bool(kind(precision) == scheme)  # type: ignore[call-arg]
    except TypeError:
        same = False
    if not same:
        raise JobInvalid(
            f"`weight_scheme`: a job calls its scheme with the precision alone; make {kind.__name__} a dataclass with "
            f"the one field `precision`"
        )
    return {"scheme": sources.name(kind, "weight_scheme").entrypoint, "precision": str(precision)}


def _written(named: Named) -> dict[str, Any]:
    kwargs = {"kwargs": as_json(named.kwargs, "policy_factory")} if named.kwargs else {}
    return {"entrypoint": named.entrypoint, **kwargs}
