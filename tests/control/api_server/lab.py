"""A namespace of a real API server, and operators that run on it."""

import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import kopf
from tests.api.job_data import SMALLEST, job_data
from tests.control.kubernetes import ApiServer
from tests.control.pure.nats_in_memory import NatsInMemory
from tests.control.pure.scene import SHARED, pod_of
from tests.waiting import wait_until

from rollfleet_api.job import KIND, CollectorJob
from rollfleet_api.kinds import KINDS
from rollfleet_api.messages import LearnerPhase, LearnerStatus
from rollfleet_api.state.processes import Heartbeats
from rollfleet_api.times import format_time
from rollfleet_operator import names
from rollfleet_operator.api import Api
from rollfleet_operator.manifest import Manifest, overlay
from rollfleet_operator.nats_access import NatsAccess
from rollfleet_operator.nats_port import JobKey
from rollfleet_operator.program import Operator
from rollfleet_operator.settings import Settings

START_S = 60.0
LEASE = "rollfleet"
CHILDREN = ("Job", "ServiceAccount", "Secret", "NetworkPolicy", "Service", "Deployment")
MERGE, APPLY = "application/merge-patch+json", "application/apply-patch+yaml"


class RunningOperator:
    """The operator, as kopf runs it, in the loop of the API server's clients."""

    def __init__(
        self,
        server: ApiServer,
        nats: NatsInMemory,
        settings: Settings,
        *,
        token: str = "",
        access: NatsAccess = SHARED,
    ) -> None:
        self._server, self.nats = server, nats
        login = (token,) if token else ()
        self.operator = Operator(settings, lambda: server.login(*login), lambda _: nats, access)
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


