"""The volume of a learner's files, in the job, as a claim, and in the pods that the operator makes of them."""

from pathlib import Path
from typing import Any

import pytest
from tests.sdk.cluster import objects
from tests.sdk.cluster.kubelet import Kubelet

from rollfleet import Cluster, Jobs
from rollfleet.cli import fetch as cli_fetch
from rollfleet.cli.fetch import KeptFiles
from rollfleet.cli.submit import with_learner
from rollfleet.cluster import submission
from rollfleet.cluster.api import ClusterApi
from rollfleet.cluster.kept_files import FOLDER, claim_of, mounted, reader
from rollfleet.errors import ClusterError, RollfleetError
from rollfleet.testing import small_job
from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.views import JobSpecView, JobView
from rollfleet_operator import names, pods, workloads
from rollfleet_operator.settings import Settings

SETTINGS = Settings(worker_image="worker:1")


def keeping(tmp_path: Path, **container: Any) -> CollectorJob:
    """A job whose learner keeps its files."""
    (tmp_path / "train.py").write_text("")
    template = {"spec": {"containers": [{"name": "ppo", **container}], "tolerations": [{"key": "gpu"}]}}
    job = small_job(**({"learner": {"template": template}} if container else {}))
    return mounted(with_learner(job, tmp_path, tmp_path / "train.py")[0], "test-kept-1")


def seen(job: CollectorJob) -> JobView:
    spec: Any = job.dump()["spec"]
    return objects.job().model_copy(update={"spec": JobSpecView.model_validate(spec, by_alias=True)})


def pod(run: Any) -> tuple[Any, Any]:
    spec = run["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"] == pods.POD_SECURITY
    assert pods.CONTAINER_SECURITY.items() <= container["securityContext"].items()
    assert {"name": "rollfleet-kept", "persistentVolumeClaim": {"claimName": "test-kept-1"}} in spec["volumes"]
    return spec, container


def mount(container: Any) -> Any:
    (found,) = [each for each in container["volumeMounts"] if each["name"] == "rollfleet-kept"]
    return found


@pytest.mark.parametrize("container", [{}, {"args": ["--output", "curve"]}, {"workingDir": "/tmp"}])
def test_a_learner_works_in_the_folder_of_its_volume(tmp_path: Path, container: dict[str, Any]) -> None:
    _, learner = pod(workloads.learner(keeping(tmp_path, **container), SETTINGS))
    assert mount(learner) == {"name": "rollfleet-kept", "mountPath": FOLDER}
    assert learner["workingDir"] == FOLDER
    assert learner["command"] == ["python", "-P", "-u", "-m", "train"]


def test_a_working_folder_and_mounts_of_the_users_stay(tmp_path: Path) -> None:
    data = {"name": "tmp", "mountPath": "/data"}
    _, learner = pod(workloads.learner(keeping(tmp_path, workingDir="/app", volumeMounts=[data]), SETTINGS))
    assert learner["workingDir"] == "/app"
    assert mount(learner)["mountPath"] == FOLDER
    assert data in learner["volumeMounts"]


def test_the_claim_of_a_job_is_found_in_its_spec(tmp_path: Path) -> None:
    assert claim_of(seen(keeping(tmp_path))) == "test-kept-1"
    assert claim_of(seen(small_job())) is None
    mine = {"name": "mine", "persistentVolumeClaim": {"claimName": "mine"}}
    assert claim_of(seen(small_job(learner={"template": {"spec": {"volumes": [mine]}}}))) is None
    assert claim_of(seen(small_job(learner={"template": {"spec": {"volumes": None}}}))) is None


def read_by(kept: JobView) -> tuple[Any, Any]:
    """The pod and the container of a fetch's worker."""
    env = {"entrypoint": f"{KeptFiles.__module__}:KeptFiles"}
    return pod(workloads.workers(small_job(env=env, **Cluster(template=reader(kept)).spec()), SETTINGS))


def test_a_reader_is_a_restricted_worker_that_cannot_write_and_runs_where_the_learner_may(tmp_path: Path) -> None:
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    kept = seen(keeping(tmp_path, command=["python", "-m", "train"], resources=limits))
    spec, worker = read_by(kept)
    assert worker["command"] == ["rollfleet", "worker"]
    assert "limits" not in {name for name, value in worker["resources"].items() if value}
    assert mount(worker) == {"name": "rollfleet-kept", "mountPath": FOLDER, "readOnly": True}
    assert spec["tolerations"] == [{"key": "gpu"}]
    (beside,) = spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    wanted = beside["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert wanted.items() <= names.labels("cartpole", Role.LEARNER).items()


def test_a_reader_has_the_resources_of_its_job_and_the_user_and_the_affinity_of_the_learner(tmp_path: Path) -> None:
    learner = keeping(tmp_path, securityContext={"runAsUser": 1000}).dump()["spec"]["learner"]  # type: ignore[index]
    node: Any = {"requiredDuringSchedulingIgnoredDuringExecution": {}}
    zone = {"weight": 1, "podAffinityTerm": {}}
    near = {"preferredDuringSchedulingIgnoredDuringExecution": [zone]}
    learner["template"]["spec"]["affinity"] = {"nodeAffinity": node, "podAffinity": near}
    learner["template"]["spec"]["volumes"] += [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    resources = {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}
    spec, worker = read_by(seen(small_job(learner=learner, resources=resources | {"gpu": {"count": 1}})))
    assert worker["resources"] == resources
    assert worker["securityContext"] == pods.CONTAINER_SECURITY | {"runAsUser": 1000}
    assert "data" not in {each["name"] for each in spec["volumes"]}
    assert spec["affinity"]["nodeAffinity"] == node
    first, second = spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert (first, second["weight"]) == (zone, 100)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_files_of_a_job_are_fetched_and_only_that_job_stays(
    kubelet: Kubelet, api: ClusterApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/policy.pt").write_bytes(b"mine")
    monkeypatch.setattr(cli_fetch, "FOLDER", str(tmp_path / "kept"))  # a pod would mount the volume there
    jobs = Jobs(namespace=api.namespace)
    spec = {"suspend": True, "learner": keeping(tmp_path).dump()["spec"]["learner"]}  # type: ignore[index]
    jobs.submit(small_job(**spec))
    assert cli_fetch.fetch(jobs, "test", tmp_path / "mine", context=None) == {"policy.pt": True}
    assert (tmp_path / "mine/policy.pt").read_bytes() == b"mine"
    with pytest.raises(RollfleetError, match=r"mine exists: name another folder, `--to FOLDER`"):
        cli_fetch.fetch(jobs, "test", tmp_path / "mine", context=None)
    monkeypatch.setattr(submission, "PATIENCE_S", 0.0)
    kubelet.missing_images.add("none:1")
    jobs.edit("test", {"image": "none:1"})
    with pytest.raises(ClusterError, match=r"do not start: Pending \(ImagePullFailed\)"):
        cli_fetch.fetch(jobs, "test", tmp_path / "more", context=None)
    assert [job.metadata.name for job in jobs.list()] == ["test"]
