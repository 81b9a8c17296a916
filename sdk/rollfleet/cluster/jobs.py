"""`rollfleet.Jobs`: submit jobs to a cluster, watch, explain, change and delete them."""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from rollfleet.arguments import seconds, shown, whole_number
from rollfleet.cluster.api import ClusterApi, Manifest
from rollfleet.cluster.patience import AGAIN_S, AWAY_S, answered
from rollfleet.cluster.refusals import passes
from rollfleet.errors import ClusterError, JobEnded, JobInvalid, JobNotFound, Timeout
from rollfleet_api.diagnosis import diagnose, stale
from rollfleet_api.documents import read_job
from rollfleet_api.fields import MAX_COUNT
from rollfleet_api.job import API_VERSION, KIND, CollectorJob
from rollfleet_api.kubernetes_names import JOB_LABEL, ROLE_LABEL
from rollfleet_api.permissions import Role
from rollfleet_api.pods import Pod
from rollfleet_api.status import ConditionType
from rollfleet_api.validation import JobErrors, parse_job
from rollfleet_api.views import EventView, JobView, View

if TYPE_CHECKING:
    from rollfleet.cluster.description import Description
    from rollfleet.cluster.sources import Sources

V = TypeVar("V", bound=View)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a pod's log.

    Attributes:
        worker: The worker's index. None: the learner, or an evaluation worker.
        text: The line, without its end.
        process: The process in words, such as `evaluation worker 0`.
    """

    worker: int | None
    text: str
    process: str

    def __str__(self) -> str:
        """Return the line with its process, as `rollfleet run` shows it."""
        return f"[{self.process}] {self.text}"


class Jobs:
    """The jobs of a cluster, with the rights of a kubeconfig's user; in a pod, of its account.

    A job is named `name`, in the namespace of these `Jobs`, or `namespace/name`. Each method raises `ClusterError` if
    the cluster refuses or cannot be reached, and `JobNotFound` for a job that does not exist.

    Args:
        namespace: The namespace. None: that of the context or of the pod, else `default`.
        context: The kubeconfig's context. None: the current one.
        kubeconfig: The file. None: `KUBECONFIG`, or `~/.kube/config`.

    Attributes:
        api: The client, for other objects of the cluster.

    Example:
        >>> jobs = rollfleet.Jobs(namespace="team-a")  # doctest: +SKIP
        >>> jobs.submit("job.yaml")  # doctest: +SKIP
        >>> jobs.wait("cartpole", "Ready", timeout_s=600)  # doctest: +SKIP
        >>> print(jobs.describe("cartpole"))  # doctest: +SKIP
        team-a/cartpole is Running (Collecting)
    """

    def __init__(
        self, *, namespace: str | None = None, context: str | None = None, kubeconfig: str | Path | None = None
    ) -> None:
        if namespace is not None and not isinstance(namespace, str):
            raise JobInvalid(f"namespace: expected a name, got {shown(namespace)}")
        self.api = ClusterApi(context=context, namespace=namespace, kubeconfig=kubeconfig)

    def submit(
        self, job: CollectorJob | Mapping[str, Any] | str | Path, *, sources: "Sources | None" = None
    ) -> JobView:
        """Create a job, or change an existing one of its name to it, like `kubectl apply`.

        Args:
            job: The job, the content of its YAML, or the path of its file. Without `metadata.namespace` it goes to the
                namespace of these `Jobs`.
            sources: Modules for the ConfigMap that `spec.source` names. It is deleted with the job, unless you created
                it. None: the ConfigMap is yours.

        Raises:
            JobInvalid: The job is not valid. The message names each mistake.
        """
        manifest = self._manifest(job)
        if sources is None:
            return _view(JobView, self.api.apply(manifest))
        return _view(JobView, write_with_sources(self.api, manifest, sources, self.api.apply))

    def get(self, job: str) -> JobView:
        """Return a job with its status."""
        namespace, name = self._parts(job)
        found = self.api.get(KIND, namespace, name)
        if found is None:
            raise _not_found(namespace, name)
        return _view(JobView, found)

    def list(self, *, all_namespaces: bool = False) -> tuple[JobView, ...]:
        """Return the jobs of the namespace, or of all namespaces."""
        listed = self.api.list(KIND, None if all_namespaces else self.api.namespace)
        return tuple(_view(JobView, each) for each in listed.items)

    def watch(self, job: str, *, timeout_s: float | None = None) -> Iterator[JobView]:
        """Yield a job as it is, and then after each change, until it is deleted.

        Args:
            job: The job.
            timeout_s: End after this many seconds. None: watch until the job is deleted.
        """
        until = time.monotonic() + (MAX_COUNT if timeout_s is None else seconds(timeout_s, "timeout_s"))
        namespace, name = self._parts(job)
        selector, last, uid = f"metadata.name={name}", "", ""
        while True:
            away_until_s = min(until, time.monotonic() + AWAY_S) if last else 0.0
            listed = answered(partial(self.api.list, KIND, namespace, fields=selector), away_until_s)
            if not listed.items and not last:
                raise _not_found(namespace, name)
            if not listed.items or (uid and listed.items[0]["metadata"]["uid"] != uid):
                return
            uid = listed.items[0]["metadata"]["uid"]
            if (version := listed.items[0]["metadata"]["resourceVersion"]) != last:
                last = version
                yield _view(JobView, listed.items[0])
            if (left_s := until - time.monotonic()) <= 0:
                return
            changes = self.api.watch(KIND, namespace, listed.resource_version, fields=selector, for_s=left_s)
            try:
                for change, found in changes:
                    if change == "DELETED":
                        return
                    last = found["metadata"]["resourceVersion"]
                    yield _view(JobView, found)
            except ClusterError as error:
                if error.reason != "Expired" and not passes(error):  # a proxy may cut a silent stream: list again
                    raise
                time.sleep(AGAIN_S)

    def wait(self, job: str, condition: str = "Complete", *, timeout_s: float | None = None) -> JobView:
        """Wait until a condition of a job holds, and return the job.

        Args:
            job: The job.
            condition: `Ready` (all workers run), `Complete`, `Failed`, `Suspended`, `Degraded` or `Progressing`.
            timeout_s: The longest wait, in seconds. None: no limit.

        Raises:
            JobEnded: The job failed, is complete or was deleted instead.
            JobInvalid: The condition is unknown.
            Timeout: The condition did not hold in time. The message has the job's state and its reason.
        """
        try:
            wanted = ConditionType(condition)
        except ValueError:
            raise JobInvalid(f"condition: expected one of {', '.join(ConditionType)}, got {condition!r}") from None
        for last in self.watch(job, timeout_s=timeout_s):
            if stale(last):  # its conditions are those of an earlier spec
                continue
            ended = last.status.has_ended(last.metadata.generation)  # else a job that failed is tried again
            if last.status.held(wanted) and (ended or wanted is not ConditionType.FAILED):
                return last
            if ended:
                raise JobEnded(f"{last.key} does not become {condition}: it is {diagnose(last)}")
        found = self.api.get(KIND, *self._parts(job))
        if found is None or found["metadata"]["uid"] != last.metadata.uid:
            raise JobEnded(f"{job} was deleted before it was {condition}")
        raise Timeout(f"{last.key} is not {condition} after {timeout_s:g} s: it is {diagnose(last)}")

    def describe(self, job: str) -> "Description":
        """Explain a job: its state, its reason and what to do, counters, pods and events. `str()` is the text."""
        from rollfleet.cluster.description import Description

        seen = self.get(job)
        pods = self.pods(seen)
        return Description(job=seen, pods=pods, events=self._events(seen, pods), time=datetime.now(UTC))

    def events(self, job: str) -> tuple[EventView, ...]:
        """Return the events about a job and its present pods, the newest last."""
        seen = self.get(job)
        return self._events(seen, self.pods(seen))

    def logs(
        self,
        job: str,
        *,
        worker: int | None = None,
        learner: bool = False,
        container: str | None = None,
        follow: bool = False,
        tail: int | None = None,
    ) -> Iterator[LogLine]:
        """Yield the lines of a job's pods.

        Args:
            job: The job.
            worker: Only this worker.
            learner: Only the learner.
            container: Another container of the pods, such as a sidecar. None: that of the worker or the learner.
            follow: Wait for new lines until the pods end.
            tail: The number of last lines of each pod. None: all.

        Raises:
            JobInvalid: Both `worker` and `learner` are given.
        """
        if learner and worker is not None:
            raise JobInvalid("`learner` and `worker` exclude each other: give one of them")
        seen = self.get(job)
        pods = [
            pod
            for pod in self.pods(seen)
            if pod.phase != "Pending"
            and pod.role is not Role.NATS
            and (pod.role is Role.LEARNER or not learner)
            and worker in (None, pod.worker)
        ]
        if not pods:
            subject = "the learner" if learner else f"worker {worker}" if worker is not None else "the job"
            raise ClusterError(f"{subject} has no pod that has started: {seen.key} is {diagnose(seen)}", 0, "NoPod")

        def lines(pod: Pod) -> Iterator[LogLine]:
            try:
                where = (seen.metadata.namespace, pod.name, container or pod.failed_init or pod.container)
                for text in self.api.logs(*where, follow=follow, tail=tail):
                    yield LogLine(pod.worker, text, pod.process)
            except ClusterError as error:  # the other pods' logs go on
                yield LogLine(pod.worker, str(error), pod.process)

        return _merged([lines(pod) for pod in pods]) if follow else (line for pod in pods for line in lines(pod))

    def scale(self, job: str, workers: int) -> JobView:
        """Change a job's number of workers. The learner keeps running."""
        return self.edit(job, {"workers": whole_number(workers, "workers", least=1)})

    def suspend(self, job: str) -> JobView:
        """Stop a job's workers, and its learner if that is a pod, and free their resources."""
        return self.edit(job, {"suspend": True})

    def resume(self, job: str) -> JobView:
        """Start a suspended job again. One that is complete or has failed raises `JobEnded`."""
        seen = self.edit(job, {"suspend": False})
        if seen.status.has_ended(seen.metadata.generation):
            raise JobEnded(f"{seen.key} is not resumed: it is {diagnose(seen)}")
        return seen

    def edit(self, job: str, spec: Mapping[str, Any]) -> JobView:
        """Change fields of a job's spec.

        Args:
            job: The job.
            spec: The fields, in the words of the YAML, such as `{"collect": {"totalFrames": 1000}}`. All others stay;
                None removes a field.
        """
        if not isinstance(spec, Mapping):
            raise JobInvalid(
                f"spec: expected fields in the words of the YAML, such as {{'workers': 2}}, got {shown(spec)}"
            )
        namespace, name = self._parts(job)
        try:
            return _view(JobView, self.api.patch(KIND, namespace, name, {"spec": dict(spec)}))
        except ClusterError as error:
            raise _not_found(namespace, name) if error.reason == "NotFound" else error from None

    def delete(self, job: str) -> None:
        """Delete a job, its pods, its Secrets, and the files that `submit --keep` keeps."""
        namespace, name = self._parts(job)
        if not self.api.delete(KIND, namespace, name):
            raise _not_found(namespace, name)

    def _parts(self, job: str) -> tuple[str, str]:
        if not isinstance(job, str) or not re.fullmatch(r"([^/]+/)?[^/]+", job):
            raise JobInvalid(f"job: expected `name` or `namespace/name`, got {shown(job)}")
        namespace, _, name = job.rpartition("/")
        return namespace or self.api.namespace, name

    def _manifest(self, job: CollectorJob | Mapping[str, Any] | str | Path) -> Manifest:
        try:
            if isinstance(job, str | Path):
                job = read_job(Path(job))
            elif not isinstance(job, CollectorJob):
                job = parse_job(job)
        except JobErrors as errors:
            raise JobInvalid(str(errors)) from errors
        written: Any = job.dump()
        given = job.metadata.namespace if "namespace" in job.metadata.model_fields_set else self.api.namespace
        own = ("name", "labels", "annotations")  # all else is the API server's
        metadata = {key: value for key, value in written["metadata"].items() if key in own}
        head = {"apiVersion": job.api_version, "kind": job.kind, "metadata": metadata | {"namespace": given}}
        return {**head, "spec": written["spec"]}

    def pods(self, job: JobView) -> tuple[Pod, ...]:
        """Return a job's present pods."""
        listed = self.api.list("Pod", job.metadata.namespace, labels=f"{JOB_LABEL}={job.metadata.name},{ROLE_LABEL}")
        return tuple(map(Pod.parse, listed.items))

    def _events(self, job: JobView, pods: Sequence[Pod]) -> tuple[EventView, ...]:
        subjects = {job.metadata.uid, *(pod.uid for pod in pods)}
        listed = self.api.list("Event", job.metadata.namespace).items
        found = [_view(EventView, each) for each in listed if each["involvedObject"].get("uid") in subjects]
        return tuple(sorted(found, key=lambda event: event.time))


