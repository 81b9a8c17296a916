"""On a real API server: what the operator makes, and that it stays as it should be."""

import base64
from typing import Any

import pytest
from tests.api.job_data import job_data
from tests.control.api_server.lab import CHILDREN, Lab
from tests.control.kubernetes import ApiServer
from tests.waiting import wait_until

from rollfleet_api.job import KIND, CollectorJob
from rollfleet_api.kubernetes_names import MANAGED_BY_LABEL
from rollfleet_api.permissions import Role
from rollfleet_operator import names
from rollfleet_operator.errors import ApiError

pytestmark = pytest.mark.cluster
ADMISSION = "admissionregistration.k8s.io"
LEARNER = {"template": {"spec": {"containers": [{"name": "learner", "command": ["python", "train.py"]}]}}}


def state(lab: Lab) -> tuple[dict[str, str], int, Any]:
    """The state of a job, without its version: it changes when the API server sorts who wrote which field."""
    job: Any = lab.get(KIND, "cartpole")
    return lab.versions(), job["metadata"]["generation"], job.get("status")


def test_job_gets_all_it_needs_and_no_finalizer_or_annotation(lab: Lab) -> None:
    lab.apply(workers=3, learner=LEARNER)
    assert lab.run()["spec"]["completions"] == lab.run()["spec"]["parallelism"] == 3
    assert lab.run("learner")["spec"]["template"]["spec"]["containers"][0]["command"] == ["python", "train.py"]
    assert lab.get("ServiceAccount", names.account("cartpole"))
    for role in (Role.WORKER, Role.LEARNER):
        secret = lab.get("Secret", names.secret("cartpole", role))
        assert secret is not None
        assert base64.b64decode(secret["data"]["user.creds"]) == b"user:password"
        assert lab.get("NetworkPolicy", names.network_policy("cartpole", role))
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
    env = {"vectorization": "Async", "servers": {"replicas": 1}}
    lab.apply(env=env, resources=slices, source={"configMap": "code"}, template={"spec": claims}, learner=LEARNER)
    lab.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"a.py": ""}})
    for role in ("worker", "learner", "env-server"):
        lab.dry_run_pod(lab.run(role)["spec"]["template"])
    (worker,) = lab.run()["spec"]["template"]["spec"]["containers"]
    assert worker["resources"]["claims"] == [{"name": "gpu"}]
    assert worker["resources"]["limits"] == worker["resources"]["requests"] == {"nvidia.com/mig-1g.10gb": "1"}


def test_run_that_is_changed_unlabelled_or_deleted_is_made_as_before(lab: Lab) -> None:
    lab.apply()
    before = lab.run()["metadata"]
    lab.patch("Job", before["name"], {"spec": {"completions": 9, "parallelism": 9}})
    lab.patch("Job", before["name"], {"metadata": {"labels": {MANAGED_BY_LABEL: None}}})
    wait_until(lambda: lab.run()["spec"]["parallelism"] == 2)
    wait_until(lambda: lab.run()["metadata"]["labels"].get(MANAGED_BY_LABEL))
    lab.delete("Job", before["name"])
    wait_until(lambda: (found := lab.get("Job", before["name"])) and found["metadata"]["uid"] != before["uid"])


def test_unchanged_apply_changes_nothing(lab: Lab) -> None:
    lab.apply()
    wait_until(lambda: (before := state(lab)) and lab.seconds_pass(0.5) and before == state(lab))
    before = state(lab)
    lab.apply()
    lab.seconds_pass(1.0)  # several looks
    assert state(lab) == before


@pytest.mark.parametrize(
    ("kind", "name"), [("ServiceAccount", names.account("cartpole")), ("Secret", names.secret("cartpole", Role.WORKER))]
)
def test_object_of_another_owner_is_not_taken(lab: Lab, kind: str, name: str) -> None:
    lab.create({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}})
    lab.apply()
    assert "belongs to someone else" in lab.wait_condition("Degraded", "NameTaken")["message"]
    found: Any = lab.get(kind, name)
    assert "ownerReferences" not in found["metadata"]


