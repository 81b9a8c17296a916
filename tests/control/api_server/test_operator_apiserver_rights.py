"""On a real API server: the operator has the rights that it uses, verb by verb, and no others."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.control.api_server.lab import Lab, RunningOperator, quick
from tests.control.chart.helm import ABSENT, Helm, find
from tests.control.kubernetes import AUDIT_LOG, OTHER, OTHER_TOKEN

from rollfleet_api.job import KIND
from rollfleet_api.messages import LearnerPhase
from rollfleet_api.permissions import Role
from rollfleet_operator import names
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.release import TRACKING

if TYPE_CHECKING:
    from tests.control.kubernetes import ApiServer

pytestmark = pytest.mark.cluster
WaitFor = Callable[[Callable[[], Any]], Any]
BASE = "/apis/rbac.authorization.k8s.io/v1"
LEARNER: dict[str, Any] = {"template": {}}


class Right(NamedTuple):
    """What may be done with a resource."""

    group: str
    resource: str
    verb: str


def granted(roles: list[Manifest]) -> set[Right]:
    return {
        Right(group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(log: str, namespace: str) -> set[Right]:
    """What the operator asked for in a namespace, or in all of them, and got."""
    found = set()
    for line in log.splitlines():
        event = json.loads(line)
        about, answer = event.get("objectRef"), event["responseStatus"]
        if about is None or about.get("namespace") not in (None, namespace):
            continue
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        assert answer["code"] != 403, f"{event['verb']} {resource}: {answer}"
        found.add(Right(about.get("apiGroup", ""), resource, event["verb"]))
        if event["verb"] == "patch" and answer["code"] == 201:  # what server-side apply makes must be allowed twice
            found.add(Right(about.get("apiGroup", ""), resource, "create"))
    return found


@contextmanager
def holding(server: "ApiServer", roles: list[Manifest]) -> Iterator[None]:
    """The operator has these roles, and only for so long."""
    created = []
    for role in roles:
        plural = f"{role['kind'].lower()}s"
        place = f"/namespaces/{role['metadata']['namespace']}" if role["kind"] == "Role" else ""
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": OTHER}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": role["kind"], "name": role["metadata"]["name"]}
        binding = {"metadata": {"name": role["metadata"]["name"]}, "roleRef": reference, "subjects": [subject]}
        for path, body in ((plural, role), (plural.replace("roles", "rolebindings"), binding)):
            server.call(server.api._request("POST", f"{BASE}{place}/{path}", body=body))
            created.append(f"{BASE}{place}/{path}/{role['metadata']['name']}")
    try:
        yield
    finally:
        for path in created:
            server.call(server.api._request("DELETE", path))


def live_a_whole_life(lab: Lab, wait_for: WaitFor) -> None:
    """Everything that may happen to a job, once."""
    lab.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"a.py": ""}})
    job: dict[str, Any] = {"learner": LEARNER, "source": {"configMap": "code"}, "ttlSecondsAfterFinished": 0}
    lab.apply(**job, workers=1, autoscale={"minWorkers": 2, "maxWorkers": 3})
    wait_for(lambda: lab.run()["spec"]["parallelism"] == 2)
    lab.run("learner")
    lab.wait_condition("Progressing", "Starting")

    pod = lab.pod(0, phase="Failed", containerStatuses=[ended(143)])["metadata"]["name"]
    lab.patch("Pod", pod, {"metadata": {"finalizers": [TRACKING]}})
    lab.delete("Pod", pod)
    wait_for(lambda: lab.get("Pod", pod) is None)

    lab.refuse_pods('pods "x" is forbidden: exceeded quota: gpus')
    lab.wait_condition("Degraded", "QuotaExceeded")
    wait_for(lambda: ("Warning", "QuotaExceeded") in lab.events())
    before = lab.run()["metadata"]["uid"]
    lab.apply(**job, image="a:2")
    wait_for(lambda: [run for run in lab.runs() if run["metadata"]["uid"] != before])
    lab.run()
    for kind, name in (
        ("NetworkPolicy", names.network_policy("cartpole", Role.WORKER)),
        ("ServiceAccount", names.account("cartpole")),
    ):
        lab.patch(kind, name, {"metadata": {"labels": {names.JOB: "x"}}})
        wait_for(lambda kind=kind, name=name: label(lab, kind, name) == "cartpole")  # type: ignore[misc]
    secret: Any = lab.get("Secret", names.secret("cartpole", Role.WORKER))
    lab.nats.rotation += 1
    wait_for(lambda: (lab.get("Secret", secret["metadata"]["name"]) or {})["data"] != secret["data"])
    lab.learner_says(LearnerPhase.COMPLETE)
    lab.end_run("Complete", role="learner")
    wait_for(lambda: lab.get(KIND, "cartpole") is None)


def ended(code: int) -> Manifest:
    state = {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": "2026-11-21T00:00:00Z"}}
    return {"name": "worker", "state": state, "ready": False, "restartCount": 0, "image": "worker:1", "imageID": ""}


def label(lab: Lab, kind: str, name: str) -> str | None:
    found: Any = lab.get(kind, name)
    return found["metadata"]["labels"].get(names.JOB) if found else None


@pytest.mark.parametrize("scope", ["Role", "ClusterRole"])
def test_every_right_of_the_chart_is_used_and_no_other_is_needed(
    scope: str, own_lab: Lab, api_server: "ApiServer", wait_for: WaitFor, repository: Path
) -> None:
    namespaces = (own_lab.namespace,) if scope == "Role" else ()
    roles = rendered(repository, namespaces)[scope]
    log = api_server.folder / AUDIT_LOG
    began = log.stat().st_size if log.exists() else 0
    policy = names.network_policy("other", Role.WORKER)
    with holding(api_server, roles):
        with working(api_server, own_lab, namespaces):
            live_a_whole_life(own_lab, wait_for)
            own_lab.apply("other", suspend=True)
            wait_for(lambda: own_lab.get("NetworkPolicy", policy))
        with working(api_server, own_lab, namespaces, network_policies=False):
            wait_for(lambda: own_lab.get("NetworkPolicy", policy) is None)
    assert used(log.read_text()[began:], own_lab.namespace) == granted(roles)


@contextmanager
def working(server: "ApiServer", lab: Lab, namespaces: tuple[str, ...], **said: Any) -> Iterator[None]:
    """An operator is there, with the rights that are held just now."""
    running = RunningOperator(server, lab.nats, quick(namespaces=namespaces, **said), token=OTHER_TOKEN)
    try:
        yield
    finally:
        running.stop()


def rendered(repository: Path, namespaces: tuple[str, ...]) -> dict[str, list[Manifest]]:
    """The chart's roles for the operator's work with jobs, by kind; its keys and its users have others."""
    program = find("helm")
    if program is None:
        pytest.skip(ABSENT)
    shown = Helm(program, repository / "charts/rollfleet").render(operator__namespaces=list(namespaces))
    ours = {"Role": "rollfleet", "ClusterRole": "rollfleet-site"}
    return {
        kind: [role for role in shown.of(kind).values() if role["metadata"]["name"] == name]
        for kind, name in ours.items()
    }
