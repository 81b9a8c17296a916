"""On a real API server: the operator has the rights that it uses, verb by verb, and no others."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from tests.control.api_server.lab import Lab, RunningOperator, beside
from tests.control.chart.helm import Helm, Rendered
from tests.control.kubernetes import AUDIT_LOG, KEY, OTHER, OTHER_TOKEN, ApiServer
from tests.control.pure import scene
from tests.waiting import wait_until

from rollfleet_api.job import API_VERSION, KIND
from rollfleet_api.kinds import KINDS
from rollfleet_api.kubernetes_names import JOB_LABEL, MANAGED_BY_LABEL, MANAGER
from rollfleet_api.messages import LearnerPhase
from rollfleet_api.permissions import Role
from rollfleet_operator import names
from rollfleet_operator.errors import ApiError
from rollfleet_operator.manifest import Manifest, overlay

pytestmark = pytest.mark.cluster
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POLICIES = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
EVERYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
LEARNER: dict[str, Any] = {"template": {}}
LABELS = {MANAGED_BY_LABEL: MANAGER, JOB_LABEL: "x"}


class Right(NamedTuple):
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
def holding(server: ApiServer, roles: list[Manifest]) -> Iterator[None]:
    """The operator has these roles, and only for so long."""
    revokes = [server.grant(OTHER, role["metadata"].get("namespace", ""), *role["rules"]) for role in roles]
    try:
        yield
    finally:
        for revoke in revokes:
            revoke()


def live_a_whole_life(lab: Lab) -> None:
    """Everything that may happen to a job, once."""
    lab.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"a.py": ""}})
    job: dict[str, Any] = {
        "learner": LEARNER,
        "evaluation": {"every": 1},
        "env": {"vectorization": "Async", "servers": {"replicas": 1}},
        "source": {"configMap": "code"},
        "ttlSecondsAfterFinished": 0,
    }
    lab.apply(**job, workers=1, autoscale={"minWorkers": 2, "maxWorkers": 3})
    lab.server_pod()
    wait_until(lambda: lab.run()["spec"]["parallelism"] == 2)
    lab.server_serves()
    lab.run("learner")
    lab.run("evaluation")
    lab.run("env-server")
    lab.wait_condition("Progressing", "Starting")

    lab.refuse_pods('pods "x" is forbidden: exceeded quota: gpus')
    lab.wait_condition("Degraded", "QuotaExceeded")
    wait_until(lambda: ("Warning", "QuotaExceeded") in lab.events())
    pod = lab.pod(**beside({"terminated": {"exitCode": 1}}))["metadata"]["name"]
    wait_until(lambda: (lab.get("Pod", pod) or {})["spec"].get("activeDeadlineSeconds"))
    lab.patch("Pod", pod, {"metadata": {"finalizers": ["example.com/kept"]}})
    lab.delete("Pod", pod)  # the operator looks whether its namespace goes, too
    before = lab.run()["metadata"]["uid"]
    lab.apply(**job, image="a:2")
    wait_until(lambda: [run for run in lab.runs() if run["metadata"]["uid"] != before])
    lab.run()
    for kind, name in (
        ("NetworkPolicy", names.network_policy("cartpole", Role.WORKER)),
        ("ServiceAccount", names.account("cartpole")),
        ("Service", "cartpole-nats"),
        ("Deployment", "cartpole-nats"),
    ):
        lab.patch(kind, name, {"metadata": {"labels": {JOB_LABEL: "x"}}})
        wait_until(lambda kind=kind, name=name: label(lab, kind, name) == "cartpole")  # type: ignore[misc]
    secret: Any = lab.get("Secret", names.secret("cartpole", Role.WORKER))
    lab.rotate()
    wait_until(lambda: (lab.get("Secret", secret["metadata"]["name"]) or {})["data"] != secret["data"])
    lab.learner_says(LearnerPhase.COMPLETE)
    lab.end_run("Complete", role="learner")
    wait_until(lambda: lab.get(KIND, "cartpole") is None)
    wait_until(lambda: lab.key not in lab.nats.published)


def label(lab: Lab, kind: str, name: str) -> str | None:
    found: Any = lab.get(kind, name)
    return found["metadata"]["labels"].get(JOB_LABEL) if found else None


@pytest.mark.parametrize("scope", ["Role", "ClusterRole"])
def test_every_right_of_the_chart_is_used_and_no_other_is_needed(
    scope: str, own_lab: Lab, api_server: ApiServer, helm: Helm, start_operator: Callable[..., RunningOperator]
) -> None:
    namespaces = (own_lab.namespace,) if scope == "Role" else ()
    shown = helm.render(operator__namespaces=list(namespaces))
    # Its roles for jobs: those for its keys and for its users have other names.
    name = {"Role": "rollfleet", "ClusterRole": "rollfleet-site"}[scope]
    roles = [role for role in shown.of(scope).values() if role["metadata"]["name"] == name]
    policy = names.network_policy("other", Role.WORKER)
    unwanted = [("NetworkPolicy", policy), ("Service", "other-nats"), ("Deployment", "other-nats")]
    with holding(api_server, roles), bounded(api_server, shown, own_lab.namespace):
        log = api_server.folder / AUDIT_LOG
        began = log.stat().st_size
        first = start_operator("", own_lab.nats, token=OTHER_TOKEN, namespaces=namespaces, access=scene.OWN)
        live_a_whole_life(own_lab)
        own_lab.apply("other")
        wait_until(lambda: all(own_lab.get(*each) for each in unwanted))
        first.stop()
        # It has no NetworkPolicies, and a NATS of the organisation's.
        second = start_operator("", own_lab.nats, token=OTHER_TOKEN, namespaces=namespaces, network_policies=False)
        wait_until(lambda: not any(own_lab.get(*each) for each in unwanted))
        second.stop()
    assert used(log.read_text()[began:], own_lab.namespace) == granted(roles)


@contextmanager
def bounded(server: ApiServer, shown: Rendered, namespace: str) -> Iterator[None]:
    """The chart's admission policy is in force for the operator, and only for so long."""
    created = []
    for kind, plural in POLICIES.items():
        text = json.dumps(shown.of(kind)["rollfleet-site"]).replace("system:serviceaccount:site:rollfleet", OTHER)
        text = text.replace("== 'site'", f"== '{namespace}'")  # the release's, with its key
        path = f"{ADMISSION}/{plural}"
        server.request("POST", path, json.loads(text))
        created.append(f"{path}/rollfleet-site")
    secret = manifest("v1", "Secret", "password")
    try:
        wait_until(lambda: "ValidatingAdmissionPolicy" in refusal(server, secret, namespace))
        yield
    finally:
        for path in created:
            server.request("DELETE", path)
        # The API server enforces a deleted policy a moment longer, and the next test makes one of the same name.
        wait_until(lambda: "ValidatingAdmissionPolicy" not in refusal(server, secret, namespace))


