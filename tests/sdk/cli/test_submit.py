"""`rollfleet submit` on a real API server: the learner's source, its pod, and its log."""

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import yaml
from tests.api.job_data import job_data
from tests.control.kubernetes import ApiServer
from tests.faults.proxy import Proxy
from tests.running import output_of
from tests.sdk.cluster.kubeconfigs import kubeconfig_with
from tests.sdk.cluster.log_server import said, serving
from tests.sdk.cluster.namespace import Namespace, condition
from typer.testing import CliRunner, Result

from rollfleet import Jobs
from rollfleet.cli.main import app
from rollfleet.cli.starters import STARTERS
from rollfleet.cli.submit import follow
from rollfleet.cluster.api import ClusterApi
from rollfleet.cluster.kept_files import claim_of

Submit = Callable[..., Result]
JOB = job_data()


@pytest.fixture
def submit(kubeconfig: Path, namespace: Namespace, tmp_path: Path) -> Submit:
    """Write job.yaml, with this spec, and submit it to the test's namespace."""

    def run(*arguments: str, **spec: Any) -> Result:
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job_data(**spec)))
        where = (f"--kubeconfig={kubeconfig}", f"--namespace={namespace.name}")
        return CliRunner().invoke(app, ["submit", *where, str(tmp_path / "job.yaml"), *arguments])

    return run


@pytest.fixture
def learner(tmp_path: Path) -> str:
    """A learner with a module of its own; there is an environment, too."""
    (tmp_path / "losses.py").write_text("LOSS = 1\n")
    (tmp_path / "my_envs.py").write_text("def make(): ...\n")
    (tmp_path / "train.py").write_text("import torch\nimport losses\n")
    return str(tmp_path / "train.py")


def found(api: ClusterApi, kind: str, name: str) -> Any:
    return api.get(kind, api.namespace, name)


def owners(manifest: Any) -> list[str]:
    return [each["uid"] for each in manifest["metadata"]["ownerReferences"]]


def test_a_job_goes_to_the_namespace_of_the_command(submit: Submit, jobs: Jobs, namespace: Namespace) -> None:
    assert submit().output == f"{namespace.name}/cartpole submitted\n"
    assert jobs.get("cartpole").spec.learner is None
    assert submit(workers=3).exit_code == 0
    assert jobs.get("cartpole").spec.workers == 3


