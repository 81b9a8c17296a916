"""Rollfleet over worker processes: of this machine, and over NATS."""

import asyncio
import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import rollfleet
from rollfleet.nats.embedded_server import start_nats_server
from rollfleet.nats.link import Link
from rollfleet.nats.streams import provision
from rollfleet_api.address import THREADS, WORKER, Address
from rollfleet_api.permissions import Role
from rollfleet_api.streams import subjects_of
from rollfleet_api.validation import parse_job
from rollfleet_here import built_in
from work import Plain, Running, Work, is_own, make, spawned


def processes_sync(work: Work) -> Any:
    """Processes, mode sync, a policy that is opaque to Rollfleet."""
    return _processes(work, Plain(work), mode="sync")


def processes_async(work: Work) -> Any:
    """The same, mode async."""
    return _processes(work, Plain(work), mode="async")


def processes_async_mlp(work: Work) -> Any:
    """Mode async, the built-in policy."""
    return _processes(work, built_in(work), mode="async")


def nats_sync(work: Work) -> Any:
    """Over NATS, mode sync."""
    return _nats(work, "Sync", mlp=False)


def nats_async(work: Work) -> Any:
    """Over NATS, mode async."""
    return _nats(work, "Async", mlp=False)


def nats_async_mlp(work: Work) -> Any:
    """Over NATS, mode async, the built-in policy."""
    return _nats(work, "Async", mlp=True)


@contextmanager
def _processes(work: Work, policy: Any, *, mode: str) -> Iterator[Running]:
    with rollfleet.Collector(
        partial(make, work.env),
        policy,
        num_envs=work.num_envs,
        frames_per_batch=work.frames * (work.workers if mode == "sync" else 1),
        workers=work.workers,
        mode=mode,
        weights_interval=0,
    ) as collector:
        yield _running(collector, policy, spawned())


@contextmanager
def _nats(work: Work, mode: str, *, mlp: bool) -> Iterator[Running]:
    _keep_memory()
    policy = built_in(work) if mlp else Plain(work)
    known = _job(work, mode, mlp=mlp)
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        server = runner.run(start_nats_server(subjects_of(known), Path(folder)))
        admin = Link(Address(url=server.url(None), job=known.key), role=None)
        admin.call(provision(admin, known))
        address = Address(url=server.url(Role.WORKER), job=known.key)
        environ = os.environ | address.variables() | {THREADS: "1", "OMP_NUM_THREADS": "1"} | KEEPING
        program = [sys.executable, "-P", "-m", "rollfleet", "worker"]
        workers = [subprocess.Popen(program, env=environ | {WORKER: str(i)}) for i in range(work.workers)]
        with rollfleet.connect(known, policy, address=server.url(Role.LEARNER)) as collector:
            yield _running(collector, policy, [worker.pid for worker in workers])
        for worker in workers:
            worker.wait()
        admin.close()
        runner.run(server.child.stop(2.0))


def _running(collector: rollfleet.Collector, policy: Any, pids: list[int]) -> Running:
    return Running(
        next_batch=lambda: ((batch := next(collector)), batch.numel()),
        send_weights=collector.update_policy_weights_,
        policy=policy,
        worker_pids=pids,
    )


def _job(work: Work, mode: str, *, mlp: bool) -> rollfleet.CollectorJob:
    env = {"entrypoint": "work:make", "kwargs": {"env": work.env}} if is_own(work.env) else {"id": work.env}
    plain = {"entrypoint": "rollfleet_two:plain", "kwargs": asdict(work)}
    return parse_job(
        {
            "apiVersion": "rollfleet.dev/v1alpha1",
            "kind": "CollectorJob",
            "metadata": {"name": "bench"},
            "spec": {
                "workers": work.workers,
                "mode": mode,
                "env": env | {"numEnvs": work.num_envs},
                "policy": {"mlp": {"hidden": list(work.hidden)}} if mlp else plain,
                "collect": {"framesPerBatch": work.frames * (work.workers if mode == "Sync" else 1)},
                "delivery": {"storage": "Memory"},
                "weights": {"interval": 0},
            },
        }
    )


def plain(_: object, __: object, **work: Any) -> Plain:
    """The entrypoint that the job names."""
    return Plain(Work(**work))


# The variables that `rollfleet run` sets for its processes.
KEEPING = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}


def _keep_memory() -> None:
    """Set them for this process, which already runs."""
    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 32 << 20)
    libc.mallopt(-1, 256 << 20)