def refusal(server: ApiServer, body: Manifest, namespace: str, *, method: str = "POST", name: str = "") -> str:
    """What the API server answers to the operator's wish, of which it carries out nothing; empty: it would."""
    kind = KINDS[body["kind"]]
    media = {"POST": "application/json", "PATCH": "application/merge-patch+json", "DELETE": "application/json"}[method]
    path, content = kind.path(namespace, name), {"dryRun": ["All"]} if method == "DELETE" else body
    try:
        server.request(method, path, content, query={"dryRun": "All"}, content_type=media, token=OTHER_TOKEN)
    except ApiError as error:
        return str(error)
    return ""


def manifest(api_version: str, kind: str, name: str, **fields: Any) -> Manifest:
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": "x", "uid": "1-2-3", "controller": True}
    metadata = {"name": name, "labels": LABELS, "ownerReferences": [owner]}
    found: Manifest = overlay({"apiVersion": api_version, "kind": kind, "metadata": metadata}, fields)
    return found


def run(**fields: Any) -> Manifest:
    pod = {"restartPolicy": "Never", "serviceAccountName": "x-rollfleet", "containers": [{"name": "a", "image": "a"}]}
    spec = {"template": {"metadata": {"labels": LABELS}, "spec": pod}}
    found: Manifest = overlay(manifest("batch/v1", "Job", "x-workers-01234567", spec=spec), fields)
    return found


def policy(**fields: Any) -> Manifest:
    spec = {"podSelector": {"matchLabels": LABELS}, "policyTypes": ["Ingress"]}
    whole = manifest("networking.k8s.io/v1", "NetworkPolicy", "x-worker-rollfleet", spec=spec)
    found: Manifest = overlay(whole, fields)
    return found


def deployment(**fields: Any) -> Manifest:
    pod = {"serviceAccountName": "x-rollfleet", "containers": [{"name": "a", "image": "a"}]}
    spec = {"selector": {"matchLabels": LABELS}, "template": {"metadata": {"labels": LABELS}, "spec": pod}}
    found: Manifest = overlay(manifest("apps/v1", "Deployment", "x-nats", spec=spec), fields)
    return found


