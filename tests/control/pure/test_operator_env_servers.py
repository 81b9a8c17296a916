"""The environment servers of a job: pods behind the workers, which start, scale, and leave with them."""

import base64
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.control.pure.scene import OWN, Scene, a_job, condition, scene, wanted

from rollfleet_api.env_servers import CERTIFICATE, CERTIFICATE_FILE, CERTIFICATE_HOST, COUNT, PORT, SERVERS
from rollfleet_api.job import CollectorJob
from rollfleet_api.kubernetes_names import JOB_LABEL
from rollfleet_api.permissions import Role
from rollfleet_api.publication import published
from rollfleet_api.state.status import status
from rollfleet_api.state.verdict import Stage
from rollfleet_api.status import ConditionStatus, ConditionType, EnvServersStatus, WorkersStatus
from rollfleet_operator import names
from rollfleet_operator.env_servers import files
from rollfleet_operator.manifest import Manifest, Ref, overlay, ref
from rollfleet_operator.plan import Apply, Change, Delete
from rollfleet_operator.revision import evaluation_revision, learner_revision, workers_revision

ENV: dict[str, Any] = {"vectorization": "Async", "numEnvs": 8, "servers": {"replicas": 3}}
SERVED = scene(env=ENV)
BOTH = {Role.WORKER, Role.ENV_SERVER}


def pod_spec(found: Scene, role: Role) -> Manifest:
    spec: Manifest = found.run(role)["spec"]["template"]["spec"]
    return spec


def variables(container: Manifest) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"]}


def test_a_server_is_a_pod_with_the_certificate_and_without_the_credentials_and_devices_of_workers() -> None:
    pulls, gpu = [{"name": "registry"}], {"gpu": {"count": 1}, "requests": {"memory": "8Gi"}}
    written = {"spec": {"imagePullSecrets": pulls, "nodeSelector": {"a": "gpu"}}}
    servers = {"resources": {"requests": {"cpu": "2"}}, "template": {"spec": {"tolerations": [{"operator": "Exists"}]}}}
    env = overlay(ENV, {"servers": servers})
    found = scene(env=env, image="a:1", resources=gpu, template=written)
    run = found.run(Role.ENV_SERVER)["spec"]
    assert (run["completionMode"], run["completions"], run["parallelism"]) == ("Indexed", 6, 6)
    pod = pod_spec(found, Role.ENV_SERVER)
    assert (pod["imagePullSecrets"], pod["tolerations"]) == (pulls, [{"operator": "Exists"}])
    assert "nodeSelector" not in pod
    assert (pod["restartPolicy"], pod["automountServiceAccountToken"]) == ("OnFailure", False)
    (container,) = pod["containers"]
    assert container["command"] == ["rollfleet", "env-server", "--port", str(PORT)]
    assert (container["image"], container["resources"]["requests"]) == ("a:1", {"cpu": "2"})
    assert variables(container)[CERTIFICATE] == str(CERTIFICATE_FILE)
    (secret,) = (volume["secret"] for volume in pod["volumes"] if "secret" in volume)
    assert [each["key"] for each in secret["items"]] == [CERTIFICATE_FILE.name]


@pytest.mark.parametrize("name", ["cartpole", "2048"])
def test_a_worker_finds_its_servers_by_the_names_of_their_pods(name: str) -> None:
    found = Scene(a_job(name, env=ENV, evaluation={"every": 1})).with_children()
    (container,) = pod_spec(found, Role.WORKER)["containers"]
    host, subdomain = found.run(Role.ENV_SERVER)["metadata"]["name"], pod_spec(found, Role.ENV_SERVER)["subdomain"]
    assert variables(container)[SERVERS].format(4) == f"{host}-4.{subdomain}.lab.svc:7700"
    assert subdomain[0].isalpha()
    service = wanted(found.job)[Ref("Service", subdomain)]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert service["selector"] == names.labels(name, Role.ENV_SERVER)
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert variables(container)[CERTIFICATE] == str(CERTIFICATE_FILE)
    assert str(CERTIFICATE_FILE.parent) in mounts
    assert SERVERS not in variables(pod_spec(found, Role.EVALUATION)["containers"][0])


