"""The chart, installed on a whole cluster, and a namespace for jobs; `tests/cluster/run` brings cluster and images."""

import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ABSENT = "needs a cluster with our images: `make e2e` brings both, or says what is missing"
INSTALL_S = 180
KINDS = "deployments,statefulsets,services,secrets,configmaps,serviceaccounts,roles,rolebindings,networkpolicies"
KEPT = "customresourcedefinition.apiextensions.k8s.io/collectorjobs.rollfleet.dev"


def run(*command: str, stdin: str | None = None, check: bool = True) -> str:
    """What a program says; a failure is told with its words."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True)
    assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


class Release:
    """The chart, installed.

    Attributes:
        namespace: Where.
        worker_image: What runs jobs.
    """

    def __init__(self, chart: Path) -> None:
        self._chart = str(chart)
        self.namespace = "rollfleet-e2e"  # one at a time: there is one definition of CollectorJobs
        images, tag = os.environ["IMAGES"], os.environ["TAG"]
        self.worker_image = f"{images}-worker:{tag}"
        pull = "IfNotPresent" if images == "rollfleet" else "Always"  # what was loaded into nodes is in no registry
        self._values = {
            "operator": {"image": {"repository": f"{images}-operator", "tag": tag, "pullPolicy": pull}},
            "worker": {"image": {"repository": f"{images}-worker", "tag": tag}},
            "nats": {
                "image": {"repository": f"{images}-nats", "tag": tag},
                # Not every cluster for tests has a class of volumes.
                "persistence": {"enabled": os.environ.get("VOLUMES") == "true"},
            },
        }
        run("kubectl", "apply", "-f", "-", stdin=restricted(self.namespace))

    def helm(self, command: str, *options: str) -> str:
        """helm on this release; `upgrade` installs it where it is not there, and waits until it is up."""
        more: list[str] = []
        if command == "upgrade":
            more = [self._chart, "--install", "--values=-", "--wait", f"--timeout={INSTALL_S}s"]
        return run("helm", command, "rollfleet", f"--namespace={self.namespace}", *more, *options, stdin=self._yaml())

    def kubectl(self, *arguments: str) -> str:
        """kubectl in its namespace."""
        return run("kubectl", f"--namespace={self.namespace}", *arguments)

    def _yaml(self) -> str:
        return yaml.safe_dump(self._values)


class Lab:
    """A namespace of one test, which takes restricted pods alone."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.namespace = f"lab-{uuid.uuid4().hex[:6]}"
        run("kubectl", "apply", "-f", "-", stdin=restricted(self.namespace))

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """kubectl in this namespace."""
        return run("kubectl", f"--namespace={self.namespace}", *arguments, stdin=stdin, check=check)

    def apply(self, manifest: dict[str, Any]) -> None:
        """`kubectl apply`."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """An object; empty: there is none."""
        text = self.kubectl("get", kind, name, "--output=json", "--ignore-not-found")
        found: dict[str, Any] = json.loads(text) if text else {}
        return found

    def status(self, name: str) -> dict[str, Any]:
        """A job's."""
        found: dict[str, Any] = self.get("collectorjob", name).get("status", {})
        return found

    def wait_for_frames(self, name: str, *, more_than: int, timeout_s: float = 300.0) -> dict[str, Any]:
        """Wait until the learner was handed more frames; the status that says so."""
        until = time.monotonic() + timeout_s
        while (found := self.status(name)).get("frames", 0) <= more_than:
            assert time.monotonic() < until, f"no frames came within {timeout_s:g} s: {found}"
            time.sleep(0.2)
        return found

    def pods(self, role: str) -> list[dict[str, Any]]:
        """The pods of a role."""
        text = self.kubectl("get", "pods", f"--selector=rollfleet.dev/role={role}", "--output=json")
        found: list[dict[str, Any]] = json.loads(text)["items"]
        return found

    def logs(self, role: str) -> str:
        """What the pods of a role said."""
        return self.kubectl("logs", f"--selector=rollfleet.dev/role={role}", "--tail=-1")

    def remove(self) -> None:
        """Delete the namespace; nothing of ours holds it up."""
        self.kubectl("delete", "collectorjobs", "--all", "--wait=true", "--timeout=60s", check=False)
        run("kubectl", "delete", "namespace", self.namespace, "--timeout=120s")


def restricted(namespace: str) -> str:
    """A namespace that enforces Pod Security "restricted"."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})


@pytest.fixture(scope="session")
def release(repository: Path) -> Iterator[Release]:
    """The chart, installed for all tests and uninstalled afterwards."""
    if not os.environ.get("KUBECONFIG") or not os.environ.get("IMAGES") or not shutil.which("helm"):
        pytest.skip(ABSENT)
    release = Release(repository / "charts/rollfleet")
    release.helm("upgrade")
    yield release
    release.helm("uninstall", "--wait")
    release.kubectl("wait", "--for=delete", "pods,persistentvolumeclaims", "--all", "--timeout=60s")
    left = release.kubectl("get", f"{KINDS},pods,persistentvolumeclaims", "--output=name").split()
    left += run("kubectl", "get", "clusterroles,clusterrolebindings,customresourcedefinitions", "--output=name").split()
    run("kubectl", "delete", "crd", "collectorjobs.rollfleet.dev", "--timeout=60s")
    run("kubectl", "delete", "namespace", release.namespace, "--timeout=120s")
    assert [name for name in left if "rollfleet" in name] == [KEPT]


@pytest.fixture
def lab(release: Release) -> Iterator[Lab]:
    """A namespace for jobs."""
    lab = Lab(release)
    yield lab
    lab.remove()


@pytest.fixture
def cartpole(lab: Lab, repository: Path) -> dict[str, Any]:
    """examples/cartpole as a job with a learner; its learner's code is in the lab."""
    example = repository / "examples/cartpole"
    lab.kubectl("create", "configmap", "learner", f"--from-file={example / 'learner.py'}")
    job: dict[str, Any] = yaml.safe_load((example / "job.yaml").read_text())
    job["spec"]["learner"] = {
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "learner",
                        "command": ["python", "-u", "/code/learner.py", "--output", "/tmp/out"],
                        "volumeMounts": [{"name": "code", "mountPath": "/code"}],
                    }
                ],
                "volumes": [{"name": "code", "configMap": {"name": "learner"}}],
            }
        }
    }
    job["spec"]["delivery"] = {"maxBytes": "256Mi"}
    return job