def service(**fields: Any) -> Manifest:
    spec = {"selector": LABELS, "ports": [{"port": 4222}]}
    found: Manifest = overlay(manifest("v1", "Service", "x-nats", spec=spec), fields)
    return found


def report(kind: str) -> Manifest:
    about = {"involvedObject": {"kind": kind, "name": "x"}, "reason": "A", "message": "", "type": "Normal"}
    return {"apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "x-"}, **about}


OTHERS_PODS = {
    "selector": {"matchLabels": {"a": "b"}},
    "template": {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"serviceAccountName": "x-rollfleet", "containers": [{"name": "a", "image": "a"}]},
    },
}
NO_OWNER: dict[str, Any] = {"metadata": {"ownerReferences": None}}
ANOTHER = {"apiVersion": "example.com/v1", "kind": "Other", "name": "x", "uid": "4-5-6", "controller": True}
OWN = {
    "secret": manifest("v1", "Secret", "x-worker-nats", type="rollfleet.dev/nats"),
    "service-account": manifest("v1", "ServiceAccount", "x-rollfleet"),
    "network-policy": policy(),
    "workers": run(),
    "evaluation": run(metadata={"name": "x-eval-0123abcd"}),
    "environment-servers": run(metadata={"name": "x-servers-0123abcd"}),
    "service-of-environment-servers": service(metadata={"name": "x-servers"}, spec={"clusterIP": "None"}),
    "network-policy-of-environment-servers": policy(metadata={"name": "x-env-server-rollfleet"}),
    "secret-of-the-server": manifest("v1", "Secret", "x-server-nats", type="rollfleet.dev/nats"),
    "server": deployment(),
    "service": service(),
    "server-of-a-name-that-begins-with-a-digit": deployment(metadata={"name": "nats-x"}),
    "service-of-a-name-that-begins-with-a-digit": service(metadata={"name": "nats-x"}),
    "service-of-environment-servers-of-such-a-name": service(metadata={"name": "servers-x"}),
    "service-with-a-load-balancer": service(spec={"type": "LoadBalancer"}),
    "network-policy-of-the-server": policy(metadata={"name": "x-nats-rollfleet"}),
    "event": report(KIND),
    "lease": manifest("coordination.k8s.io/v1", "Lease", "rollfleet"),
}
FOREIGN = {
    "secret-of-nobody": overlay(OWN["secret"], NO_OWNER),
    "secret-without-labels": overlay(OWN["secret"], {"metadata": {"labels": None}}),
    "secret-of-another-name": manifest("v1", "Secret", "password", type="rollfleet.dev/nats"),
    "secret-of-another-type": manifest("v1", "Secret", "x-worker-nats"),
    "token-of-a-service-account": manifest(
        "v1",
        "Secret",
        "x-worker-nats",
        type="kubernetes.io/service-account-token",
        metadata={"annotations": {"kubernetes.io/service-account.name": "default"}},
    ),
    "service-account-of-another-name": manifest("v1", "ServiceAccount", "admin"),
    "network-policy-of-all-pods": policy(spec={"podSelector": {"matchLabels": None}}),
    "run-of-nobody": run(**NO_OWNER),
    "run-of-another-name": run(metadata={"name": "mine"}),
    "pods-without-labels": run(spec={"template": {"metadata": {"labels": None}}}),
    "pods-as-another-account": run(spec={"template": {"spec": {"serviceAccountName": "admin"}}}),
    "server-of-nobody": deployment(**NO_OWNER),
    "server-of-another-name": deployment(metadata={"name": "x-other"}),
    "server-without-the-jobs-labels": deployment() | {"spec": OTHERS_PODS},
    "server-as-another-account": deployment(spec={"template": {"spec": {"serviceAccountName": "admin"}}}),
    "service-of-nobody": service(**NO_OWNER),
    "service-of-another-name": service(metadata={"name": "kubernetes"}),
    "service-to-pods-of-others": service(spec={"selector": {JOB_LABEL: "y"}}),
    "service-without-selector": service(spec={"selector": None}),
    "service-with-addresses": service(spec={"externalIPs": ["192.0.2.1"]}),
    "event-about-a-node": report("Node"),
    "lease-of-another-name": manifest("coordination.k8s.io/v1", "Lease", "other"),
}