def test_the_learner_and_its_modules_come_and_go_with_the_job(submit: Submit, jobs: Jobs, learner: str) -> None:
    for name in ("my_scheme", "my_hooks"):
        Path(learner).with_name(f"{name}.py").write_text("def make(): ...\n")
    spec = {"env": {"entrypoint": "my_envs:make"}, "weights": {"scheme": "my_scheme:make"}}
    collect = JOB["spec"]["collect"] | {"initFn": "my_hooks:make"}
    result = submit("--learner", learner, "--", "--lr", "0.1", **spec, collect=collect)
    assert result.exit_code == 0, result.output
    assert "sending losses.py, my_envs.py, my_hooks.py, my_scheme.py, train.py" in result.stderr
    job = found(jobs.api, "CollectorJob", "cartpole")
    files = found(jobs.api, "ConfigMap", "cartpole-source")
    assert set(files["data"]) == {"train.py", "losses.py", "my_envs.py", "my_hooks.py", "my_scheme.py"}
    assert files["data"]["train.py"] == Path(learner).read_text()
    assert owners(files) == [job["metadata"]["uid"]]
    assert job["spec"]["source"] == {"configMap": "cartpole-source"}
    (container,) = job["spec"]["learner"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-P", "-u", "-m", "train"]
    assert container["args"] == ["--lr", "0.1"]


def test_the_learner_itself_is_sent_or_refused(submit: Submit, jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "variants").mkdir()
    (tmp_path / "train.py").write_text("print('beside the job')\n")
    for name in ("train.py", "test.py"):
        (tmp_path / "variants" / name).write_text("print('mine')\n")
    assert submit("--learner", str(tmp_path / "variants/train.py")).exit_code == 0
    assert found(jobs.api, "ConfigMap", "cartpole-source")["data"] == {"train.py": "print('mine')\n"}
    refused = submit("--learner", str(tmp_path / "variants/test.py"))
    assert refused.exit_code == 1
    assert "test.py: Python finds another module `test`, or none: rename the file" in refused.stderr


def test_a_changed_learner_is_sent_again_and_stays_the_jobs(submit: Submit, jobs: Jobs, learner: str) -> None:
    submit("--learner", learner)
    before = found(jobs.api, "ConfigMap", "cartpole-source")
    Path(learner).write_text("print('changed')\n")
    assert submit("--learner", learner).exit_code == 0
    files = found(jobs.api, "ConfigMap", "cartpole-source")
    assert files["data"] == {"train.py": "print('changed')\n"}
    assert owners(files) == owners(before)


def test_the_code_of_a_deleted_job_or_of_a_submission_that_was_cut_becomes_the_new_jobs(
    submit: Submit, jobs: Jobs, learner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as cut:
        cut.setattr(ClusterApi, "patch", lambda *_: sys.exit(1))
        assert submit("--learner", learner).exit_code == 1
    for _ in range(2):
        submit("--learner", learner)
        assert owners(found(jobs.api, "ConfigMap", "cartpole-source")) == [jobs.get("cartpole").metadata.uid]
        jobs.delete("cartpole")  # the ConfigMap stays for some seconds


def test_a_config_map_of_the_users_stays_when_the_job_is_deleted(submit: Submit, jobs: Jobs, learner: str) -> None:
    name = {"name": "my-code", "namespace": jobs.api.namespace}
    jobs.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": {"other.py": ""}})
    assert submit("--learner", learner, source={"configMap": "my-code"}).exit_code == 0
    files = found(jobs.api, "ConfigMap", "my-code")
    assert set(files["data"]) == {"other.py", "train.py", "losses.py"}
    assert "ownerReferences" not in files["metadata"]


def test_the_jobs_own_learner_template_stays(submit: Submit, jobs: Jobs, learner: str) -> None:
    command = ["python", "/var/run/rollfleet-source/train.py"]
    container = {"name": "ppo", "command": command, "resources": {"limits": {"cpu": "1"}}}
    template = {"spec": {"containers": [container], "nodeSelector": {"disk": "fast"}}}
    assert submit("--learner", learner, learner={"template": template}).exit_code == 0
    assert found(jobs.api, "CollectorJob", "cartpole")["spec"]["learner"]["template"] == template
    container["command"] = ["python", "other.py"]
    refused = submit("--learner", learner, learner={"template": template})
    assert refused.exit_code == 1
    assert "spec.learner runs `python other.py`, not train.py" in refused.output


def test_a_volume_belongs_to_its_job_which_has_the_same_one_whenever_it_is_submitted_again(
    submit: Submit, jobs: Jobs, namespace: Namespace, learner: str
) -> None:
    def claim(*arguments: str, **spec: Any) -> str:
        result = submit(*arguments, **spec)
        assert result.exit_code == 0, result.output
        return str(claim_of(jobs.get("cartpole")))

    first = claim("--learner", learner, "--keep", "1Gi")
    (volume,) = jobs.api.list("PersistentVolumeClaim", namespace.name).items
    assert (volume["metadata"]["name"], volume["spec"]["resources"]) == (first, {"requests": {"storage": "1Gi"}})
    assert owners(volume) == [jobs.get("cartpole").metadata.uid]
    assert claim("--learner", learner, "--keep", "1Gi") == first
    assert claim("--learner", learner) == first
    assert claim(learner={"template": {"spec": {"containers": [{"name": "ppo"}]}}}) == first
    key = f"{namespace.name}/cartpole"
    assert f"the volume of {key} keeps its size" in submit("--learner", learner, "--keep", "2Gi").stderr
    generation = jobs.get("cartpole").metadata.generation
    namespace.report(phase="Complete", conditions=[condition("Complete")], observedGeneration=generation)
    assert f"`rollfleet fetch {key}` first, then `rollfleet delete {key}`" in submit("--learner", learner).stderr
    jobs.delete("cartpole")  # the claim stays for some seconds
    assert claim("--learner", learner, "--keep", "1Gi") != first


def test_the_namespace_default_of_the_file_counts_also_with_a_learner(
    jobs: Jobs, kubeconfig: Path, learner: str, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job_data({"name": "of-default", "namespace": "default"})))
    where = (f"--kubeconfig={kubeconfig}", f"--namespace={jobs.api.namespace}")
    try:
        result = CliRunner().invoke(app, ["submit", *where, str(tmp_path / "job.yaml"), "--learner", learner])
        assert result.stdout == "default/of-default submitted\n"
        assert jobs.api.get("ConfigMap", "default", "of-default-source")
        assert jobs.list() == ()
    finally:
        jobs.delete("default/of-default")
        jobs.api.delete("ConfigMap", "default", "of-default-source")


def test_volumes_of_a_template_may_be_null(submit: Submit, jobs: Jobs, learner: str) -> None:
    (Path(learner).parent / "package").mkdir()
    Path(learner).with_name("package").joinpath("__init__.py").write_text("")
    Path(learner).write_text("import package\n")
    template = {"spec": {"volumes": None, "containers": [{"name": "ppo", "volumeMounts": None}]}}
    result = submit(
        "--learner", learner, "--keep", "1Gi", learner={"template": template}, template={"spec": {"volumes": None}}
    )
    assert result.exit_code == 0, result.output
    spec = found(jobs.api, "CollectorJob", "cartpole")["spec"]
    *packages, kept = spec["learner"]["template"]["spec"]["volumes"]
    assert kept["name"] == "rollfleet-kept"
    assert spec["template"]["spec"]["volumes"] == packages != []


def test_a_learner_imports_its_own_modules_and_none_of_its_working_folder(
    submit: Submit, jobs: Jobs, learner: str, tmp_path: Path
) -> None:
    Path(learner).write_text("import losses\nprint(losses.__file__)\n")
    submit("--learner", learner)
    spec = found(jobs.api, "CollectorJob", "cartpole")["spec"]
    (container,) = spec["learner"]["template"]["spec"]["containers"]
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/losses.py").write_text("")
    (tmp_path / "kept/train.py").write_text("print('old')\n")
    environ = {"PYTHONPATH": str(tmp_path)}
    output = output_of(sys.executable, *container["command"][1:], cwd=tmp_path / "kept", env=environ)
    assert output == f"{tmp_path / 'losses.py'}\n"


@pytest.mark.parametrize(
    ("size", "line"),
    [
        ("1 GB", "--keep: `1 GB` is not a quantity; write `1Gi` (powers of 1024)"),
        ("", "--keep: `` is not a quantity; write a number with an optional unit"),
        ("0", "--keep: `0` keeps nothing; write e.g. `1Gi`"),
    ],
)
def test_a_wrong_size_and_a_volume_without_a_learner_are_one_line_before_anything_is_sent(
    submit: Submit, jobs: Jobs, learner: str, size: str, line: str
) -> None:
    for arguments, error in ((["--learner", learner], line), ([], "--keep keeps the files of --learner: add it")):
        refused = submit(*arguments, "--keep", size)
        assert refused.exit_code != 0
        assert error in refused.output
        assert refused.output.count("\n") == 1
    assert jobs.list() == ()


@pytest.mark.parametrize("starter", STARTERS)
def test_a_starter_is_submitted_with_all_of_its_code(
    starter: str, kubeconfig: Path, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["init", "--example", starter]).exit_code == 0
    where = [f"--kubeconfig={kubeconfig}", f"--namespace={jobs.api.namespace}"]
    result = CliRunner().invoke(app, ["submit", "job.yaml", "--learner", "learner.py", *where])
    assert result.exit_code == 0, result.output
    named = yaml.safe_load(Path("job.yaml").read_text())["spec"]["source"]["configMap"]
    files = found(jobs.api, "ConfigMap", named)
    assert set(files["data"]) == {Path(name).name for name in STARTERS[starter] if name.endswith(".py")}


def test_a_refused_job_leaves_no_config_map(submit: Submit, jobs: Jobs, namespace: Namespace, learner: str) -> None:
    submit()
    namespace.report(phase="Complete")
    refused = submit("--learner", learner)
    assert refused.exit_code == 1
    assert "the job is complete" in refused.output
    assert found(jobs.api, "ConfigMap", "cartpole-source") is None


def test_a_refused_change_keeps_the_code_that_the_job_runs(submit: Submit, jobs: Jobs, learner: str) -> None:
    submit("--learner", learner)
    before = found(jobs.api, "ConfigMap", "cartpole-source")["data"]
    Path(learner).write_text("print('changed')\n")
    refused = submit("--learner", learner, mode="Sync")
    assert refused.exit_code == 1
    assert "the mode of a job is fixed" in refused.output
    assert found(jobs.api, "ConfigMap", "cartpole-source")["data"] == before


@pytest.mark.parametrize("end", ["Complete", "Failed"])
def test_an_ended_job_is_not_submitted_in_silence(submit: Submit, namespace: Namespace, learner: str, end: str) -> None:
    submit("--learner", learner)
    namespace.report(phase=end, conditions=[condition(end, "Ended", "that was all")])
    Path(learner).write_text("print('mended')\n")
    again = submit("--learner", learner)
    assert again.exit_code == 1
    assert "(Ended): that was all; an unchanged spec starts nothing: `rollfleet delete " in again.stderr


def test_a_job_that_is_tried_again_has_not_ended(submit: Submit, namespace: Namespace) -> None:
    submit()
    submit(workers=3)
    namespace.report(conditions=[condition("Failed", "WorkerFailed")], observedGeneration=2)
    assert "submitted" in submit(workers=3).output


def test_follow_shows_each_learners_log_until_the_job_is_complete(jobs: Jobs, namespace: Namespace) -> None:
    logs: dict[str, Queue[str | None]] = {}
    shown, states = list[str](), list[str]()

    def start_learner(*streams: str) -> None:
        pod = namespace.pod(None)
        logs[pod] = said(*(line for stream in streams for line in (stream, None)))
        namespace.report(phase="Running", frames=len(logs))

    def show(line: str) -> None:
        shown.append(line)
        if line == "before a crash":
            crashed = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": next(iter(logs))}}
            namespace.status(crashed, {"phase": "Failed"})
            start_learner("after it", "after the kubelet's restart")
        elif line != "after it":
            namespace.report(phase="Complete", conditions=[condition("Complete", "TotalFrames", "that is all")])

    jobs.submit(JOB)
    with serving(logs) as port:
        namespace.node("node-learner", port)
        start_learner("before a crash")
        assert follow(jobs, "cartpole", show, states.append) == 0
    assert shown == ["before a crash", "after it", "after the kubelet's restart"]
    assert states[-1] == f"{namespace.name}/cartpole is Complete (TotalFrames): that is all"


FAILED: Any = {"phase": "Failed", "conditions": [condition("Failed", "LearnerFailed", "too often")]}


def test_follow_shows_the_last_words_of_a_learner_that_ended_unseen(jobs: Jobs, namespace: Namespace) -> None:
    logs: dict[str, Queue[str | None]] = {}
    shown = list[str]()
    jobs.submit(JOB)
    with serving(logs) as port:
        namespace.node("node-learner", port)
        for _ in range(2):
            pod = namespace.pod(None, phase="Failed")
            logs[pod] = said("last words", None)
        namespace.report(**FAILED)
        assert follow(jobs, "cartpole", shown.append, shown.append) == 1
    assert shown[:2] == ["last words", "last words"]
    assert "is Failed (LearnerFailed): too often" in shown[2]


def test_follow_of_a_failed_job_ends_where_the_log_of_its_learner_is_lost(jobs: Jobs, namespace: Namespace) -> None:
    states = list[str]()
    jobs.submit(JOB)
    with serving({}) as port:
        namespace.node("node-learner", port)
        namespace.pod(None, phase="Failed")
        namespace.report(**FAILED)
    assert follow(jobs, "cartpole", print, states.append) == 1, "the node is gone"
    assert "is Failed (LearnerFailed): too often" in states[-1]


def test_follow_of_a_job_that_is_tried_again_goes_on(jobs: Jobs, namespace: Namespace) -> None:
    jobs.submit(JOB)
    namespace.report(**FAILED)
    jobs.scale("cartpole", 5)

    def end(_: str) -> None:
        namespace.report(phase="Complete", conditions=[condition("Complete")], observedGeneration=2)

    assert follow(jobs, "cartpole", print, end) == 0


def test_follow_goes_on_after_a_cut(api_server: ApiServer, namespace: Namespace, tmp_path: Path) -> None:
    pod, shown = namespace.pod(None), list[str]()
    logs = {pod: said("before")}
    with closing(Proxy([api_server.url.removeprefix("https://")])) as network, serving(logs) as port:
        namespace.node("node-learner", port)
        cluster = {"server": f"https://{network.host_port}"}
        kubeconfig = kubeconfig_with(api_server, tmp_path / "config", cluster=cluster)
        jobs = Jobs(kubeconfig=kubeconfig, namespace=namespace.name)

        def show(line: str) -> None:
            shown.append(line)
            if line == "after":
                namespace.report(phase="Complete", conditions=[condition("Complete")])
                return
            network.cut()
            logs[pod].put(None)  # ends the stream that nobody reads any more
            logs[pod] = said("after", None)

        jobs.submit(JOB)
        assert follow(jobs, "cartpole", show, print) == 0
    assert shown == ["before", "after"]
