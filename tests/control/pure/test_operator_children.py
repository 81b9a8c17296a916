"""What a job owns besides its workers: identity, credentials, fence, learner."""

import base64
from dataclasses import replace
from typing import Any

import pytest
from tests.control.pure.scene import OWN, SHARED, Scene, a_job, scene, wanted

from rollfleet_api.address import PUBLIC_URL_FILE, Address
from rollfleet_api.messages import LearnerPhase
from rollfleet_api.permissions import Role
from rollfleet_operator import names
from rollfleet_operator.access import ROLES, network_policy
from rollfleet_operator.manifest import Ref, overlay
from rollfleet_operator.nats_access import Login
from rollfleet_operator.nats_server import is_needed
from rollfleet_operator.observed import observe
from rollfleet_operator.settings import Settings

LEARNER = {"template": {"spec": {"containers": [{"name": "trainer", "command": ["python", "train.py"]}]}}}


QUEUED = {"kueue.x-k8s.io/queue-name": "gpus"}
ENDS = scene(learner={"template": {}}).running(0).ended("Complete", Role.LEARNER)
ENDS = ENDS.with_heartbeats(phase=LearnerPhase.COMPLETE).later(1)
ELSEWHERE = scene().with_heartbeats(phase=LearnerPhase.COMPLETE).later(1)


@pytest.mark.parametrize(
    ("found", "needed"),
    [
        pytest.param(scene(), True, id="its workers start"),
        pytest.param(scene().edited(suspend=True), False, id="it is suspended"),
        pytest.param(scene().running(0).edited(suspend=True), True, id="it is suspended, its workers still deliver"),
        pytest.param(Scene(a_job(labels=QUEUED)), False, id="it comes into a queue"),
        pytest.param(scene(labels=QUEUED).suspended(), False, id="it waits in a queue"),
        pytest.param(scene(labels=QUEUED), True, id="its queue has admitted it"),
        pytest.param(ENDS, True, id="it is complete, and its pods have to hear of it"),
        pytest.param(replace(ENDS, pods=()), False, id="it is complete, and its last pod has left"),
        pytest.param(ELSEWHERE, True, id="it is complete, its learner elsewhere"),
    ],
)
def test_a_job_needs_its_server_when(found: Scene, needed: bool) -> None:
    assert is_needed(found.job, found.observed) is needed


def test_children_are_deleted_with_the_job_and_do_not_delay_it() -> None:
    env = {"vectorization": "Async", "servers": {"replicas": 1}}
    for manifest in wanted(a_job(learner=LEARNER, env=env)).values():
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (a_job().metadata.uid, True, False)
        assert "finalizers" not in manifest["metadata"]


def test_children_have_labels_of_their_template_and_queue_and_none_of_the_jobs_other_tools() -> None:
    queue, theirs = {"kueue.x-k8s.io/queue-name": "gpus"}, {"applyset.kubernetes.io/part-of": "an-applyset"}
    template = {"metadata": {"labels": {"team": "rl", "kueue.x-k8s.io/queue-name": "others"}}}
    job = a_job(labels=theirs | queue, template=template, nats={"template": template})
    for which, manifest in wanted(job).items():
        found = manifest["metadata"]["labels"]
        assert not found.keys() & theirs.keys()
        assert found.items() >= names.labels("cartpole").items()
        assert found.get("team") == ("rl" if which.kind in ("Job", "Deployment") else None)
        assert found.get("kueue.x-k8s.io/queue-name") == ("gpus" if which.kind == "Job" else None)


def test_a_role_reads_its_address_from_the_mounted_secret(tmp_path: Any) -> None:
    for role in (Role.WORKER, Role.LEARNER):
        secret = wanted(a_job())[Ref("Secret", names.secret("cartpole", role))]
        for name, data in secret["data"].items():
            (tmp_path / name).write_bytes(base64.b64decode(data))
        address = Address.read({}, files=tmp_path)
        assert (address.url, address.job) == ("tls://cartpole-nats.lab.svc:4222", "lab/cartpole")
        assert address.credentials is not None
        assert address.credentials.read_text() == f"{role}:{OWN.key.password(a_job(), role)}"
        assert address.ca is not None
        assert address.ca.read_bytes() == OWN.key.authority(a_job())


def test_the_learner_alone_learns_the_public_address_of_nats() -> None:
    children = wanted(a_job(evaluation={"every": 1}))
    found = {role: children[Ref("Secret", names.secret("cartpole", role))]["data"] for role in ROLES}
    assert PUBLIC_URL_FILE not in found[Role.WORKER]
    assert base64.b64decode(found[Role.LEARNER][PUBLIC_URL_FILE]) == b"tls://nats.example:4222"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({"hostname": "lb.example"}, "tls://lb.example:4222"),
        ({"ip": "2001:db8::1"}, "tls://[2001:db8::1]:4222"),
        ({"hostname": "Victim-nats.team-b.svc"}, None),
        ({"hostname": "victim-nats.team-b.svc.cluster.local."}, None),
    ],
)
def test_no_name_inside_of_the_cluster_is_a_load_balancers(given: dict[str, str], url: str | None) -> None:
    status = {"status": {"loadBalancer": {"ingress": [given]}}}
    job = a_job()
    host = observe(job, [overlay(wanted(job)[Ref("Service", "cartpole-nats")], status)], []).public_host
    assert (OWN.login(a_job(), Role.LEARNER, host=host).url if host else None) == url