@pytest.fixture(scope="class")
def bounds(api_server: ApiServer, helm: Helm) -> Iterator[Callable[..., str]]:
    """What the policy answers to a user who could do anything else: its refusals are its own."""
    shown = helm.render(admissionPolicy__serviceAccounts=["trainer"])
    roles = [{"metadata": {}, "rules": [EVERYTHING]}]
    with holding(api_server, roles), bounded(api_server, shown, "default"):
        yield lambda body, namespace="default", **how: refusal(api_server, body, namespace, **how)


class TestPolicy:
    """Whatever the order, these run together: the policy is there for them, and for no other test."""

    @pytest.mark.parametrize("name", OWN)
    def test_the_policy_admits_the_operators_own_objects(self, bounds: Callable[..., str], name: str) -> None:
        assert bounds(OWN[name]) == ""

    def test_the_policy_refuses_jobs_in_the_namespaces_of_kubernetes(self, bounds: Callable[..., str]) -> None:
        assert "namespaces of Kubernetes" in bounds(OWN["workers"], "kube-system")

    def test_the_policy_admits_the_key_of_the_installation(
        self, bounds: Callable[..., str], api_server: ApiServer
    ) -> None:
        metadata = {"name": KEY, "namespace": "default"}
        change = {"kind": "Secret", "data": {"key": "YQ=="}, "immutable": True}
        assert bounds(change, method="PATCH", name=KEY) == ""
        assert "ValidatingAdmissionPolicy" in bounds(
            {"kind": "Secret", "metadata": metadata}, method="DELETE", name=KEY
        )

    def test_the_policy_admits_service_accounts_that_the_chart_lists(self, bounds: Callable[..., str]) -> None:
        assert bounds(run(spec={"template": {"spec": {"serviceAccountName": "trainer"}}})) == ""

    @pytest.mark.parametrize("name", FOREIGN)
    def test_the_policy_refuses_what_is_no_jobs(self, bounds: Callable[..., str], name: str) -> None:
        assert "ValidatingAdmissionPolicy" in bounds(FOREIGN[name])

    def test_the_policy_refuses_pods_and_all_changes_of_them_but_their_end(
        self, bounds: Callable[..., str], own_lab: Lab
    ) -> None:
        spec = {"containers": [{"name": "a", "image": "a"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "labels": LABELS}, "spec": spec}
        assert "ValidatingAdmissionPolicy" in bounds(pod)
        own_lab.create(pod)
        change = {"kind": "Pod", "metadata": {"finalizers": ["example.com/other"]}}
        assert "ValidatingAdmissionPolicy" in bounds(change, own_lab.namespace, method="PATCH", name="x")
        end = {"kind": "Pod", "spec": {"activeDeadlineSeconds": 1}}
        assert bounds(end, own_lab.namespace, method="PATCH", name="x") == ""
        image = {"spec": {"containers": [{"name": "a", "image": "b"}]}}
        for more in (change, image, {"metadata": {"labels": {"a": "b"}}}, {"spec": {"activeDeadlineSeconds": 2}}):
            assert "Policy" in bounds(overlay(end, more), own_lab.namespace, method="PATCH", name="x")

    @pytest.mark.parametrize("owners", [[], [ANOTHER]], ids=["nobody's", "another controller's"])
    def test_the_policy_lets_an_object_of_others_alone(
        self, bounds: Callable[..., str], own_lab: Lab, owners: list[Any]
    ) -> None:
        metadata: Any = OWN["secret"]["metadata"]
        own_lab.create(OWN["secret"] | {"metadata": metadata | {"ownerReferences": owners}})
        theirs = {"namespace": own_lab.namespace, "name": "x-worker-nats"}
        owner = metadata["ownerReferences"][0] | {"uid": ANOTHER["uid"]}
        adopted = {"kind": "Secret", "metadata": metadata | {"ownerReferences": [owner]}}
        assert "ValidatingAdmissionPolicy" in bounds(adopted, method="PATCH", **theirs)
        assert "ValidatingAdmissionPolicy" in bounds({"kind": "Secret"}, method="DELETE", **theirs)

    def test_the_policy_lets_only_jobs_with_a_time_to_live_be_deleted(
        self, bounds: Callable[..., str], own_lab: Lab
    ) -> None:
        own_lab.apply("stays", suspend=True)
        own_lab.apply("goes", suspend=True, ttlSecondsAfterFinished=60)
        assert "ValidatingAdmissionPolicy" in bounds({"kind": KIND}, own_lab.namespace, method="DELETE", name="stays")
        assert bounds({"kind": KIND}, own_lab.namespace, method="DELETE", name="goes") == ""
