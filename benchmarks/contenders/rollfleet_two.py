"""Rollfleet over worker processes: of this machine, and over NATS."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import rollfleet
from nats_job import job, learner
from rollfleet_here import built_in
from work import Plain, Running, Work, is_own, iterating, make, spawned


@contextmanager
def _processes(work: Work, make_policy: Callable[[Work], Any], mode: str) -> Iterator[Running]:
    policy = make_policy(work)
    with rollfleet.Collector(
        partial(make, work.env),
        policy,
        num_envs=work.num_envs,
        frames_per_batch=work.frames * (work.workers if mode == "sync" else 1),
        workers=work.workers,
        mode=mode,
        weights_interval=0,
    ) as collector:
        yield iterating(collector, policy, spawned())


@contextmanager
def _nats(work: Work, make_policy: Callable[[Work], Any], mode: str) -> Iterator[Running]:
    policy = make_policy(work)
    with learner(_job(work, mode, mlp=make_policy is built_in), policy) as (collector, pids):
        yield iterating(collector, policy, pids)


def _job(work: Work, mode: str, *, mlp: bool) -> rollfleet.CollectorJob:
    env = {"entrypoint": "work:make", "kwargs": {"env": work.env}} if is_own(work.env) else {"id": work.env}
    own = {"entrypoint": "rollfleet_two:plain", "kwargs": asdict(work)}
    return job(
        workers=work.workers,
        mode=mode,
        env=env | {"numEnvs": work.num_envs},
        policy={"mlp": {"hidden": list(work.hidden)}} if mlp else own,
        collect={"framesPerBatch": work.frames * (work.workers if mode == "Sync" else 1)},
        weights={"interval": 0},
    )


def plain(**work: Any) -> Plain:
    """The entrypoint that the job names."""
    return Plain(Work(**work))


# The contenders. To Rollfleet `Plain` is opaque; the other policy is built in.
processes_sync = partial(_processes, make_policy=Plain, mode="sync")
processes_async = partial(_processes, make_policy=Plain, mode="async")
processes_async_mlp = partial(_processes, make_policy=built_in, mode="async")
nats_sync = partial(_nats, make_policy=Plain, mode="Sync")
nats_async = partial(_nats, make_policy=Plain, mode="Async")
nats_async_mlp = partial(_nats, make_policy=built_in, mode="Async")
