"""Opens the connection of a learner or a recorder: by arguments, the environment, or a kubeconfig."""

import os
from collections.abc import Callable
from pathlib import Path

from rollfleet.arguments import seconds, shown
from rollfleet.cluster.api import ClusterApi
from rollfleet.cluster.job_address import JobAddress
from rollfleet.errors import ClusterError, ConnectionFailed, JobInvalid
from rollfleet.nats.link import Link
from rollfleet.system.process_setup import exit_on_sigterm
from rollfleet_api.address import JOB, Address, EnvironmentIncomplete
from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.subjects import Subjects

_RUN = "`rollfleet run job.yaml --learner learner.py` starts a learner with a server and workers on this machine"


def open_link(
    job: str | CollectorJob | None, *, address: str | None, credentials: str | Path | None, timeout_s: float
) -> Link:
    """Connect to a job as its learner or a recorder.

    Missing arguments come from the environment. Without an address there, the cluster of the kubeconfig has it.

    Raises:
        ConnectionFailed: No server was named, none answered, or it refused the credentials.
        ClusterError: The cluster of the kubeconfig refused a request, or cannot be reached.
        JobNotFound: That cluster has no such job.
        JobInvalid: The name is not valid for a job, there is no such credentials file, or another value is wrong.
    """
    name = job.key if isinstance(job, CollectorJob) else job
    if name is not None and not isinstance(name, str):
        raise JobInvalid(f"job: expected a name, 'namespace/name', or a CollectorJob, got {shown(job)}")
    if address is not None and not isinstance(address, str):
        raise JobInvalid(f"address: expected a URL such as 'nats://host:4222', got {shown(address)}")
    if credentials is not None and not (isinstance(credentials, str | Path) and os.path.isfile(credentials)):
        raise JobInvalid(f"credentials: there is no file {shown(credentials)}")
    timeout_s = seconds(timeout_s, "timeout_s")
    try:
        where = Address.read(os.environ, url=address, job=name, credentials=credentials)
        Subjects.parse(where.job)
    except EnvironmentIncomplete as error:
        if address is not None or credentials is not None:
            raise ConnectionFailed(str(error)) from error
        if not (name := name or os.environ.get(JOB)):
            raise ConnectionFailed(f"{error}; {_RUN}") from error
        return _open_from_outside(name, timeout_s, error)
    except ValueError as error:
        raise JobInvalid(str(error)) from error
    exit_on_sigterm()
    return Link(where, role=Role.LEARNER, timeout_s=timeout_s)


def open_through(
    api: ClusterApi, namespace: str, job: str, *, timeout_s: float, look: Callable[[], object] = lambda: None
) -> Link:
    """Connect to a job of a cluster with its client's rights. Errors: see `open_link`. `look`: see `JobAddress`."""
    found = JobAddress(api, namespace, job, timeout_s=timeout_s, look=look)
    try:
        link = Link(found.address, role=Role.LEARNER, timeout_s=timeout_s)
    except BaseException:
        found.close()
        raise
    link.after_close(found.close)
    found.watch(link.mark_deleted)
    return link


def _open_from_outside(name: str, timeout_s: float, incomplete: EnvironmentIncomplete) -> Link:
    try:
        api = ClusterApi()
    except ClusterError as error:
        if error.reason in ("NoClient", "NoKubeconfig"):
            raise ConnectionFailed(f"{incomplete}; {error}; {_RUN}") from error
        raise
    try:
        subjects = Subjects.parse(name if "/" in name else f"{api.namespace}/{name}")
    except ValueError as error:
        raise JobInvalid(str(error)) from error
    exit_on_sigterm()
    return open_through(api, subjects.namespace, subjects.job, timeout_s=timeout_s)
