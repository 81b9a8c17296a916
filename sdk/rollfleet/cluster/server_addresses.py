"""The way from this program to the environment servers of a job on a cluster."""

import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from rollfleet.cluster.api import Manifest
from rollfleet.cluster.job_address import answers, file_of, wait_for_secret
from rollfleet.cluster.jobs import Jobs
from rollfleet.cluster.patience import answered
from rollfleet.cluster.tunnel import Tunnel
from rollfleet.errors import ClusterError, JobEnded, JobInvalid
from rollfleet_api.diagnosis import diagnose
from rollfleet_api.env_servers import CERTIFICATE_FILE, PORT, address_of
from rollfleet_api.kubernetes_names import selector
from rollfleet_api.permissions import Role
from rollfleet_api.pods import Pod
from rollfleet_api.status import EnvServersStatus

_LOOK_S: Final = 0.5


class ServerAddresses:
    """The addresses of a job's environment servers, until it is closed.

    They are the names of the servers' pods if the first one answers from here, else tunnels through the API server.

    Args:
        jobs: The jobs of the cluster, with the rights of the user.
        namespace: The job's namespace.
        job: Its name.
        timeout_s: How long to wait for the learner's Secret, and until all servers are ready.
        look: Called at each look for these. It may raise.

    Attributes:
        addresses: `host:port` of each, in the order of their indices.
        certificate: The file by which servers and their vectors trust each other. Only this user can read it.

    Raises:
        JobNotFound: The cluster has no such job. JobEnded: It is complete, or failed.
        JobInvalid: The job has no environment servers.
        ClusterError: A right is missing, or the servers are not ready in time.
    """

    def __init__(
        self,
        jobs: Jobs,
        namespace: str,
        job: str,
        *,
        timeout_s: float,
        look: Callable[[], object] = lambda: None,
    ) -> None:
        self._jobs, self._api, self._namespace, self._job, self._look = jobs, jobs.api, namespace, job, look
        self._tunnels: list[Tunnel] = []
        secret = wait_for_secret(jobs.api, namespace, job, timeout_s, look)
        if not (content := file_of(secret, CERTIFICATE_FILE.name)):
            raise JobInvalid(f"job {namespace}/{job} has no environment servers; add `env.servers` to its spec")
        self._folder = Path(tempfile.mkdtemp(prefix="rollfleet-"))
        try:
            self.certificate = self._folder / CERTIFICATE_FILE.name
            self.certificate.touch(mode=0o600)
            self.certificate.write_bytes(content)
            self.addresses = self._reached(timeout_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the tunnels, and delete the file. Closing twice is harmless."""
        for tunnel in self._tunnels:
            tunnel.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _reached(self, timeout_s: float) -> list[str]:
        until = time.monotonic() + timeout_s
        while True:
            late = time.monotonic() >= until
            view = answered(partial(self._jobs.get, f"{self._namespace}/{self._job}"), until)
            counts = view.status.servers or EnvServersStatus()
            if 0 < counts.desired <= counts.ready and (run := answered(self._run, until)):
                break
            self._look()
            if view.status.has_ended(view.metadata.generation):
                raise JobEnded(f"{view.key} has no more environment servers: it is {diagnose(view)}")
            if late:
                raise ClusterError(
                    f"{counts.ready} of {counts.desired} environment servers of {view.key} are ready after "
                    f"{timeout_s:g} s: it is {diagnose(view)}",
                    0,
                    "NotReady",
                )
            time.sleep(_LOOK_S)
        wanted, (owner,) = counts.desired, next(iter(run.values()))["metadata"]["ownerReferences"]
        pattern = address_of(owner["name"], self._job, self._namespace)
        if answers(f"//{pattern.format(0)}"):
            return [pattern.format(index) for index in range(wanted)]
        for index in range(wanted):
            names = partial(self._pod, index)
            self._tunnels.append(Tunnel(self._api, self._namespace, names, PORT, timeout_s=timeout_s))
        return [f"127.0.0.1:{tunnel.port}" for tunnel in self._tunnels]

    def _run(self) -> dict[int, Manifest]:
        """Return the pods of the newest Kubernetes Job of servers, by index."""
        found = self._api.list("Pod", self._namespace, labels=selector(self._job, Role.ENV_SERVER)).items
        pods = sorted(((Pod.parse(each), each) for each in found), key=lambda both: both[0].created_s)
        return {pod.index: each for pod, each in pods if pod.run == pods[-1][0].run and not pod.deleting}

    def _pod(self, index: int) -> list[str]:
        if (pod := self._run().get(index)) is None:
            raise ClusterError(f"environment server {index} of {self._namespace}/{self._job} has no pod", 0, "NoPod")
        return [pod["metadata"]["name"]]