def test_workers_and_servers_trust_the_certificate_of_their_job_alone(tmp_path: Path) -> None:
    def context(purpose: ssl.Purpose, job: CollectorJob) -> ssl.SSLContext:
        secret = wanted(job)[Ref("Secret", names.secret("cartpole", Role.WORKER))]["data"]
        file = tmp_path / f"{job.metadata.uid}.pem"
        file.write_bytes(base64.b64decode(secret[CERTIFICATE_FILE.name]))
        found = ssl.create_default_context(purpose, cafile=file)
        found.load_cert_chain(file)
        found.verify_mode = ssl.CERT_REQUIRED
        return found

    def shakes_hands(client: CollectorJob, server: CollectorJob) -> bool:
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        hears, speaks = context(ssl.Purpose.CLIENT_AUTH, server), context(ssl.Purpose.SERVER_AUTH, client)
        sides = [
            speaks.wrap_bio(to_client, to_server, server_hostname=CERTIFICATE_HOST),
            hears.wrap_bio(to_server, to_client, server_side=True),
        ]
        for side in sides * 2:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
        return sides[1].getpeercert() is not None

    job = a_job(env=ENV)
    other = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "of-another-job"})})
    assert shakes_hands(job, job)
    assert not shakes_hands(job, other)
    assert files(a_job(), OWN.key) == {}


def test_the_pods_of_the_job_reach_a_server_which_reaches_only_name_servers() -> None:
    found = wanted(a_job(env=ENV))
    policy = found[Ref("NetworkPolicy", names.network_policy("cartpole", Role.ENV_SERVER))]["spec"]
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {JOB_LABEL: "cartpole"}}}]
    assert {port["port"] for each in policy["egress"] for port in each["ports"]} == {53}
    out = found[Ref("NetworkPolicy", names.network_policy("cartpole", Role.WORKER))]["spec"]["egress"][-1]
    assert out["to"] == [{"podSelector": policy["podSelector"]}]
    assert out["ports"] == rule["ports"] == [{"port": PORT, "protocol": "TCP"}]


@pytest.mark.parametrize(
    ("edit", "changed", "created", "deleted"),
    [
        pytest.param({"workers": 5}, BOTH, set(), set(), id="more workers"),
        pytest.param({"env": {"servers": {"replicas": 2}}}, set(), BOTH, BOTH, id="fewer servers of each"),
        pytest.param({"env": {"servers": {"template": {"spec": {"nodeName": "a"}}}}}, set(), BOTH, BOTH, id="template"),
        pytest.param({"env": {"servers": None}}, set(), {Role.WORKER}, BOTH, id="processes in their place"),
        pytest.param({"suspend": True}, set(), set(), BOTH, id="suspended"),
        pytest.param({"delivery": {"maxBatchesAhead": 2}}, set(), set(), set(), id="what restarts no worker"),
    ],
)
def test_servers_change_with_their_workers(
    edit: dict[str, Any], changed: set[Role], created: set[Role], deleted: set[Role]
) -> None:
    found: dict[type, set[Role]] = {Change: set(), Apply: set(), Delete: set()}
    for action in SERVED.edited(**edit).planned():
        which = ref(action.manifest) if isinstance(action, Apply) else action.ref
        found[type(action)].add(names.Workload.parse(which.name).role)
    assert found == {Change: changed, Apply: created, Delete: deleted}


@pytest.mark.parametrize("replicas", [3, 2])
def test_servers_scale_with_the_workers_of_their_revision(replicas: int) -> None:
    actions = SERVED.edited(workers=5, env={"servers": {"replicas": replicas}}).planned()
    sizes = {each.ref: each.patch["spec"]["completions"] for each in actions if isinstance(each, Change)}
    assert sizes == {ref(SERVED.run(Role.WORKER)): 5, ref(SERVED.run(Role.ENV_SERVER)): 5 * 3}


@pytest.mark.parametrize("stage", [Stage.COMPLETE, Stage.FAILED])
def test_servers_of_an_ended_job_stop(stage: Stage) -> None:
    assert Change(ref(SERVED.run(Role.ENV_SERVER)), {"spec": {"suspend": True}}) in SERVED.planned(stage)


def test_servers_concern_neither_the_learner_nor_jobs_without_them() -> None:
    def learns(**env: Any) -> str:
        return learner_revision(a_job(learner={"template": {}}, env=ENV | env))

    assert learns() == learns(servers={"replicas": 2}) == learns(servers=None)
    assert len({workers_revision(a_job(env=ENV)), evaluation_revision(a_job(env=ENV))}) == 2
    assert not [which for which in wanted(a_job()) if "server" in which.name and "nats" not in which.name]


def test_workers_do_not_see_the_template_of_their_servers() -> None:
    env = overlay(ENV, {"servers": {"template": {"spec": {"nodeName": "a"}}, "resources": {"limits": {"cpu": "1"}}}})
    assert published(a_job(env=env)).spec.env == a_job(env=ENV).spec.env


def test_status_counts_servers() -> None:
    found = SERVED.run_changed({"status": {"ready": 4}}, Role.ENV_SERVER)
    assert status(found.snapshot).servers == EnvServersStatus(desired=6, ready=4)
    assert status(found.edited(suspend=True).snapshot).servers == EnvServersStatus()
    assert status(scene().snapshot).servers is None
    assert status(replace(found, children=()).snapshot).servers is None, "they are the worker's processes"


