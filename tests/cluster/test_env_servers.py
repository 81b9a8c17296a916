"""A job whose environments are in pods of their own."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.api.job_data import job_data
from tests.cluster.lab import Lab, Release, counting_job, learner

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

NAME = "counting"


STEPS = """
import rollfleet

envs = rollfleet.make_vec("CartPole-v1", num_envs=4, workers=2, cluster=rollfleet.Cluster(name="poles"))
envs.reset(seed=0)
print(envs.step([0, 1, 0, 1])[1].tolist())
try:
    envs.call("no_such_method")
except Exception as error:
    print(error)
"""


def frames_after(lab: Lab) -> None:
    lab.wait_for_frames(NAME, more_than=lab.status(NAME)["frames"] + 5 * 512)


def test_a_worker_collects_from_its_servers_and_goes_on_when_one_is_replaced(
    release: Release, repository: Path
) -> None:
    lab = Lab(release)
    job = counting_job(lab, repository)
    container = {"name": "env-server", "image": release.env_server_image}
    servers = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    job["spec"] |= {
        "workers": 1,
        "env": job["spec"]["env"] | {"vectorization": "Async", "servers": servers},
        "failure": {"environments": {}},
    }
    lab.apply(job)
    lab.wait_for_workers(NAME, 1)
    lab.wait_for_frames(NAME, more_than=5 * 512)
    before, worker = lab.uids("env-server"), lab.uids("worker")
    assert len(before) == 2
    assert "4 environments" in lab.logs("learner")
    assert lab.logs("env-server").count(": 2 environments") == 2
    killed = lab.pods("env-server")[0]["metadata"]["name"]
    look = "import importlib.util; print(importlib.util.find_spec('torch'))"
    assert lab.kubectl("exec", killed, "--", "python", "-P", "-c", look) == "None\n"
    lab.kubectl("delete", "pod", killed, "--grace-period=0", "--force")
    lab.wait_until(NAME, lambda _: len(lab.uids("env-server") - before) == 1, "another server")
    frames_after(lab)
    assert lab.uids("worker") == worker, "its worker goes on"
    lab.kubectl("scale", f"collectorjob/{NAME}", "--replicas=2")
    lab.wait_for_workers(NAME, 2)
    lab.wait_until(NAME, lambda _: len(lab.uids("env-server")) == 4, "two servers for each worker")
    frames_after(lab)
    lab.kubectl("patch", f"collectorjob/{NAME}", "--type=merge", "--patch", '{"spec": {"suspend": true}}')
    lab.wait_until(NAME, lambda _: not lab.pods("env-server"), "no servers of a suspended job")
    lab.remove()


def test_a_program_in_a_pod_steps_environments_in_other_pods_without_the_api_server(lab: Lab) -> None:
    account = f"--serviceaccount={lab.namespace}:trainer"
    lab.kubectl("create", "serviceaccount", "trainer")
    lab.kubectl("create", "rolebinding", "trainer", "--clusterrole=rollfleet-user", account)
    container: dict[str, Any] = {
        "name": "trainer",
        "image": lab.release.worker_image,
        "command": ["python", "-c", STEPS],
    }
    container["env"] = [{"name": "HOME", "value": "/tmp"}]
    container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    spec: dict[str, Any] = {"serviceAccountName": "trainer", "restartPolicy": "Never", "containers": [container]}
    spec["securityContext"] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    lab.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trainer"}, "spec": spec})
    lab.kubectl("wait", "pod/trainer", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s")
    output = lab.kubectl("logs", "trainer")
    assert "[1.0, 1.0, 1.0, 1.0]" in output
    assert re.search(r"environment server poles-servers-\w+-0.poles-servers.\S+.svc:7700", output), output
    lab.wait_until("poles", lambda status: not status, "its job is deleted")


def test_the_learner_of_a_job_without_workers_steps_its_environments_to_the_jobs_end(lab: Lab) -> None:
    code = STEPS.replace('workers=2, cluster=rollfleet.Cluster(name="poles")', 'servers="poles"')
    lab.kubectl("create", "configmap", "learner", f"--from-literal=learner.py={code}")
    env = {"id": "CartPole-v1", "numEnvs": 4, "vectorization": "Async", "servers": {"replicas": 2}}
    lab.apply(job_data({"name": "poles"}, workers=0, env=env, learner=learner("/code/learner.py")))
    lab.kubectl("wait", "collectorjob/poles", "--for=condition=Complete", "--timeout=120s")
    assert lab.condition("poles", "Complete")["reason"] == "LearnerExited"
    assert re.search(r"environment server poles-servers-\w+-0.poles-servers.\S+.svc:7700", lab.logs("learner"))
