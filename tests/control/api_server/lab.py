"""A namespace of a real API server, and operators that run on it."""

import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import kopf
from tests.api.job_data import SMALLEST, job_data
from tests.control.kubernetes import ApiServer, wait_for
from tests.control.pure.nats_in_memory import NatsInMemory

from rollfleet_api.job import API_VERSION, KIND, CollectorJob
from rollfleet_api.kinds import KINDS
from rollfleet_api.messages import Control, LearnerPhase, LearnerStatus, WorkerState, WorkerStatus
from rollfleet_api.times import format_time
from rollfleet_operator.manifest import Manifest, overlay
from rollfleet_operator.nats_port import Heartbeats, JobKey
from rollfleet_operator.program import Operator
from rollfleet_operator.settings import Settings

START_S = 60.0
JSON, MERGE, APPLY = "application/json", "application/merge-patch+json", "application/apply-patch+yaml"


class RunningOperator:
    """The operator, as kopf runs it, in the loop of the API server's clients."""

    def __init__(self, server: ApiServer, nats: NatsInMemory, settings: Settings, *, token: str = "") -> None:
        self._server, self.nats = server, nats
        login = (token,) if token else ()
        self.operator = Operator(settings, lambda: server.login(*login), lambda: nats)
        self._stop = threading.Event()
        ready = threading.Event()
        self._running = server.begin(
            kopf.operator(
                memo=self.operator,
                standalone=True,
                clusterwide=not settings.namespaces,
                namespaces=settings.namespaces,
                stop_flag=self._stop,
                ready_flag=ready,
            )
        )
        assert ready.wait(START_S), "kopf did not start"

    def stop(self) -> None:
        """As SIGTERM would; once more does nothing."""
        self._stop.set()
        self._running.result(60)

    def http(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.operator.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


def quick(**settings: Any) -> Settings:
    """Settings with short intervals, but without lists that would repair what a watch missed."""
    usual = {"port": 0, "refresh_s": 0.2, "status_interval_s": 0.2, "resync_s": 3600.0, "worker_image": "worker:1"}
    return Settings(**{**usual, **settings})


class Lab:
    """A namespace of one test, seen as a user sees it.

    Attributes:
        namespace: Its name.
        nats: The operator's NATS.
    """

    def __init__(self, server: ApiServer, nats: NatsInMemory) -> None:
        self._server, self.nats = server, nats
        self.namespace = f"lab-{uuid.uuid4().hex[:8]}"
        server.call(server.api._request("POST", "/api/v1/namespaces", body={"metadata": {"name": self.namespace}}))

    @property
    def key(self) -> JobKey:
        """The job that `apply` makes by default."""
        return JobKey(self.namespace, "cartpole")

    def apply(self, name: str = "cartpole", *, labels: Any = None, **spec: Any) -> Manifest:
        """`kubectl apply` of a job, with these fields (in YAML's words) instead of the usual; None takes one away."""
        metadata = {"name": name, "namespace": self.namespace} | ({"labels": labels} if labels else {})
        body = job_data(metadata) | {"spec": overlay(SMALLEST | {"workers": 2}, spec)}
        how = {"fieldManager": "kubectl", "force": "true"}
        return self._ask("PATCH", KINDS[KIND].path(self.namespace, name), body, APPLY, query=how)

    def _ask(self, method: str, path: str, body: Any = None, content_type: str = JSON, **more: Any) -> Manifest:
        """Send a request as another client than the operator."""
        return self._server.call(self._server.api._request(method, path, body=body, content_type=content_type, **more))

    def get(self, kind: str, name: str) -> Manifest | None:
        return self._server.call(self._server.api.get(kind, self.namespace, name))

    def all(self, kind: str, *, fields: str = "") -> list[Manifest]:
        return self._server.call(self._server.api.list(kind, self.namespace, fields=fields))

    def patch(self, kind: str, name: str, patch: Manifest, subresource: str = "") -> Manifest:
        """Change an object as another client."""
        path = KINDS[kind].path(self.namespace, name, subresource)
        return self._ask("PATCH", path, patch, MERGE)

    def create(self, manifest: Manifest) -> Manifest:
        manifest = overlay(manifest, {"metadata": {"namespace": self.namespace}})
        return self._server.call(self._server.api.create(manifest))

    def delete(self, kind: str, name: str) -> None:
        path, body = KINDS[kind].path(self.namespace, name), {"propagationPolicy": "Background"}
        self._ask("DELETE", path, body)

    def read(self, kind: str, name: str, subresource: str) -> Manifest:
        return self._ask("GET", KINDS[kind].path(self.namespace, name, subresource))

    def enforce(self, level: str) -> None:
        """Let the namespace take no pod that is below a level of Pod Security."""
        labels = {"pod-security.kubernetes.io/enforce": level}
        path = f"/api/v1/namespaces/{self.namespace}"
        self._ask("PATCH", path, {"metadata": {"labels": labels}}, MERGE)

    def dry_run_pod(self, template: Manifest) -> None:
        """Ask the API server whether it would take such a pod."""
        body = {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"], "metadata": {"name": "try"}}
        path = KINDS["Pod"].path(self.namespace)
        self._ask("POST", path, body, query={"dryRun": "All"})

    def seconds_pass(self, seconds: float) -> bool:
        """Time in which something might happen that must not."""
        time.sleep(seconds)
        return True

    def refuse_pods(self, message: str) -> None:
        """The Job controller reports that it may not create pods."""
        run, now = self.run()["metadata"], format_time(time.time())
        self.create(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"generateName": "refused-"},
                "involvedObject": {"kind": "Job", "name": run["name"], "uid": run["uid"], "namespace": self.namespace},
                "type": "Warning",
                "reason": "FailedCreate",
                "message": f"Error creating: {message}",
                "firstTimestamp": now,
                "lastTimestamp": now,
            }
        )

    def workers_say(self, *indices: int) -> None:
        beats = {
            index: WorkerStatus(worker=index, incarnation=0, state=WorkerState.COLLECTING, time_s=time.time())
            for index in indices
        }
        self.nats.beats[self.key] = Heartbeats(workers=beats)

    @contextmanager
    def on_publish(self, look: Callable[[CollectorJob, list[Manifest]], None]) -> Iterator[None]:
        """Call `look` with each published spec and the Kubernetes Jobs at that moment."""

        async def published(job: CollectorJob) -> None:
            if job.metadata.namespace == self.namespace:
                look(job, await self._server.api.list("Job", self.namespace))

        self.nats.on_provision = published
        try:
            yield
        finally:
            self.nats.on_provision = None

    @contextmanager
    def replaced_during_reconciliation(self, name: str) -> Iterator[threading.Event]:
        """Delete and recreate a job, once, between the actions of a reconciliation and its write of the status."""
        replaced, api = threading.Event(), self._server.api

        async def replace_it(job: CollectorJob) -> None:
            if (job.metadata.namespace, job.metadata.name) == (self.namespace, name) and not replaced.is_set():
                await api.delete(KIND, self.namespace, name, str(job.metadata.uid))
                spec = job.dump()["spec"]
                created = {"metadata": {"namespace": self.namespace, "name": name}, "spec": spec}
                await api.create({"apiVersion": API_VERSION, "kind": KIND, **created})
                replaced.set()

        self.nats.on_provision = replace_it
        try:
            yield replaced
        finally:
            self.nats.on_provision = None

    @contextmanager
    def edited_during_reconciliation(self, patch: Manifest) -> Iterator[threading.Event]:
        """Edit the job, once, between the reading and the actions of a reconciliation."""
        edited, api = threading.Event(), self._server.api

        async def edit(job: CollectorJob) -> None:
            if job.metadata.namespace == self.namespace and not edited.is_set():
                await api.patch(KIND, self.namespace, job.metadata.name, patch)
                edited.set()

        self.nats.on_provision = edit
        try:
            yield edited
        finally:
            self.nats.on_provision = None

    @contextmanager
    def nats_away(self) -> Iterator[None]:
        self.nats.away = True
        try:
            yield
        finally:
            self.nats.away = False

    def grant_everything(self, user: str) -> Callable[[], None]:
        """Let a user do everything in the namespace, until the returned function is called."""
        base, name = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.namespace}", uuid.uuid4().hex
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
        body = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
        self._ask("POST", f"{base}/rolebindings", body)
        path = f"{base}/rolebindings/{name}"

        def revoke() -> None:
            self._ask("DELETE", path)

        return revoke

    def grant(self, user: str, kind: str, *verbs: str, status: bool = False) -> None:
        group = KINDS[kind].api_version.rpartition("/")[0]
        plural = KINDS[kind].plural
        resources = [plural, f"{plural}/status"] if status else [plural]
        name = uuid.uuid4().hex
        base = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.namespace}"
        role = {"rules": [{"apiGroups": [group], "resources": resources, "verbs": list(verbs)}]}
        binding = {
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        }
        for plural_, body in (("roles", role), ("rolebindings", binding)):
            path = f"{base}/{plural_}"
            self._ask("POST", path, {"metadata": {"name": name}, **body})

    def clear(self) -> None:
        """Leave no job behind: operators of later tests would look at it."""
        path = KINDS[KIND].path(self.namespace)
        self._ask("DELETE", path, {"propagationPolicy": "Background"})

    def runs(self, role: str = "worker") -> list[Manifest]:
        return [run for run in self.all("Job") if run["metadata"]["labels"].get("rollfleet.dev/role") == role]

    def run(self, role: str = "worker") -> Manifest:
        """The one Kubernetes Job of a role, once there is exactly one."""
        found: Manifest = wait_for(lambda: runs[0] if len(runs := self.runs(role)) == 1 else None)
        return found

    def status(self, name: str = "cartpole") -> Manifest:
        job = self.get(KIND, name)
        return (job or {}).get("status") or {}

    def condition(self, kind: str, name: str = "cartpole") -> Manifest:
        found = [each for each in self.status(name).get("conditions", []) if each["type"] == kind]
        return found[0] if found else {}

    def pod(self, index: int = 0, *, node: Any = None, **state: Any) -> Manifest:
        """A pod of the workers, as the Job controller would make it, in this state (its `status`, in YAML's words)."""
        run = self.run()
        template = run["spec"]["template"]
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": run["metadata"]["name"],
            "uid": run["metadata"]["uid"],
        }
        pod = self.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "generateName": f"{run['metadata']['name']}-{index}-",
                    "labels": template["metadata"]["labels"],
                    "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
                    "ownerReferences": [{**owner, "controller": True}],
                },
                "spec": {**template["spec"], "nodeName": node},
            }
        )
        return self.patch("Pod", pod["metadata"]["name"], {"status": state}, "status")

    def end_run(self, condition: str, *, reason: str = "", role: str = "worker") -> None:
        """The Job controller gives a run up (`Failed`), or finds it `Complete`."""
        now = format_time(time.time())
        first = {"Failed": "FailureTarget", "Complete": "SuccessCriteriaMet"}[condition]
        conditions = [
            {"type": each, "status": "True", "reason": reason, "lastTransitionTime": now} for each in (first, condition)
        ]
        status: Manifest = {"startTime": now, "conditions": conditions}
        if condition == "Complete":
            status["completionTime"] = now
        self.patch("Job", self.run(role)["metadata"]["name"], {"status": status}, "status")

    def events(self) -> list[tuple[str, str]]:
        """What was announced: type and reason, the oldest first."""
        found = sorted(self.all("Event"), key=lambda event: int(event["metadata"]["resourceVersion"]))
        return [(event["type"], event["reason"]) for event in found]

    def learner_says(self, phase: LearnerPhase, *, frames: int = 0) -> None:
        """The learner is there, and wants this of its workers."""
        learner = LearnerStatus(session=1, version=1, applied_version=1, frames=frames, batches=1, time_s=time.time())
        control = Control(session=1, phase=phase, round=0, version=1)
        self.nats.beats[self.key] = Heartbeats(learner=learner, control=control)

    def wait_condition(self, kind: str, reason: str, status: str = "True") -> Manifest:
        def look() -> Manifest | None:
            found = self.condition(kind)
            return found if (found.get("status"), found.get("reason")) == (status, reason) else None

        condition: Manifest = wait_for(look)
        return condition
