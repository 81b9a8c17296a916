"""On a real API server: what the operator makes, and that it stays as it should be."""

import base64
from collections.abc import Callable
from typing import Any

import pytest
from tests.control.api_server.lab import Lab
from tests.control.kubernetes import wait_for

from rollfleet_api.job import KIND
from rollfleet_api.kubernetes_names import MANAGED_BY_LABEL
from rollfleet_api.permissions import Role
from rollfleet_operator import names
from rollfleet_operator.errors import NatsFull

pytestmark = pytest.mark.cluster
LEARNER = {"template": {"spec": {"containers": [{"name": "learner", "command": ["python", "train.py"]}]}}}


def versions(lab: Lab) -> dict[str, str]:
    kinds = ("Job", "ServiceAccount", "Secret", "NetworkPolicy")
    found = {
        f"{kind}/{each['metadata']['name']}": each["metadata"]["resourceVersion"]
        for kind in kinds
        for each in lab.all(kind)
    }
    job: Any = lab.get(KIND, "cartpole")  # its version changes when the API server sorts who wrote which field
    return found | {"generation": str(job["metadata"]["generation"]), "status": str(job.get("status"))}


def test_job_gets_all_it_needs(lab: Lab) -> None:
    lab.apply(workers=3, learner=LEARNER)
    assert lab.run()["spec"]["completions"] == lab.run()["spec"]["parallelism"] == 3
    assert lab.run("learner")["spec"]["template"]["spec"]["containers"][0]["command"] == ["python", "train.py"]
    assert lab.get("ServiceAccount", names.account("cartpole"))
    for role in (Role.WORKER, Role.LEARNER):
        secret = lab.get("Secret", names.secret("cartpole", role))
        assert secret is not None
        assert role in base64.b64decode(secret["data"]["user.creds"]).decode()
        assert lab.get("NetworkPolicy", names.network_policy("cartpole", role))


def test_operator_leaves_no_finalizer_and_no_annotation_on_a_job(lab: Lab) -> None:
    lab.apply()
    lab.wait_condition("Progressing", "Starting")
    job: Any = lab.get(KIND, "cartpole")
    assert "finalizers" not in job["metadata"]
    assert "annotations" not in job["metadata"]


def test_pods_pass_pod_security_restricted_with_devices_claims_and_files(lab: Lab) -> None:
    lab.enforce("restricted")
    claims = {
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
        "containers": [{"name": "worker", "resources": {"claims": [{"name": "gpu"}]}}],
    }
    slices = {"gpu": {"count": 1, "resource": "nvidia.com/mig-1g.10gb"}}
    lab.apply(resources=slices, source={"configMap": "code"}, template={"spec": claims}, learner=LEARNER)
    lab.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"a.py": ""}})
    for role in ("worker", "learner"):
        lab.dry_run_pod(lab.run(role)["spec"]["template"])
    (worker,) = lab.run()["spec"]["template"]["spec"]["containers"]
    assert worker["resources"]["claims"] == [{"name": "gpu"}]
    assert worker["resources"]["limits"] == worker["resources"]["requests"] == {"nvidia.com/mig-1g.10gb": "1"}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ServiceAccount", names.account("cartpole")),
        ("NetworkPolicy", names.network_policy("cartpole", Role.WORKER)),
        ("Job", ""),
    ],
)
def test_deleted_child_comes_back(lab: Lab, kind: str, name: str) -> None:
    lab.apply()
    name = name or lab.run()["metadata"]["name"]
    before = wait_for(lambda: lab.get(kind, name))
    lab.delete(kind, name)
    wait_for(lambda: (found := lab.get(kind, name)) and found["metadata"]["uid"] != before["metadata"]["uid"])


