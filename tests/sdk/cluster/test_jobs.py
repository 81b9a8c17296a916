"""`rollfleet.Jobs` on a real API server; the test plays the operator and the kubelet."""

import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.api.job_data import job_data
from tests.faults.proxy import Proxy
from tests.sdk.cluster.log_server import said, serving
from tests.sdk.cluster.namespace import NOW, Namespace, condition

from rollfleet import CollectorJob, Jobs
from rollfleet.errors import ClusterError, JobEnded, JobInvalid, JobNotFound, Timeout

JOB = job_data()


def test_a_model_dict_or_file_is_submitted(jobs: Jobs, namespace: Namespace, kubeconfig: Path, tmp_path: Path) -> None:
    assert jobs.submit(JOB).key == f"{namespace.name}/cartpole"
    job = CollectorJob.model_validate(JOB | {"metadata": {"name": "ant", "labels": {"team": "a"}}})
    assert jobs.submit(job).metadata.labels == {"team": "a"}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(JOB | {"metadata": {"name": "pong", "namespace": namespace.name}}))
    assert Jobs(kubeconfig=kubeconfig).submit(str(file)).metadata.generation == 1
    assert sorted(each.metadata.name for each in jobs.list()) == ["ant", "cartpole", "pong"]
    assert f"{namespace.name}/ant" in [each.key for each in jobs.list(all_namespaces=True)]


def test_a_submitted_job_replaces_what_was_submitted_before(jobs: Jobs) -> None:
    jobs.submit(job_data(workers=4, source={"configMap": "code"}))
    again = jobs.submit(job_data(workers=3))
    assert (again.spec.workers, again.metadata.generation) == (3, 2)
    assert (again.spec.model_extra or {})["env"]["id"] == "CartPole-v1"
    found: Any = jobs.api.get("CollectorJob", jobs.api.namespace, "cartpole")
    assert "source" not in found["spec"]


def test_mistakes_are_found_before_anything_is_sent(jobs: Jobs, tmp_path: Path) -> None:
    with pytest.raises(JobInvalid, match="workers"):
        jobs.submit(job_data(workers=0))
    with pytest.raises(JobInvalid, match="No such file"):
        jobs.submit(tmp_path / "missing.yaml")
    assert jobs.list() == ()


def test_scale_suspend_resume_edit_and_delete_change_the_job(jobs: Jobs, namespace: Namespace) -> None:
    jobs.submit(JOB)
    assert jobs.scale(f"{namespace.name}/cartpole", 5).spec.workers == 5
    found: Any = jobs.api.get("CollectorJob", namespace.name, "cartpole")
    assert found["spec"]["workers"] == 5
    assert (jobs.suspend("cartpole").metadata.generation, jobs.resume("cartpole").metadata.generation) == (3, 4)
    assert jobs.edit("cartpole", {"collect": {"totalFrames": 640}}).spec.collect.total_frames == 640
    unknown = r"^the jobs of this cluster have no spec\.collect\.totlFrames; docs/fields\.md .*doctor.*$"
    with pytest.raises(ClusterError, match=unknown):
        jobs.edit("cartpole", {"collect": {"totlFrames": 640}})
    with pytest.raises(JobInvalid, match="workers: must be at least 1"):
        jobs.scale("cartpole", 0)
    namespace.report(phase="Complete", conditions=[condition("Complete", "LearnerDone")])
    with pytest.raises(JobEnded, match=r"cartpole is not resumed: it is Complete \(LearnerDone\)"):
        jobs.resume("cartpole")
    jobs.delete("cartpole")
    for call in (jobs.get, jobs.describe, jobs.suspend, jobs.delete, jobs.events, jobs.wait):
        with pytest.raises(JobNotFound, match=f"no job {namespace.name}/cartpole"):
            call("cartpole")


def test_a_watch_yields_each_state_until_the_job_is_deleted_and_goes_on_after_a_cut(
    namespace: Namespace, network: Proxy
) -> None:
    jobs = Jobs(namespace=namespace.name)
    jobs.submit(JOB)
    states = jobs.watch("cartpole")
    assert next(states).status.phase is None
    namespace.report(phase="Pending")
    assert next(states).status.phase == "Pending"
    network.cut()
    namespace.report(phase="Running")
    assert next(states).status.phase == "Running"
    jobs.delete("cartpole")
    assert list(states) == []


def test_wait_returns_the_job_once_its_condition_holds(jobs: Jobs, namespace: Namespace) -> None:
    jobs.submit(JOB)
    timer = threading.Timer(0.1, lambda: namespace.report(phase="Running", conditions=[condition("Ready")]))
    timer.start()
    assert jobs.wait("cartpole", "Ready", timeout_s=30).status.phase == "Running"
    timer.join()


