"""The places where the servers of a vector run: processes of this machine, other hosts, pods of a job."""

import atexit
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rollfleet.arguments import shown, whole_number
from rollfleet.cluster.jobs import Jobs
from rollfleet.cluster.server_addresses import ServerAddresses
from rollfleet.cluster.settings import Cluster
from rollfleet.cluster.sources import Sources
from rollfleet.cluster.submission import Submission
from rollfleet.envs.job_fields import env_fields, new_name
from rollfleet.envs.remote import CONNECT_S, RemoteServers
from rollfleet.envs.server_process import Launch, Maker, ServerProcess
from rollfleet.envs.single import named
from rollfleet.errors import JobInvalid
from rollfleet.system.cpus import available_cpus
from rollfleet.system.process_setup import exit_on_sigterm
from rollfleet_api.address import Address
from rollfleet_api.job import API_VERSION, KIND, CollectorJob
from rollfleet_api.validation import JobErrors, parse_job


class Place(NamedTuple):
    """Where the servers of a vector run.

    Attributes:
        servers: Their number.
        launch: Starts each of them.
        leave: Is called once the vector is closed. May be called again.
        maker: Makes an environment there; None: as here.
    """

    servers: int
    launch: Launch = ServerProcess
    leave: Callable[[], object] = lambda: None
    maker: Maker | None = None


def place_of(
    num_envs: int, workers: int | None, servers: Sequence[str] | str | None, certificate: str | Path | None
) -> Place:
    """Return the place that these arguments of `make_vec` name, without `cluster`.

    Raises:
        JobInvalid: They name none, or too many servers.
        ClusterError: The cluster of a job refuses, or cannot be reached.
    """
    if servers is None:
        if certificate is not None:
            raise JobInvalid("certificate: is for `servers`; remove it, or add their addresses")
        number = min(num_envs, available_cpus()) if workers is None else workers
        return Place(_number(number, num_envs, "workers"))
    if workers is not None:
        raise JobInvalid("workers: these are processes of this machine, or pods; remove it, or `servers`")
    if not isinstance(servers, str) or ":" in servers:
        launch = RemoteServers(servers, certificate)
        return Place(_number(len(servers), num_envs, "servers"), launch)
    if found := _of_this_job(servers):
        return Place(_number(len(found.addresses), num_envs, "servers"), found)
    namespace, _, name = servers.rpartition("/")
    jobs = Jobs(namespace=namespace or None)
    with ExitStack() as undone:
        reached = ServerAddresses(jobs, jobs.api.namespace, name, timeout_s=CONNECT_S)
        undone.callback(reached.close)
        number = _number(len(reached.addresses), num_envs, "servers")
        return Place(number, RemoteServers(reached.addresses, reached.certificate), _left(undone))


def place_on(cluster: Cluster, env: Any, kwargs: Mapping[str, object], num_envs: int, workers: int | None) -> Place:
    """Submit a job of environment servers for one vector, and wait until they run. Leaving the place ends the job.

    Raises:
        JobInvalid: Pods could not make the environment, or another argument cannot be used.
        ClusterError: The cluster refuses the job, its servers do not start, or it cannot be reached.
        JobEnded: The job failed.
    """
    if not isinstance(cluster, Cluster):
        raise JobInvalid(f"cluster: expected a rollfleet.Cluster, got {shown(cluster)}")
    if isinstance(env, list | tuple):
        raise JobInvalid("env: all pods of a job are alike; write one id, or one function")
    if workers is None:
        raise JobInvalid("workers: is missing; write the number of pods")
    sources = Sources()
    fields = env_fields(env, kwargs, sources)
    maker = partial(named, fields["entrypoint"], **fields.get("kwargs", {})) if "entrypoint" in fields else None
    exit_on_sigterm()
    job = _job(cluster, env, fields, num_envs, _number(workers, num_envs, "workers"), sources)
    with ExitStack() as undone:
        submission = Submission(job, sources, cluster)
        undone.callback(submission.end)
        where = submission.job.key.split("/")
        found = ServerAddresses(submission.jobs, *where, timeout_s=cluster.timeout_s, look=submission.look)
        undone.callback(found.close)
        submission.wait()
        return Place(len(found.addresses), RemoteServers(found.addresses, found.certificate), _left(undone), maker)


def _of_this_job(name: str) -> RemoteServers | None:
    """Return the servers of the job whose learner this program is; None: it is another job's, or no pod's program."""
    if (found := RemoteServers.of_learner(os.environ)) is None:
        return None
    own = Address.read(os.environ).job
    return found if name in (own, own.partition("/")[2]) else None


def _left(undone: ExitStack) -> Callable[[], object]:
    leave = undone.pop_all().close
    atexit.register(leave)
    return leave


def _job(
    cluster: Cluster, env: Any, fields: dict[str, Any], num_envs: int, servers: int, sources: Sources
) -> CollectorJob:
    spec, name = cluster.spec(), cluster.name or new_name(env)
    pods = {"replicas": servers, "resources": spec.pop("resources"), "template": spec.pop("template")}
    spec |= {"workers": 0, "policy": {"random": {}}, "collect": {"framesPerBatch": num_envs}}
    spec["env"] = fields | {"numEnvs": num_envs, "vectorization": "Async", "servers": pods}
    if sources.files:
        sources.write_into(spec, f"{name}-source")
    metadata = {"name": name, "labels": dict(cluster.labels)}
    try:
        return parse_job({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})
    except JobErrors as errors:
        raise JobInvalid(str(errors)) from None


def _number(number: int, num_envs: int, name: str) -> int:
    if whole_number(number, name, least=1) > num_envs:
        raise JobInvalid(f"{name}: {number} servers for {num_envs} environments; write {num_envs} at most")
    return number