def test_drift_is_repaired(lab: Lab) -> None:
    lab.apply()
    run, policy = lab.run()["metadata"]["name"], names.network_policy("cartpole", Role.WORKER)
    lab.patch("Job", run, {"spec": {"completions": 9, "parallelism": 9}})
    lab.patch("Job", run, {"metadata": {"labels": {MANAGED_BY_LABEL: None}}})
    lab.patch("NetworkPolicy", policy, {"spec": {"policyTypes": ["Ingress"]}})
    wait_for(lambda: lab.run()["spec"]["parallelism"] == 2)
    wait_for(lambda: lab.run()["metadata"]["labels"].get(MANAGED_BY_LABEL))
    wait_for(lambda: len((lab.get("NetworkPolicy", policy) or {})["spec"]["policyTypes"]) == 2)


def test_unchanged_apply_changes_nothing(lab: Lab) -> None:
    lab.apply()
    wait_for(lambda: (before := versions(lab)) and lab.seconds_pass(0.5) and before == versions(lab))
    before = versions(lab)
    lab.apply()
    lab.seconds_pass(1.0)  # several looks
    assert versions(lab) == before


@pytest.mark.parametrize(
    ("kind", "name"),
    [("ServiceAccount", names.account("cartpole")), ("Secret", names.secret("cartpole", Role.WORKER))],
)
def test_object_of_another_owner_is_not_taken(lab: Lab, kind: str, name: str) -> None:
    lab.create({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}})
    lab.apply()
    assert "belongs to someone else" in lab.wait_condition("Degraded", "NameTaken")["message"]
    found: Any = lab.get(kind, name)
    assert "ownerReferences" not in found["metadata"]


def test_children_of_an_earlier_job_of_the_name_are_waited_for(lab: Lab) -> None:
    lab.apply()
    lab.run()
    wait_for(lambda: lab.key in lab.nats.published)
    lab.delete(KIND, "cartpole")  # no garbage collector runs here: its children stay
    lab.apply()
    lab.seconds_pass(0.5)
    assert lab.condition("Degraded").get("status") != "True", lab.status()
    for kind in ("Job", "ServiceAccount", "Secret", "NetworkPolicy"):
        for child in lab.all(kind):
            lab.delete(kind, child["metadata"]["name"])
    job: Any = lab.get(KIND, "cartpole")
    wait_for(lambda: lab.runs() and lab.run()["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"])


def test_status_of_an_earlier_job_is_not_written_into_a_later_one(lab: Lab) -> None:
    lab.apply()
    wait_for(lambda: lab.status().get("phase"))
    with lab.replaced_during_reconciliation("cartpole") as replaced:
        lab.apply(workers=3)
        wait_for(replaced.is_set)
        lab.seconds_pass(0.5)
    assert lab.status() == {}  # its own waits until what the earlier one left is gone


def test_credentials_are_rotated_on_request(lab: Lab) -> None:
    lab.apply()
    run, name = lab.run(), names.secret("cartpole", Role.WORKER)
    before = wait_for(lambda: lab.get("Secret", name))
    lab.patch(KIND, "cartpole", {"metadata": {"annotations": {names.ROTATE: "2026-01-31T12:00:00Z"}}})
    wait_for(lambda: (lab.get("Secret", name) or {})["data"] != before["data"])
    assert lab.run()["metadata"]["uid"] == run["metadata"]["uid"]
    assert lab.condition("Degraded")["status"] == "False"
    lab.patch(KIND, "cartpole", {"metadata": {"annotations": {names.ROTATE: "now"}}})
    lab.wait_condition("Degraded", "AnnotationInvalid")


def test_missing_source_is_reported_and_waited_for(lab: Lab) -> None:
    lab.apply(source={"configMap": "code"})
    assert "`code`" in lab.wait_condition("Degraded", "SourceMissing")["message"]
    assert lab.runs() == []
    lab.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"a.py": "A = 1"}})
    before = lab.run()["metadata"]["name"]
    lab.wait_condition("Degraded", "AsExpected", "False")
    lab.patch("ConfigMap", "code", {"data": {"a.py": "A = 2"}})
    wait_for(lambda: [run["metadata"]["name"] for run in lab.runs()] not in ([before], []))