def fence(role: Role, **settings: Any) -> Any:
    return wanted(a_job(), **settings)[Ref("NetworkPolicy", names.network_policy("cartpole", role))]["spec"]


def test_workers_may_connect_only_to_name_servers_and_nats() -> None:
    found = fence(Role.WORKER)
    assert found["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in found
    assert {port["port"] for rule in found["egress"] for port in rule["ports"]} == {53, 4222}


@pytest.mark.parametrize(
    ("url", "ports"),
    [("tls://a", {4222}), ("tls://user:1@a:5222,tls://b:5223", {5222, 5223}), ("tls://a:5222,tls://b", {4222, 5222})],
)
def test_workers_may_connect_to_the_port_of_each_url_of_an_organisations_nats(url: str, ports: set[int]) -> None:
    access = replace(SHARED, external=Login(url=url, credentials=b""))
    nats, dns = {"podSelector": {"matchLabels": {"a": "nats"}}}, {"podSelector": {"matchLabels": {"a": "dns"}}}
    settings = Settings(nats_to=(nats,), dns=({"to": [dns]},))
    names_of, found = network_policy(a_job(), Role.WORKER, access, settings)["spec"]["egress"]
    assert (names_of["to"], found["to"]) == ([dns], [nats])
    assert {port["port"] for port in found["ports"]} == ports


def test_the_server_of_a_job_accepts_its_pods_the_operator_and_whom_the_installation_allows() -> None:
    guest: dict[str, Any] = {"namespaceSelector": {}}
    found = fence(Role.NATS, nats_from=(guest,), key_secret="rollfleet/key")
    assert found["podSelector"]["matchLabels"] == names.labels("cartpole", Role.NATS)
    assert found["policyTypes"] == ["Ingress", "Egress"]
    (rule,) = found["ingress"]
    assert [port["port"] for port in rule["ports"]] == [4222]
    job, operator, other = rule["from"]
    assert job == {"podSelector": {"matchLabels": {"rollfleet.dev/job": "cartpole"}}}
    assert operator["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "rollfleet"}
    assert other == guest


def server(**spec: Any) -> Any:
    return wanted(a_job(**spec))[Ref("Deployment", "cartpole-nats")]["spec"]["template"]["spec"]


def test_a_server_pod_has_the_workers_priority_and_pull_secrets_unless_its_template_has_others() -> None:
    theirs = {"spec": {"priorityClassName": "high", "imagePullSecrets": [{"name": "mirror"}], "nodeName": "n"}}
    found = server(template=theirs)
    assert (found["priorityClassName"], found["imagePullSecrets"]) == ("high", [{"name": "mirror"}])
    assert "nodeName" not in found
    assert server(template=theirs, nats={"template": {"spec": {"priorityClassName": "x"}}})["priorityClassName"] == "x"


def test_a_toleration_of_a_user_leaves_the_seconds_of_a_lost_node() -> None:
    lost = {each["key"]: each for each in server()["tolerations"]}
    assert [each["tolerationSeconds"] for each in lost.values()] == [10, 10]
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists"}
    own = lost["node.kubernetes.io/unreachable"] | {"tolerationSeconds": 60}
    found = server(nats={"template": {"spec": {"tolerations": [gpu, own]}}})["tolerations"]
    assert found == [lost["node.kubernetes.io/not-ready"], gpu, own]


def test_a_jobs_pods_pull_images_by_the_installations_secrets() -> None:
    account = wanted(a_job(), image_pull_secrets=("pull",))[Ref("ServiceAccount", names.account("cartpole"))]
    assert account["imagePullSecrets"] == [{"name": "pull"}]


def test_a_service_names_its_protocol_and_a_load_balancer_has_the_installations_annotations() -> None:
    internal = {"example.com/internal": "true"}
    for kind, has in (("ClusterIP", False), ("LoadBalancer", True)):
        found = wanted(a_job(nats={"service": kind}), nats_service_annotations=internal)[
            Ref("Service", "cartpole-nats")
        ]
        assert (internal.items() <= found["metadata"]["annotations"].items()) is has
        assert found["spec"]["ports"][0]["appProtocol"] == "tcp"


def test_learner_may_connect_anywhere_and_accepts_no_connections() -> None:
    assert fence(Role.LEARNER)["policyTypes"] == ["Ingress"]


def learner(**spec: Any) -> Any:
    return scene(**spec).run(Role.LEARNER)


def test_learner_is_a_pod_with_its_own_credentials() -> None:
    spec = learner(learner=LEARNER)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (secret,) = [each for each in spec["volumes"] if each["name"] == "rollfleet"]
    assert (container["name"], container["image"]) == ("trainer", "worker:1")
    assert container["command"] == ["python", "train.py"]
    assert secret["secret"]["secretName"] == names.secret("cartpole", Role.LEARNER)


def test_learner_without_containers_gets_one() -> None:
    (container,) = learner(learner={"template": {}})["spec"]["template"]["spec"]["containers"]
    assert container["name"] == "learner"


def test_restarts_of_the_learner_are_counted_by_the_operator_and_disruptions_cost_none() -> None:
    spec = learner(learner=LEARNER)["spec"]
    assert spec["backoffLimit"] == 2**31 - 1
    assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == ["Ignore", "Ignore"]


def test_job_without_a_learner_makes_none() -> None:
    assert len([ref for ref in wanted(a_job()) if ref.kind == "Job"]) == 1
