"""The workers' Kubernetes Job."""

from typing import Any

import pytest
from tests.control.pure.scene import a_job, scene, wanted

from rollfleet_api.evaluation import MAX_EVALUATION_WORKERS
from rollfleet_api.kubernetes_names import JOB_LABEL
from rollfleet_api.metadata import MAX_LABEL_LENGTH, MAX_NAME_LENGTH, MAX_WORKER_INDEX_DIGITS
from rollfleet_api.permissions import Role
from rollfleet_operator import names
from rollfleet_operator.errors import TemplateInvalid
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.pods import POD_SECURITY, SOURCE


def workers(**spec: Any) -> Any:
    return scene(**spec).run()


def container(**spec: Any) -> Any:
    return workers(**spec)["spec"]["template"]["spec"]["containers"][0]


def variables(container: Manifest) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_workers_are_one_indexed_job() -> None:
    spec = workers(workers=3)["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)


def test_permanent_failure_ends_all_workers_and_restarts_are_counted_by_the_operator() -> None:
    spec = workers(failure={"maxRestartsPerWorker": 4})["spec"]
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (2**31 - 1, 0)


def test_disruptions_and_deletions_cost_no_restart_and_permanent_failures_get_none() -> None:
    rules = workers()["spec"]["podFailurePolicy"]["rules"]
    assert [(rule["action"], rule.get("onExitCodes", {}).get("values")) for rule in rules] == [
        ("Ignore", None),
        ("Ignore", [3, 4, 143]),
        ("FailIndex", [2]),
    ]
    assert rules[0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]


def test_gpus_are_requested_and_limited_and_left_to_the_device_plugin() -> None:
    created = container(resources={"gpu": {"count": 2}, "requests": {"cpu": "4"}, "limits": {"memory": "8Gi"}})
    assert created["resources"] == {
        "requests": {"cpu": "4", "nvidia.com/gpu": "2"},
        "limits": {"memory": "8Gi", "nvidia.com/gpu": "2"},
    }
    assert not variables(created).keys() & {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"}


def test_gpu_slice_is_requested_by_its_own_name() -> None:
    created = container(resources={"gpu": {"count": 1, "resource": "nvidia.com/mig-1g.10gb"}})
    assert created["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "1"}


def test_gpus_are_hidden_from_pods_that_request_none() -> None:
    hidden = variables(container())
    assert (hidden["NVIDIA_VISIBLE_DEVICES"], hidden["CUDA_VISIBLE_DEVICES"]) == ("void", "")


@pytest.mark.parametrize(
    "template",
    [
        {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}},
        {"spec": {"containers": [{"name": "worker", "resources": {"limits": {"example.com/accelerator": "1"}}}]}},
    ],
    ids=["claim", "own limit"],
)
def test_devices_requested_by_the_template_are_not_hidden(template: Any) -> None:
    assert "CUDA_VISIBLE_DEVICES" not in variables(container(template=template))


def test_users_template_is_merged_over_the_operators() -> None:
    mounted = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    ours = {"name": "worker", "env": [{"name": "A", "value": "1"}], **mounted}
    beside = {"name": "sidecar", "image": "side:1"}
    pod = {"nodeSelector": {"gpu": "a100"}, "volumes": [{"name": "data", "emptyDir": {}}]}
    written = {"metadata": {"labels": {"team": "rl"}}, "spec": pod | {"containers": [ours, beside]}}
    template = workers(template=written)["spec"]["template"]
    spec = template["spec"]
    worker, sidecar = spec["containers"]
    assert template["metadata"]["labels"]["team"] == "rl"
    assert spec["nodeSelector"] == {"gpu": "a100"}
    assert {each["name"] for each in spec["volumes"]} == {"tmp", "shm", "rollfleet", "data"}
    assert {each["mountPath"] for each in worker["volumeMounts"]} == {"/tmp", "/dev/shm", "/var/run/rollfleet", "/data"}
    assert (worker["image"], variables(worker)["A"], variables(worker)["HOME"]) == ("worker:1", "1", "/tmp")
    assert sidecar == beside


@pytest.mark.parametrize(
    "template",
    [
        {"metadata": None},
        {"metadata": {"labels": None}},
        {"spec": None},
        {"spec": {"containers": None}},
        {"spec": {"containers": [{"name": "worker", "resources": None, "env": None}]}},
        {"spec": {"containers": [{"name": "side", "resources": {"limits": None}}]}},
    ],
    ids=str,
)
def test_null_part_of_a_template_is_nothing(template: Any) -> None:
    pod = workers(template=template)["spec"]["template"]
    assert pod["metadata"]["labels"][JOB_LABEL] == "cartpole"
    assert (pod["spec"]["containers"][0]["name"], pod["spec"]["restartPolicy"]) == ("worker", "Never")


def test_scratch_space_is_limited_and_a_template_may_raise_the_limit() -> None:
    more = {"name": "shm", "emptyDir": {"sizeLimit": "64Gi"}}
    volumes = workers(template={"spec": {"volumes": [more]}})["spec"]["template"]["spec"]["volumes"]
    assert {each["name"]: each["emptyDir"] for each in volumes if "emptyDir" in each} == {
        "tmp": {"sizeLimit": "10Gi"},
        "shm": {"medium": "Memory", "sizeLimit": "64Gi"},
    }


def test_null_in_a_template_removes_a_field_of_the_operator() -> None:
    spec = workers(template={"spec": {"securityContext": {"runAsUser": None}}})["spec"]["template"]["spec"]
    assert "runAsUser" not in spec["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"] is True


def test_template_cannot_change_what_the_operator_needs() -> None:
    written = {"metadata": {"labels": {JOB_LABEL: "other"}}, "spec": {"restartPolicy": "OnFailure"}}
    template = workers(template=written)["spec"]["template"]
    assert template["metadata"]["labels"][JOB_LABEL] == "cartpole"
    assert template["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("source", [None, {"configMap": "my-code"}])
@pytest.mark.parametrize(
    "written",
    [
        {"spec": ["no", "mapping"]},
        {"spec": {"containers": "worker"}},
        {"spec": {"containers": [{"image": "x"}]}},
        {"spec": {"containers": [{"name": ["x"]}]}},
        {"spec": {"containers": [{"name": "worker", "resources": "all"}]}},
        {"spec": {"containers": [{"name": "worker", "resources": {"limits": 5}}]}},
        {"spec": {"containers": [{"name": "worker", "env": {"A": "1"}}]}},
        {"spec": {"containers": [{"name": "worker", "env": ["A"]}]}},
        {"spec": {"containers": [{"name": "worker", "env": [{"value": "1"}]}]}},
        {"metadata": {"labels": "none"}},
        {"spec": {"initContainers": 5}},
        {"spec": {"initContainers": ["x"]}},
        {"spec": {"initContainers": [{"name": "x", "resources": {"limits": 5}}]}},
        {"spec": {"initContainers": [{"name": "x", "env": "A"}]}},
        {"spec": {"resourceClaims": 5}},
    ],
    ids=str,
)
def test_template_of_another_form_is_refused_with_a_reason(written: Any, source: Any) -> None:
    with pytest.raises(TemplateInvalid, match="template"):
        workers(template=written, source=source)


def test_source_is_mounted_and_put_on_the_import_path() -> None:
    spec = workers(source={"configMap": "my-code"})["spec"]["template"]["spec"]
    (volume,) = [each for each in spec["volumes"] if each["name"] == "source"]
    (mount,) = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "source"]
    assert volume["configMap"] == {"name": "my-code"}
    assert variables(spec["containers"][0])["PYTHONPATH"] == mount["mountPath"]


def test_import_path_of_a_template_comes_after_the_source() -> None:
    container = {"name": "worker", "env": [{"name": "PYTHONPATH", "value": "/app"}]}
    found = workers(source={"configMap": "my-code"}, template={"spec": {"containers": [container]}})
    assert variables(found["spec"]["template"]["spec"]["containers"][0])["PYTHONPATH"] == f"{SOURCE}:/app"


def test_pods_have_no_access_to_the_api_server() -> None:
    spec = workers()["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] == names.account("cartpole")


@pytest.mark.parametrize(
    ("role", "last"),
    [
        (Role.WORKER, "9" * MAX_WORKER_INDEX_DIGITS),
        (Role.ENV_SERVER, "9" * MAX_WORKER_INDEX_DIGITS),
        (Role.EVALUATION, MAX_EVALUATION_WORKERS - 1),
    ],
)
def test_the_host_name_of_the_last_pod_of_the_longest_job_fits(role: Role, last: object) -> None:
    env = {"vectorization": "Async", "servers": {"replicas": 1}}
    longest = scene(name="x" * MAX_NAME_LENGTH, env=env, evaluation={"every": 1, "workers": MAX_EVALUATION_WORKERS})
    name = f"{longest.run(role)['metadata']['name']}-{last}"
    assert len(name) == MAX_LABEL_LENGTH if role is not Role.EVALUATION else len(name) <= MAX_LABEL_LENGTH


@pytest.mark.parametrize("role", [Role.WORKER, Role.LEARNER, Role.EVALUATION, Role.ENV_SERVER])
def test_name_of_a_run_is_parsed_back(role: Role) -> None:
    name = names.Workload("a-workers-b", role, "0123abcd")
    assert names.Workload.parse(str(name)) == name


def test_run_of_a_queue_is_suspended_by_its_scheduler() -> None:
    assert "suspend" not in workers(labels={"kueue.x-k8s.io/queue-name": "gpus"})["spec"]


def test_users_of_pods_are_the_clusters_choice_by_the_settings_or_the_template() -> None:
    def security(**settings: Any) -> Any:
        run = next(each for which, each in wanted(job, **settings).items() if which.kind == "Job")
        return run["spec"]["template"]["spec"]["securityContext"]

    job = a_job()
    assert security() == POD_SECURITY
    assert security(fixed_user=False) == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    job = a_job(template={"spec": {"securityContext": {}}})
    assert security() == {}