def test_wait_says_why_a_condition_does_not_hold(jobs: Jobs, namespace: Namespace) -> None:
    jobs.submit(JOB)
    namespace.report(phase="Pending", conditions=[condition("Degraded", "ImagePullFailed", "worker 0 has no image")])
    with pytest.raises(Timeout, match=r"is not Ready after 0\.5 s: it is Pending \(ImagePullFailed\): worker 0 has no"):
        jobs.wait("cartpole", "Ready", timeout_s=0.5)
    namespace.report(phase="Failed", conditions=[condition("Failed", "TooManyRestarts", "worker 4 ended with code 1")])
    with pytest.raises(JobEnded, match=r"cartpole does not become Complete: it is Failed \(TooManyRestarts\)"):
        jobs.wait("cartpole")
    with pytest.raises(JobInvalid, match="condition: expected one of Ready, "):
        jobs.wait("cartpole", "ready")


def test_wait_goes_by_what_is_true_of_the_newest_spec(jobs: Jobs, namespace: Namespace) -> None:
    failed = condition("Failed", "WorkerFailed")
    jobs.submit(JOB)
    namespace.report(phase="Failed", conditions=[condition("Ready"), failed])
    jobs.scale("cartpole", 5)
    with pytest.raises(Timeout, match="cartpole is not Ready after 0 s"):
        jobs.wait("cartpole", "Ready", timeout_s=0)
    namespace.report(conditions=[failed], observedGeneration=2)
    for wanted in ("Failed", "Complete"):
        with pytest.raises(Timeout, match=f"cartpole is not {wanted} after 0 s"):  # it is tried again
            jobs.wait("cartpole", wanted, timeout_s=0)
    namespace.report(conditions=[failed | {"observedGeneration": 2}], observedGeneration=2)
    assert jobs.wait("cartpole", "Failed", timeout_s=0).metadata.generation == 2


def test_wait_ends_when_the_job_is_deleted(jobs: Jobs) -> None:
    jobs.submit(JOB)
    timer = threading.Timer(0.1, lambda: jobs.delete("cartpole"))
    timer.start()
    with pytest.raises(JobEnded, match="was deleted"):
        jobs.wait("cartpole", timeout_s=30)
    timer.join()