def beside(state: Manifest) -> Manifest:
    """The status of a running pod whose own container has this state, and another one runs."""
    states = {"a-sidecar": {"running": {}}, "worker": state}
    found = {"ready": False, "restartCount": 0, "image": "worker:1", "imageID": ""}
    return {"phase": "Running", "containerStatuses": [{"name": k, "state": v, **found} for k, v in states.items()]}


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
        server.request("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})

    @property
    def key(self) -> JobKey:
        """The job that `apply` makes by default."""
        return JobKey(self.namespace, "cartpole")

    def apply(self, name: str = "cartpole", *, labels: Any = None, **spec: Any) -> Manifest:
        """`kubectl apply` of a job, with these fields (in YAML's words) instead of the usual; None takes one away."""
        metadata = {"name": name, "namespace": self.namespace} | ({"labels": labels} if labels else {})
        body = job_data(metadata) | {"spec": overlay(SMALLEST | {"workers": 2}, spec)}
        path, query = KINDS[KIND].path(self.namespace, name), {"fieldManager": "kubectl", "force": "true"}
        return self._server.request("PATCH", path, body, query=query, content_type=APPLY)

    @property
    def api(self) -> Api:
        """What another client than the operator speaks to, in the loop of `on_publish`."""
        return self._server.api

    def get(self, kind: str, name: str) -> Manifest | None:
        return self._server.call(self._server.api.get(kind, self.namespace, name))

    def all(self, kind: str) -> list[Manifest]:
        return self._server.call(self._server.api.list(kind, self.namespace))

    def versions(self) -> dict[str, str]:
        """The version of each object that the operator has made, by its UID."""
        made = [each["metadata"] for kind in CHILDREN for each in self.all(kind)]
        return {each["uid"]: each["resourceVersion"] for each in made}

    def unchanged(self, seconds: float) -> dict[str, str] | None:
        """Return the versions of these objects if none of them changes within this time."""
        before = self.versions()
        time.sleep(seconds)
        return before if self.versions() == before else None

    def patch(self, kind: str, name: str, patch: Manifest, subresource: str = "") -> Manifest:
        """Change an object as another client."""
        path = KINDS[kind].path(self.namespace, name, subresource)
        return self._server.request("PATCH", path, patch, content_type=MERGE)

    def create(self, manifest: Manifest) -> Manifest:
        manifest = overlay(manifest, {"metadata": {"namespace": self.namespace}})
        return self._server.call(self._server.api.create(manifest))

    def share_a_lease(self) -> dict[str, str]:
        """Create a Lease; return the setting of operators that share it."""
        self.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}})
        return {"ROLLFLEET_LEASE": f"{self.namespace}/{LEASE}"}

    def delete(self, kind: str, name: str) -> None:
        path = KINDS[kind].path(None if kind == "Namespace" else self.namespace, name)
        body = {"propagationPolicy": "Background"}
        self._server.request("DELETE", path, body)

    def read(self, kind: str, name: str, subresource: str) -> Manifest:
        return self._server.request("GET", KINDS[kind].path(self.namespace, name, subresource))

    def enforce(self, level: str) -> None:
        """Let the namespace take no pod that is below a level of Pod Security."""
        body = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}}
        self._server.request("PATCH", f"/api/v1/namespaces/{self.namespace}", body, content_type=MERGE)

    def dry_run_pod(self, template: Manifest) -> None:
        """Ask the API server whether it would take such a pod."""
        body = {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"], "metadata": {"name": "try"}}
        path = KINDS["Pod"].path(self.namespace)
        self._server.request("POST", path, body, query={"dryRun": "All"})

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

    @contextmanager
    def on_publish(self, act: Callable[[CollectorJob], Coroutine[Any, Any, None]]) -> Iterator[None]:
        """Have this done with each published spec, between the reading and the actions of a reconciliation."""

        async def published(job: CollectorJob) -> None:
            if job.metadata.namespace == self.namespace:
                await act(job)

        self.nats.on_publish = published
        try:
            yield
        finally:
            self.nats.on_publish = None

    @contextmanager
    def nats_away(self) -> Iterator[None]:
        self.nats.away = True
        try:
            yield
        finally:
            self.nats.away = False

    def grant_everything(self, user: str) -> Callable[[], None]:
        """Let a user do everything in the namespace, until the returned function is called."""
        return self._server.grant(user, self.namespace, role="cluster-admin")

    def grant(self, user: str, kind: str, *verbs: str, status: bool = False) -> None:
        group, plural = KINDS[kind].api_version.rpartition("/")[0], KINDS[kind].plural
        resources = [plural, f"{plural}/status"] if status else [plural]
        self._server.grant(user, self.namespace, {"apiGroups": [group], "resources": resources, "verbs": [*verbs]})

    def clear(self) -> None:
        """Leave no job behind: operators of later tests would look at it."""
        path = KINDS[KIND].path(self.namespace)
        self._server.request("DELETE", path, {"propagationPolicy": "Background"})

    def runs(self, role: str = "worker") -> list[Manifest]:
        return [run for run in self.all("Job") if run["metadata"]["labels"].get("rollfleet.dev/role") == role]

    def run(self, role: str = "worker") -> Manifest:
        """The one Kubernetes Job of a role, once there is exactly one."""
        found: Manifest = wait_until(lambda: runs[0] if len(runs := self.runs(role)) == 1 else None)
        return found

    def status(self, name: str = "cartpole") -> Manifest:
        job = self.get(KIND, name)
        return (job or {}).get("status") or {}

    def condition(self, kind: str, name: str = "cartpole") -> Manifest:
        found = [each for each in self.status(name).get("conditions", []) if each["type"] == kind]
        return found[0] if found else {}

    def pod(self, index: int = 0, *, role: str = "worker", node: Any = None, **state: Any) -> Manifest:
        """A pod of a role, as the Job controller would make it, in this state (its `status`, in YAML's words)."""
        return self._pod(self.run(role), index, node, state)

    def rotate(self) -> None:
        """Ask for new credentials."""
        self.patch(KIND, "cartpole", {"metadata": {"annotations": {names.ROTATE: uuid.uuid4().hex}}})

    def server_pod(self, **state: Any) -> Manifest:
        """The pod of the job's NATS server, as its ReplicaSet would make it, in this state."""
        return self._pod(wait_until(lambda: self.get("Deployment", "cartpole-nats")), 0, "n", state)

    def _pod(self, run: Manifest, index: int, node: str | None, state: Manifest) -> Manifest:
        name = {"metadata": {"generateName": f"{run['metadata']['name']}-{index}-"}}
        pod = self.create(overlay(pod_of(run, index, node=node), name))
        return self.patch("Pod", pod["metadata"]["name"], {"status": state}, "status")

    def server_serves(self) -> None:
        """The Deployment controller finds the server's pod ready."""
        wait_until(lambda: self.get("Deployment", "cartpole-nats"))
        counted = {"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1}
        self.patch("Deployment", "cartpole-nats", {"status": counted}, "status")

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

    def learner_says(self, phase: LearnerPhase, **learner: Any) -> None:
        """The learner is there, and wants this of its workers."""
        said = LearnerStatus(session=1, phase=phase, version=1, applied_version=1, time_s=time.time(), **learner)
        self.nats.beats[self.key] = Heartbeats(learner=said)

    def wait_condition(self, kind: str, reason: str, status: str = "True") -> Manifest:
        def look() -> Manifest | None:
            found = self.condition(kind)
            return found if (found.get("status"), found.get("reason")) == (status, reason) else None

        condition: Manifest = wait_until(look)
        return condition