def test_policy_that_refuses_a_secret_is_no_owner_of_its_name(lab: Lab, api_server: ApiServer) -> None:
    def add(kind: str, plural: str, spec: Any) -> None:
        body = {"apiVersion": f"{ADMISSION}/v1", "kind": kind, "metadata": {"name": lab.namespace}, "spec": spec}
        api_server.request("POST", f"/apis/{ADMISSION}/v1/{plural}", body)

    def refuses() -> bool:
        try:
            lab.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"generateName": "a-"}})
        except ApiError:
            return True
        return False

    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["secrets"]}
    here = {"matchLabels": {"kubernetes.io/metadata.name": lab.namespace}}
    constraints = {"namespaceSelector": here, "resourceRules": [rule]}
    validations = [{"expression": "false", "message": "no Secrets here"}]
    spec = {"matchConstraints": constraints, "validations": validations}
    add("ValidatingAdmissionPolicy", "validatingadmissionpolicies", spec)
    binding = {"policyName": lab.namespace, "validationActions": ["Deny"]}
    add("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", binding)
    wait_until(refuses)
    lab.apply()
    assert "no Secrets here" in lab.wait_condition("Degraded", "Forbidden")["message"]


def test_children_of_an_earlier_job_of_the_name_are_waited_for(lab: Lab) -> None:
    lab.apply()
    lab.run()
    wait_until(lambda: lab.key in lab.nats.published)
    lab.delete(KIND, "cartpole")  # no garbage collector runs here: its children stay
    lab.apply()
    assert "is not deleted yet" in lab.wait_condition("Progressing", "EarlierJob")["message"]
    assert lab.condition("Degraded")["status"] == "False"
    for kind in CHILDREN:
        for child in lab.all(kind):
            lab.delete(kind, child["metadata"]["name"])
    job: Any = lab.get(KIND, "cartpole")
    wait_until(lambda: lab.runs() and lab.run()["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"])


def test_status_of_an_earlier_job_is_not_written_into_a_later_one(lab: Lab) -> None:
    lab.apply()
    wait_until(lambda: lab.status().get("phase"))
    replaced: list[Any] = []

    async def replace(job: CollectorJob) -> None:  # between the actions of a reconciliation and its write of the status
        if not replaced:
            await lab.api.delete(KIND, lab.namespace, "cartpole", str(job.metadata.uid))
            metadata = {"namespace": lab.namespace, "name": "cartpole"}
            replaced.append(await lab.api.create(job_data(metadata)))

    with lab.on_publish(replace):
        lab.apply(workers=3)
        wait_until(lambda: replaced)
        lab.seconds_pass(0.5)
    lab.wait_condition("Progressing", "EarlierJob")  # its own
    assert lab.status()["workers"]["desired"] == 1


def test_missing_source_is_reported_and_waited_for(lab: Lab) -> None:
    lab.apply(source={"configMap": "code"})
    assert "`code`" in lab.wait_condition("Degraded", "SourceMissing")["message"]
    assert lab.runs() == []
    lab.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"a.py": "A = 1"}})
    before = lab.run()["metadata"]["name"]
    lab.wait_condition("Degraded", "AsExpected", "False")
    lab.patch("ConfigMap", "code", {"data": {"a.py": "A = 2"}})
    wait_until(lambda: [run["metadata"]["name"] for run in lab.runs()] not in ([before], []))


REFUSED = {"spec": {"containers": [{"name": "worker", "imagePullPolicy": "Sometimes"}]}}
UNREADABLE = {"spec": {"containers": [{"name": "worker", "env": [{"name": "A", "value": 5}]}]}}


@pytest.mark.parametrize(
    ("template", "reason", "named"),
    [
        (None, "SourceMissing", "`code`"),
        ({"spec": {"containers": "worker"}}, "TemplateInvalid", "containers"),
        (REFUSED, "Invalid", "imagePullPolicy"),
        (UNREADABLE, "TemplateInvalid", "expected string"),
    ],
)
def test_job_whose_next_workers_cannot_be_made_is_scaled_suspended_and_repaired(
    lab: Lab, template: Any, reason: str, named: str
) -> None:
    spec: dict[str, Any] = {"source": {"configMap": "code"}}
    lab.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"a.py": ""}})
    lab.apply(**spec)
    before, name = lab.run(), names.network_policy("cartpole", Role.WORKER)
    if reason == "SourceMissing":
        lab.delete("ConfigMap", "code")
    spec |= {"template": template}
    lab.apply(**spec)
    assert named in lab.wait_condition("Degraded", reason)["message"]
    lab.delete("NetworkPolicy", name)
    wait_until(lambda: lab.get("NetworkPolicy", name))
    lab.apply(**spec, workers=5)
    wait_until(lambda: lab.run()["spec"]["parallelism"] == 5)
    assert lab.run()["metadata"]["uid"] == before["metadata"]["uid"]
    lab.apply(**spec, workers=5, suspend=True)
    wait_until(lambda: not lab.runs())
