"""A job that this program submits, waits for, scales and deletes: the workers of a collector on a cluster."""

import logging
import os
import socket
import sys
import time
from collections.abc import Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from rollfleet.cluster.api import ClusterApi, Manifest
from rollfleet.cluster.jobs import Jobs, write_with_sources
from rollfleet.cluster.refusals import passes
from rollfleet.cluster.settings import Cluster
from rollfleet.cluster.sources import Sources
from rollfleet.errors import ClusterError, JobEnded, JobInvalid, JobNotFound
from rollfleet_api.diagnosis import UNSEEN, Diagnosis, diagnose
from rollfleet_api.job import KIND, CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.status import ConditionType

log = logging.getLogger(__name__)

PATIENCE_S: Final = 20.0
"""Grace period for rarely transient problems. After it, the start is given up."""

_RARELY_MENDED: Final = frozenset(
    (
        "ContainerRefused",
        "Forbidden",
        "ImagePullFailed",
        "Invalid",
        "PodSecurityViolation",
        "PodsRefused",
        "QuotaExceeded",
        "ResourcesMissing",
        "TemplateInvalid",
    )
)
_LOOK_S: Final = 1.0
_UNSEEN_S: Final = 5.0
_IN_POD: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Submission:
    """A new job on a cluster, with the source of its code. Its workers are this program's: see `Elastic`.

    Attributes:
        jobs: The jobs of the namespace.
        job: The job, with its namespace.

    Raises:
        ClusterError: The cluster refuses it, or cannot be reached.
        JobInvalid: The modules are larger than a ConfigMap.
    """

    def __init__(self, job: CollectorJob, sources: Sources, cluster: Cluster) -> None:
        self.jobs, self._cluster = Jobs(namespace=cluster.namespace, context=cluster.context), cluster
        self._shown, self._problem = "", ""
        self._began_s = self._problem_s = time.monotonic()
        api = self.jobs.api
        metadata = {**job.dump()["metadata"], "namespace": api.namespace, "ownerReferences": _owners(api)}  # type: ignore[dict-item]
        namespaced = job.metadata.model_copy(update={"namespace": api.namespace})
        self.job = job.model_copy(update={"metadata": namespaced})
        manifest = {**job.dump(), "metadata": metadata}
        if not job.spec.source:
            api.create(manifest)
            return
        self._show(f"sending {', '.join(sorted(sources.files))}")
        with ExitStack() as undone:

            def create(written: Manifest, *, dry_run: bool = False) -> Manifest:
                created = api.create(written, dry_run=dry_run)
                if written["kind"] == KIND and not dry_run:  # it is ours from here on, whatever comes
                    undone.callback(self.end)
                elif not dry_run and not cluster.keep:
                    undone.callback(_forget, api, written["metadata"]["name"])
                return created

            write_with_sources(api, manifest, sources, create)
            undone.pop_all()

    def wait(self) -> None:
        """Wait until all workers are ready; see `look`."""
        while not self.look():
            time.sleep(_LOOK_S)

    def look(self) -> bool:
        """Show on stderr how many workers are ready, and why others are not; return whether all are.

        While the cluster cannot be reached, they are not.

        Raises:
            ClusterError: They are not ready in time, or have a rarely transient problem for too long.
            JobEnded: The job failed, or was deleted.
        """
        late = time.monotonic() - self._began_s >= self._cluster.timeout_s
        try:
            view = self.jobs.get(self.job.key)
        except JobNotFound:
            raise JobEnded(f"{self.job.key} was deleted before its workers were ready") from None
        except ClusterError as error:
            if late or not passes(error):
                raise
            self._show(str(error))
            return False
        found, now_s = diagnose(view), time.monotonic()
        if found.reason != self._problem:
            self._problem, self._problem_s = found.reason, now_s
        counted = f"{view.status.workers.ready} of {self.job.spec.workers} workers are ready"
        if not self.job.spec.workers:
            ready = view.status.servers.ready if view.status.servers else 0
            counted = f"{ready} of {self.job.spec.size(Role.ENV_SERVER)} environment servers are ready"
        if view.status.held(ConditionType.READY):
            self._show(counted, last=True)
            return True
        why = str(found) if found.is_problem else found.message
        if found.reason != UNSEEN or now_s - self._problem_s > _UNSEEN_S:  # at first no operator has seen it
            self._show(f"{counted}: {why}")
        if view.status.held(ConditionType.FAILED):
            # The advice is about edits, and this job is about to be deleted.
            raise JobEnded(f"{view.key} has failed: {found.model_copy(update={'advice': ''})}")
        if late or (found.reason in _RARELY_MENDED and now_s - self._problem_s > PATIENCE_S):
            raise self._not_started(found)
        return False

    def add_workers(self, count: int) -> list[int]:
        """See `Elastic`."""
        present = self.jobs.get(self.job.key).spec.workers
        self.jobs.scale(self.job.key, present + count)
        return list(range(present, present + count))

    def remove_workers(self, workers: Collection[int]) -> None:
        """See `Elastic`. A job loses its highest indices.

        Raises:
            JobInvalid: These are others.
        """
        present = self.jobs.get(self.job.key).spec.workers
        highest = list(range(present - len(set(workers)), present))
        if sorted(set(workers)) != highest:
            raise JobInvalid(f"a job on a cluster loses its highest indices; write `remove_workers({highest})`")
        self.jobs.scale(self.job.key, present - len(highest))

    def end(self) -> None:
        """Delete the job, unless it is kept. Never raises: a job that is left is logged."""
        if self._cluster.keep:
            return
        try:
            self.jobs.delete(self.job.key)
        except JobNotFound:
            return
        except ClusterError as error:
            log.warning("%s is left on the cluster: %s; delete it later: `rollfleet delete`", self.job.key, error)

    def _not_started(self, found: Diagnosis) -> ClusterError:
        return ClusterError(f"the pods of {self.job.key} do not start: {found}", 0, found.reason or "NotReady")

    def _show(self, text: str, *, last: bool = False) -> None:
        if not self._cluster.progress:
            return
        line = f"rollfleet: {self.job.metadata.name}: {text}"
        if sys.stderr.isatty():
            print(f"\r\x1b[2K{line}", end="\n" if last else "", file=sys.stderr, flush=True)
        elif line != self._shown:
            self._shown = line
            print(line, file=sys.stderr, flush=True)


def _forget(api: ClusterApi, config_map: str) -> None:
    with suppress(ClusterError):
        api.delete("ConfigMap", api.namespace, config_map)


def _owners(api: ClusterApi) -> list[dict[str, Any]]:
    """Return this pod as the owner of the job: it is deleted with the pod. Empty outside the namespace's pods."""
    if "KUBERNETES_SERVICE_HOST" not in os.environ or not _IN_POD.exists() or _IN_POD.read_text() != api.namespace:
        return []
    try:
        pod = api.get("Pod", api.namespace, socket.gethostname())
    except ClusterError as error:  # its account may not read pods: `learnerTimeoutSeconds` remains
        log.debug("reading this pod: %s", error)
        return []
    if pod is None:
        return []
    return [{"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}]
