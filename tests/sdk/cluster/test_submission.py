"""A submission on a real API server, where the test plays the operator."""

import base64
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.faults.proxy import Proxy
from tests.sdk.cluster.namespace import Namespace, condition
from tests.waiting import wait_until

from rollfleet import Cluster
from rollfleet.cluster import submission
from rollfleet.cluster.api import ClusterApi
from rollfleet.cluster.sources import Sources
from rollfleet.cluster.submission import Submission
from rollfleet.errors import ClusterError, JobEnded
from rollfleet.learner.on_cluster import start_on_cluster
from rollfleet.testing import small_job
from rollfleet_api.job import KIND, CollectorJob
from rollfleet_api.metadata import Metadata

pytestmark = pytest.mark.usefixtures("outside")


def job(**spec: Any) -> CollectorJob:
    return small_job(**spec).model_copy(update={"metadata": Metadata(name="mine")})


def sources() -> Sources:
    found = Sources()
    found.files["envs.py"] = "SIZE = 1"
    return found


def submit(namespace: str, **place: Any) -> Submission:
    return Submission(job(source={"configMap": "mine-source"}), sources(), Cluster(namespace=namespace, **place))


def test_the_source_belongs_to_the_job_and_the_job_is_deleted_at_the_end(api: ClusterApi) -> None:
    submitted = submit(api.namespace)
    assert submitted.job.key == f"{api.namespace}/mine"
    created, source = api.get(KIND, api.namespace, "mine"), api.get("ConfigMap", api.namespace, "mine-source")
    assert created is not None
    assert source is not None
    assert source["data"] == {"envs.py": "SIZE = 1"}
    assert [each["uid"] for each in source["metadata"]["ownerReferences"]] == [created["metadata"]["uid"]]
    submitted.end()
    submitted.end()
    assert api.get(KIND, api.namespace, "mine") is None


def test_a_kept_job_stays(api: ClusterApi) -> None:
    submit(api.namespace, keep=True).end()
    assert api.get(KIND, api.namespace, "mine") is not None


def test_a_name_that_is_taken_is_an_error_that_leaves_no_source(api: ClusterApi) -> None:
    api.create(api_job(api.namespace))
    with pytest.raises(ClusterError, match='"mine" already exists; write another name, or delete it first'):
        submit(api.namespace)
    assert api.get("ConfigMap", api.namespace, "mine-source") is None


def test_a_submission_that_fails_after_its_job_was_created_deletes_it(
    api: ClusterApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClusterApi, "patch", lambda *_: sys.exit(1))
    with pytest.raises(SystemExit):
        submit(api.namespace)
    assert api.get(KIND, api.namespace, "mine") is None


def api_job(namespace: str) -> dict[str, Any]:
    return {**job().dump(), "metadata": {"name": "mine", "namespace": namespace}}


def test_the_reason_of_a_problem_that_waiting_rarely_mends_is_the_error(
    api: ClusterApi,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(submission, "PATIENCE_S", -1.0)
    submitted = submit(api.namespace)
    message = "pods are refused: exceeded quota: limit"
    namespace.report("mine", phase="Pending", conditions=[condition("Degraded", "QuotaExceeded", message)])
    with pytest.raises(ClusterError, match=r"mine do not start: Pending \(QuotaExceeded\): pods are refused: .*quota"):
        submitted.wait()
    assert "0 of 1 workers are ready: Pending (QuotaExceeded)" in capsys.readouterr().err


@pytest.mark.parametrize("refused", ["the operator's Secret", "the server's pod"])
def test_a_server_that_cannot_start_ends_the_connection_with_the_jobs_own_reason(
    api: ClusterApi, namespace: Namespace, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    monkeypatch.setattr(submission, "PATIENCE_S", -1.0)
    if refused == "the server's pod":
        data = {"url": base64.b64encode(f"nats://mine-nats.{api.namespace}.svc:4222".encode()).decode()}
        metadata = {"name": "mine-learner-nats", "namespace": api.namespace}
        api.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})

    def report() -> None:
        wait_until(lambda: api.get(KIND, api.namespace, "mine") is not None)
        found = condition("Degraded", "QuotaExceeded", "pods are refused")
        namespace.report("mine", phase="Pending", conditions=[found])

    operator = threading.Thread(target=report)
    operator.start()
    place = Cluster(namespace=api.namespace, progress=False, timeout_s=60)
    with pytest.raises(ClusterError, match=r"mine do not start: Pending \(QuotaExceeded\)"):
        start_on_cluster(job(), Sources(), place, device=None, no_cuda_sync=False)
    operator.join()


def test_a_failed_job_and_a_deleted_one_end_the_wait(api: ClusterApi, namespace: Namespace) -> None:
    submitted = submit(api.namespace, progress=False)
    failed = condition("Failed", "WorkerFailed", "worker 0: no module farm")
    namespace.report("mine", phase="Failed", conditions=[failed])
    with pytest.raises(JobEnded, match=r"mine has failed: .*WorkerFailed.*: worker 0: no module farm$"):
        submitted.wait()
    submitted.remove_workers([])
    submitted.jobs.delete(submitted.job.key)
    with pytest.raises(JobEnded, match="mine was deleted before its workers were ready"):
        submitted.wait()


def test_a_cut_connection_does_not_end_the_wait(
    api: ClusterApi, namespace: Namespace, network: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted = submit(api.namespace, timeout_s=60)

    def cut() -> None:  # while it waits
        network.cut()
        ready = {"desired": 1, "ready": 1}
        namespace.report("mine", phase="Running", workers=ready, conditions=[condition("Ready", "WorkersReady")])

    timer = threading.Timer(1.0, cut)
    timer.start()
    submitted.wait()
    timer.join()
    assert "1 of 1 workers are ready" in capsys.readouterr().err


def test_a_start_that_takes_too_long_ends_with_what_is_known(api: ClusterApi) -> None:
    submitted = submit(api.namespace, timeout_s=0)
    with pytest.raises(ClusterError, match=r"do not start: .*no operator has processed this job"):
        submitted.wait()


def test_in_a_pod_the_job_belongs_to_the_pod(
    api: ClusterApi, namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "namespace").write_text(api.namespace)
    monkeypatch.setattr(submission, "_IN_POD", tmp_path / "namespace")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    pod = namespace.pod(None)
    monkeypatch.setattr(socket, "gethostname", lambda: pod)
    submit(api.namespace)
    created = api.get(KIND, api.namespace, "mine")
    assert created is not None
    assert [(each["kind"], each["name"]) for each in created["metadata"]["ownerReferences"]] == [("Pod", pod)]