@pytest.mark.parametrize(
    ("state", "reason", "message"),
    [
        ({"waiting": {"reason": "ErrImagePull", "message": "not found"}}, "ImagePullFailed", "has no image: not found"),
        ({"waiting": {"reason": "CrashLoopBackOff"}}, "EnvServerCrashed", "ended with code 2: No such command"),
    ],
)
def test_server_that_does_not_start_degrades_the_job_and_fails_it_at_the_deadline(
    state: Manifest, reason: str, message: str
) -> None:
    ended = {"exitCode": 2, "message": "No such command\n"} if "CrashLoop" in str(state) else None
    container = {"name": "env-server", "ready": False, "state": state, "lastState": {"terminated": ended}}
    found = SERVED.running(0, 1).pod(5, role=Role.ENV_SERVER, phase="Running", containerStatuses=[container])
    degraded = condition(status(found.snapshot), "Degraded")
    assert (degraded.reason, degraded.message) == (reason, f"environment server 5 {message}")
    assert found.planned() == [], "the pod starts its container again"
    late = replace(found, now_s=found.now_s + found.job.spec.failure.pending_deadline_seconds)
    assert (late.verdict.stage, late.verdict.reason) == (Stage.FAILED, reason)


def test_server_that_cannot_be_placed_is_reported() -> None:
    unplaced = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: 3 Insufficient cpu."}
    found = SERVED.running(0, 1).pod(5, role=Role.ENV_SERVER, phase="Pending", conditions=[unplaced])
    degraded = condition(status(found.snapshot), "Degraded")
    assert degraded.reason == "InsufficientResources"
    assert degraded.message.startswith("environment server 5 waits for a node:")


@pytest.mark.parametrize("workers", [2, 0])
def test_a_job_whose_servers_wait_in_a_queue_is_queued(workers: int) -> None:
    found = scene(workers=workers, env=ENV).run_changed({"spec": {"suspend": True}}, Role.ENV_SERVER)
    for kind, holds in (("Suspended", True), ("Progressing", False)):
        queued = condition(status(found.snapshot), kind)
        assert (queued.reason, queued.status == ConditionStatus.TRUE) == ("Queued", holds)
        assert "environment servers" in queued.message


def test_servers_of_a_job_without_workers_make_it_ready_and_their_end_completes_it() -> None:
    found = scene(workers=0, env=ENV, failure={"learnerTimeoutSeconds": 60})
    assert [each for each in found.children if each["kind"] == "Job"] == [found.run(Role.ENV_SERVER)]
    run = found.run(Role.ENV_SERVER)["spec"]
    assert run["completions"] == 3
    assert pod_spec(found, Role.ENV_SERVER)["containers"][0]["command"][-2:] == ["--idle-timeout", "60"]

    def conditions(at: Scene) -> dict[str, tuple[ConditionStatus, str]]:
        return {each.type: (each.status, each.reason) for each in status(at.snapshot).conditions}

    assert conditions(found)[ConditionType.READY] == (ConditionStatus.FALSE, "ServersMissing")
    found = found.run_changed({"status": {"ready": 3}}, Role.ENV_SERVER)
    assert conditions(found)[ConditionType.READY] == (ConditionStatus.TRUE, "AllServersReady")
    assert conditions(found)[ConditionType.PROGRESSING] == (ConditionStatus.TRUE, "Serving")
    assert status(found.snapshot).workers == WorkersStatus()
    assert found.later(3600).verdict.stage is Stage.LIVE, "no learner sends heartbeats"
    ended = found.ended("Complete", Role.ENV_SERVER).verdict
    assert (ended.stage, ended.reason) == (Stage.COMPLETE, "ServersUnused")


def test_the_learner_of_a_job_without_workers_finds_its_servers_and_restarts_with_them() -> None:
    def learns(image: str, replicas: int = 3, workers: int = 0) -> Scene:
        template = {"spec": {"containers": [{"name": "learner", "image": "a:1"}]}}
        env = overlay(ENV, {"servers": {"replicas": replicas}})
        return scene(workers=workers, env=env, image=image, learner={"template": template})

    found = learns("a:1")
    given = variables(pod_spec(found, Role.LEARNER)["containers"][0])
    assert (given[COUNT], given[CERTIFICATE]) == ("3", str(CERTIFICATE_FILE))
    assert given[SERVERS].startswith(found.run(Role.ENV_SERVER)["metadata"]["name"])
    names_of = {learns(*each).run(Role.LEARNER)["metadata"]["name"] for each in (("a:1",), ("a:2",), ("a:1", 4))}
    assert len(names_of) == 3
    of_workers = learns("a:1", workers=1)
    assert COUNT not in variables(pod_spec(of_workers, Role.LEARNER)["containers"][0])