def test_template_that_is_refused_leaves_the_workers_alone(lab: Lab) -> None:
    lab.apply()
    before = lab.run()["metadata"]["uid"]
    lab.apply(template={"spec": {"containers": [{"name": "worker", "imagePullPolicy": "Sometimes"}]}})
    assert "imagePullPolicy" in lab.wait_condition("Degraded", "Invalid")["message"]
    assert lab.run()["metadata"]["uid"] == before
    lab.apply()
    lab.wait_condition("Degraded", "AsExpected", "False")


@pytest.fixture
def stuck(lab: Lab) -> Callable[[str], dict[str, Any]]:
    """Runs workers, and takes away what their successors need; returns the spec to go on with."""

    def build(why: str) -> dict[str, Any]:
        spec: dict[str, Any] = {"source": {"configMap": "code"}}
        lab.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"a.py": ""}})
        lab.apply(**spec)
        lab.run()
        if why == "SourceMissing":
            lab.delete("ConfigMap", "code")
        elif why == "TemplateInvalid":
            spec["template"] = {"spec": {"containers": "worker"}}
        else:
            spec["template"] = {"spec": {"containers": [{"name": "worker", "imagePullPolicy": "Sometimes"}]}}
        lab.apply(**spec)
        lab.wait_condition("Degraded", why)
        return spec

    return build


@pytest.mark.parametrize("why", ["SourceMissing", "TemplateInvalid", "Invalid"])
def test_job_that_cannot_be_made_now_is_scaled_suspended_and_rotated(
    lab: Lab, stuck: Callable[[str], dict[str, Any]], why: str
) -> None:
    spec = stuck(why)
    name = names.secret("cartpole", Role.WORKER)
    secret: Any = lab.get("Secret", name)
    lab.nats.rotation += 1
    wait_for(lambda: (lab.get("Secret", name) or {})["data"] != secret["data"])
    lab.apply(**spec, workers=5)
    wait_for(lambda: lab.run()["spec"]["parallelism"] == 5)
    lab.apply(**spec, workers=5, suspend=True)
    wait_for(lambda: not lab.runs())


def test_objects_of_others_with_our_labels_are_passed_over(lab: Lab) -> None:
    lab.apply()
    job: Any = lab.get(KIND, "cartpole")
    owner = {"apiVersion": job["apiVersion"], "kind": KIND, "name": "cartpole", "uid": job["metadata"]["uid"]}
    container = {"name": "evaluator", "image": "evaluator:1"}
    pod = {"restartPolicy": "Never", "containers": [container]}
    labels = names.labels("cartpole")  # without a role
    meta = {"name": "evaluation", "labels": labels, "ownerReferences": [owner]}
    lab.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "evaluator", "labels": labels}, "spec": pod})
    lab.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"template": {"spec": pod}}})
    lab.seconds_pass(0.5)
    lab.apply(workers=3)
    wait_for(lambda: [run for run in lab.runs() if run["spec"]["parallelism"] == 3])
    assert lab.condition("Degraded")["status"] == "False"
    assert lab.get("Job", "evaluation")


def test_credentials_are_rotated_although_nats_has_no_space_for_an_edit(lab: Lab) -> None:
    lab.apply(workers=2)
    before, name = lab.run(), names.secret("cartpole", Role.WORKER)
    secret: Any = lab.get("Secret", name)

    async def full(job: Any) -> None:
        if job.metadata.namespace == lab.namespace:
            raise NatsFull("NATS has no space")

    lab.nats.on_provision = full
    try:
        lab.apply(workers=3, image="a:2", delivery={"maxBytes": "100Gi"})
        lab.wait_condition("Degraded", "NatsFull")
        lab.nats.rotation += 1
        wait_for(lambda: (lab.get("Secret", name) or {})["data"] != secret["data"])
        kept = lab.run()
        assert (kept["metadata"]["uid"], kept["spec"]["parallelism"]) == (before["metadata"]["uid"], 2)
    finally:
        lab.nats.on_provision = None
