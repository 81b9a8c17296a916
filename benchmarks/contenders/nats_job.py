"""A job over NATS on this machine: its server, its worker processes, and its learner."""

import asyncio
import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rollfleet
from rollfleet.nats.embedded_server import NatsServer, start_nats_server
from rollfleet.nats.job_source import JobOwner
from rollfleet.nats.link import Link
from rollfleet_api.address import THREADS, WORKER, Address
from rollfleet_api.permissions import Role
from rollfleet_api.publication import subjects_of
from rollfleet_api.validation import parse_job


def job(**spec: object) -> rollfleet.CollectorJob:
    """Build a job with these fields of its spec, in camelCase."""
    kind = {"apiVersion": "rollfleet.dev/v1alpha1", "kind": "CollectorJob"}
    return parse_job(kind | {"metadata": {"name": "bench"}, "spec": spec})


@contextmanager
def nats_server(known: rollfleet.CollectorJob) -> Iterator[NatsServer]:
    """Start a server with a job, and stop it at the end."""
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        server = runner.run(start_nats_server(subjects_of(known), Path(folder)))
        try:
            owner = Link(Address(url=server.url(None), job=known.key), role=None)
            owner.call(JobOwner(owner, known).start())
            yield server
            owner.close()
        finally:
            runner.run(server.child.stop(2.0))


@contextmanager
def learner(known: rollfleet.CollectorJob, policy: Any) -> Iterator[tuple[rollfleet.Collector, Sequence[int]]]:
    """Start a job's server and workers, and connect to it; yield the collector and the workers' process ids.

    The workers import what this process can import. They end with the job, or at the end.
    """
    _keep_memory()
    with nats_server(known) as server:
        address = Address(url=server.url(Role.WORKER), job=known.key)
        environ = os.environ | address.variables() | {THREADS: "1", "OMP_NUM_THREADS": "1"} | KEEPING
        environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        program = [sys.executable, "-P", "-m", "rollfleet", "worker"]
        workers = [subprocess.Popen(program, env=environ | {WORKER: str(i)}) for i in range(known.spec.workers)]
        try:
            with rollfleet.connect(known, policy, address=server.url(Role.LEARNER)) as collector:
                yield collector, [worker.pid for worker in workers]
        finally:
            for worker in workers:
                worker.terminate()
                worker.wait()


# The variables that `rollfleet run` sets for its processes.
KEEPING = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}


def _keep_memory() -> None:
    """Set them for this process, which already runs."""
    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 32 << 20)
    libc.mallopt(-1, 256 << 20)