def write_with_sources(
    api: ClusterApi, manifest: Manifest, sources: "Sources", write: Callable[..., Manifest]
) -> Manifest:
    """Write the ConfigMap that a job's `spec.source` names, and then the job. Return the job.

    The ConfigMap is deleted with the job, unless its user created it: ours has the job's label. `write` is the client's
    `create` or `apply`.
    """
    namespace, name = manifest["metadata"]["namespace"], manifest["spec"]["source"]["configMap"]
    files, before = sources.config_map(name, namespace), api.get("ConfigMap", namespace, name)
    if before:  # a job that runs reads them: one that is refused must not change its code
        write(manifest, dry_run=True)
    label = {JOB_LABEL: manifest["metadata"]["name"]}
    if own := before is None or label.items() <= before["metadata"].get("labels", {}).items():
        files["metadata"]["labels"] = label
    write(files)  # before the job, whose pods wait for it
    try:
        created = write(manifest)
    except BaseException:
        if before is None:
            api.delete("ConfigMap", namespace, name)
        raise
    if own:  # also that of a deleted job, which is about to go, and one that a cut left without its owner
        api.patch("ConfigMap", namespace, name, {"metadata": {"ownerReferences": [owner(_view(JobView, created))]}})
    return created


def owner(job: JobView) -> Manifest:
    """Return the reference to a job for an object that is deleted with it."""
    return {"apiVersion": API_VERSION, "kind": KIND, "name": job.metadata.name, "uid": job.metadata.uid}


def _not_found(namespace: str, name: str) -> JobNotFound:
    return JobNotFound(f"the cluster has no job {namespace}/{name}; see `rollfleet top`, or for saved runs `top runs`")


def _view(model: type[V], found: Manifest) -> V:
    try:
        return model.model_validate(found, by_alias=True, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = f"{model.__name__}: {where}: {first['msg']}; is this rollfleet older than the one on the cluster?"
        raise ClusterError(message, 0, "Unreadable") from None


def _merged(sources: Sequence[Iterator[LogLine]]) -> Iterator[LogLine]:
    """Yield the lines of several sources as they come. A thread for each reads until it ends."""
    if len(sources) == 1:
        yield from sources[0]
        return
    lines: SimpleQueue[LogLine | None] = SimpleQueue()
    abandoned = threading.Event()

    def read(source: Iterator[LogLine]) -> None:
        for line in source:
            if abandoned.is_set():
                return
            lines.put(line)
        lines.put(None)

    for source in sources:
        threading.Thread(target=read, args=(source,), name="rollfleet-log", daemon=True).start()
    try:
        for _ in sources:
            yield from iter(lines.get, None)  # until one of them has ended
    finally:
        abandoned.set()