def test_wait_does_not_go_over_to_a_new_job_of_the_name(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.submit(JOB)
    seen = [*jobs.watch("cartpole", timeout_s=0)]
    monkeypatch.setattr(jobs, "watch", lambda *_, **__: seen)  # until it is deleted
    jobs.delete("cartpole")
    jobs.submit(JOB)
    with pytest.raises(JobEnded, match="cartpole was deleted before it was Complete"):
        jobs.wait("cartpole")


def test_a_description_has_the_jobs_own_events_and_the_reason_first(jobs: Jobs, namespace: Namespace) -> None:
    uid = jobs.submit(JOB).metadata.uid
    namespace.report(phase="Pending", conditions=[condition("Degraded", "ImagePullFailed", "worker 0 has no image")])
    namespace.pod(0, phase="Pending")
    namespace.event(uid, "of this job", time=NOW)
    namespace.event("of-an-earlier-job", "of another", time=NOW)
    described = jobs.describe("cartpole")
    assert (described.diagnosis.reason, described.diagnosis.is_problem) == ("ImagePullFailed", True)
    assert [each.message for each in described.events] == ["of this job"]
    assert [each.worker for each in described.pods] == [0]
    lines = str(described).splitlines()
    assert lines[:2] == [f"{namespace.name}/cartpole is Pending (ImagePullFailed)", "worker 0 has no image"]
    assert [each.message for each in jobs.events("cartpole")] == ["of this job"]


def test_logs_are_those_of_the_chosen_pods(jobs: Jobs, namespace: Namespace) -> None:
    jobs.submit(JOB)
    pods = [namespace.pod(index) for index in (0, 1, None)]
    lines = {pod: said() for pod in pods}
    with serving(lines) as port:
        for name in ("node-0", "node-1", "node-learner"):
            namespace.node(name, port)

        def say(*texts: str | None) -> None:
            for queue in lines.values():
                for text in texts:
                    queue.put(text)

        say("one", "two", None)
        assert [str(each) for each in jobs.logs("cartpole", worker=1)] == ["[worker 1] one", "[worker 1] two"]
        assert [str(each) for each in jobs.logs("cartpole", learner=True)] == ["[learner] one", "[learner] two"]
        assert [each.worker for each in jobs.logs("cartpole", worker=0)] == [0, 0]
        followed = jobs.logs("cartpole", follow=True)
        say("now")
        assert sorted(str(next(followed)) for _ in pods) == ["[learner] now", "[worker 0] now", "[worker 1] now"]
        say("later", None)
        assert len(list(followed)) == 3


def test_log_of_a_pod_is_that_of_its_own_container_unless_another_is_named(jobs: Jobs, namespace: Namespace) -> None:
    jobs.submit(JOB)
    pod = namespace.pod(0, beside=["a-sidecar"])
    with serving({f"{pod}/{name}": said(f"of {name}", None) for name in ("worker", "a-sidecar")}) as port:
        namespace.node("node-0", port)
        assert [each.text for each in jobs.logs("cartpole")] == ["of worker"]
        assert [each.text for each in jobs.logs("cartpole", container="a-sidecar")] == ["of a-sidecar"]
        assert "container x is not valid for pod" in next(jobs.logs("cartpole", container="x")).text


def test_followed_logs_that_are_left_are_read_no_further(jobs: Jobs, namespace: Namespace) -> None:
    jobs.submit(JOB)
    pods = [namespace.pod(index) for index in (0, 1)]
    lines = {pod: said() for pod in pods}
    with serving(lines) as port:
        for name in ("node-0", "node-1"):
            namespace.node(name, port)
        before = set(threading.enumerate())
        followed = jobs.logs("cartpole", follow=True)
        lines[pods[0]].put("now")
        assert str(next(followed)) == "[worker 0] now"
        readers = {each for each in threading.enumerate() if each.name == "rollfleet-log"} - before
        assert [each.daemon for each in readers] == [True, True]  # the interpreter ends without them
        followed.close()  # type: ignore[attr-defined]
        for queue in lines.values():
            queue.put("later")
        for reader in readers:
            reader.join(timeout=10)
            assert not reader.is_alive()
        for queue in lines.values():
            queue.put(None)


def test_an_unreadable_log_does_not_end_those_of_other_pods(jobs: Jobs, namespace: Namespace) -> None:
    jobs.submit(JOB)
    _, pod = namespace.pod(0), namespace.pod(1)
    with serving({pod: said("one", None)}) as port:
        namespace.node("node-1", port)  # no node-0
        unreadable, readable = sorted(map(str, jobs.logs("cartpole")))
    assert unreadable.startswith("[worker 0] ")
    assert readable == "[worker 1] one"


def test_log_of_a_failed_init_container_is_the_log_of_its_pod(jobs: Jobs, namespace: Namespace) -> None:
    jobs.submit(JOB)
    failed = {"terminated": {"exitCode": 2}}
    init = {"name": "fetch", "state": failed, "ready": False, "restartCount": 0, "image": "a", "imageID": ""}
    pod = namespace.pod(0, phase="Failed", initContainerStatuses=[init])
    (line,) = jobs.logs("cartpole")
    assert str(line) == f"[worker 0] container fetch is not valid for pod {pod}"  # no kubelet has run it


def test_logs_of_pods_that_have_not_started_say_why(jobs: Jobs, namespace: Namespace) -> None:
    jobs.submit(JOB)
    namespace.report(phase="Suspended", conditions=[condition("Suspended", "Suspended", "`spec.suspend` is true")])
    namespace.pod(0, phase="Pending")
    for which, subject in (({"worker": 3}, "worker 3"), ({"learner": True}, "the learner"), ({}, "the job")):
        with pytest.raises(ClusterError, match=rf"{subject} has no pod that has started: .*Suspended.*`spec\.suspend`"):
            list(jobs.logs("cartpole", **which))
    with pytest.raises(JobInvalid, match="exclude each other"):
        list(jobs.logs("cartpole", worker=0, learner=True))


@pytest.mark.parametrize("name", ["", "a/b/c", "/cartpole", 5, None])
def test_a_name_that_is_none_is_an_error(jobs: Jobs, name: Any) -> None:
    with pytest.raises(JobInvalid, match=r"job: expected `name` or `namespace/name`, got "):
        jobs.get(name)


def test_other_arguments_are_named_too(jobs: Jobs) -> None:
    with pytest.raises(JobInvalid, match="namespace: expected a name, got 5"):
        Jobs(namespace=5)  # type: ignore[arg-type]
    with pytest.raises(JobInvalid, match=r"spec: expected fields in the words of the YAML, such as .*, got 5"):
        jobs.edit("cartpole", 5)  # type: ignore[arg-type]


def test_a_name_with_special_characters_is_no_job(jobs: Jobs) -> None:
    with pytest.raises(JobNotFound):
        jobs.get("cart?pole")


def test_a_watch_of_no_time_yields_the_present_state(jobs: Jobs) -> None:
    jobs.submit(JOB)
    assert [each.metadata.name for each in jobs.watch("cartpole", timeout_s=0)] == ["cartpole"]
