"""A cluster with Rollfleet installed, as the tests of a whole cluster use it."""

import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from tests.api.job_data import job_data

INSTALL_S = 180
PAUSED_S = 0.2  # between two looks


def run(*command: str, stdin: str | None = None) -> str:
    """Return a program's output; a failure shows its error output."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


class Release:
    """The chart, installed.

    Attributes:
        namespace: Where.
        worker_image: What runs jobs.
        env_server_image: What holds environments, without torch.
    """

    def __init__(self, chart: Path) -> None:
        self._chart = str(chart)
        self.namespace = "rollfleet-e2e"  # one at a time: there is one definition of CollectorJobs
        images, tag = os.environ["IMAGES"], os.environ["TAG"]
        self.worker_image, self.env_server_image = f"{images}-worker:{tag}", f"{images}-env-server:{tag}"
        pull = "IfNotPresent" if images == "rollfleet" else "Always"  # what was loaded into nodes is in no registry
        self._values = {
            "operator": {"image": {"repository": f"{images}-operator", "tag": tag, "pullPolicy": pull}},
            "worker": {"image": {"repository": f"{images}-worker", "tag": tag}},
            **({"ui": {"enabled": True}} if (chart / "templates/ui.yaml").exists() else {}),  # not in earlier charts
            "nats": {"image": {"repository": f"{images}-nats", "tag": tag}},
        }
        run("kubectl", "apply", "-f", "-", stdin=restricted(self.namespace))

    def helm(self, command: str, *options: str) -> str:
        """helm on this release; `upgrade` installs it where it is not there, and waits until it is up."""
        more: list[str] = []
        if command == "upgrade":
            more = [self._chart, "--install", "--values=-", "--wait", f"--timeout={INSTALL_S}s"]
        return run("helm", command, "rollfleet", f"--namespace={self.namespace}", *more, *options, stdin=self._yaml())

    def install(self) -> None:
        """Install it, or bring what is there up to date."""
        self.helm("upgrade")

    def uninstall(self) -> None:
        self.helm("uninstall", "--wait")
        self.kubectl("wait", "--for=delete", "pods,persistentvolumeclaims", "--all", "--timeout=60s")

    def kubectl(self, *arguments: str) -> str:
        return run("kubectl", f"--namespace={self.namespace}", *arguments)

    def restarted(self) -> list[str]:
        """The containers that the kubelet has started again, of the pods that are there."""
        pods = json.loads(self.kubectl("get", "pods", "--output=json"))["items"]
        kinds = ("initContainerStatuses", "containerStatuses")
        containers = [each for pod in pods for kind in kinds for each in pod["status"].get(kind, [])]
        return [each["name"] for each in containers if each["restartCount"]]

    def remove(self) -> None:
        """Take away what an uninstall leaves, and its namespace."""
        run("kubectl", "delete", "crd", "collectorjobs.rollfleet.dev", "--timeout=60s")
        run("kubectl", "delete", "namespace", self.namespace, "--timeout=120s")

    def _yaml(self) -> str:
        return yaml.safe_dump(self._values)


class Lab:
    """A namespace of one test, which takes restricted pods alone."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.namespace = f"lab-{uuid.uuid4().hex[:6]}"
        self._administrator = f"--kubeconfig={os.environ['KUBECONFIG']}"  # whoever the test acts as later
        run("kubectl", "apply", "-f", "-", stdin=restricted(self.namespace))

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        command = ("kubectl", self._administrator, f"--namespace={self.namespace}")
        return run(*command, *arguments, stdin=stdin)

    def apply(self, manifest: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def patch(self, name: str, **spec: Any) -> None:
        """Edit a job's spec."""
        self.kubectl("patch", f"collectorjob/{name}", "--type=merge", f"--patch={json.dumps({'spec': spec})}")

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """An object; empty: there is none."""
        text = self.kubectl("get", kind, name, "--output=json", "--ignore-not-found")
        found: dict[str, Any] = json.loads(text) if text else {}
        return found

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get("collectorjob", name).get("status", {})
        return found

    def wait_until(
        self, name: str, holds: Callable[[dict[str, Any]], bool], what: str, *, timeout_s: float = 300.0
    ) -> dict[str, Any]:
        """Wait for a status of which something holds; that status."""
        until = time.monotonic() + timeout_s
        while not holds(found := self.status(name)):
            assert time.monotonic() < until, f"{what} within {timeout_s:g} s: it did not happen: {found}"
            time.sleep(PAUSED_S)
        return found

    def wait_for_frames(self, name: str, *, more_than: int) -> dict[str, Any]:
        """Wait until the learner was handed more frames; the status that says so."""
        return self.wait_until(
            name, lambda status: status.get("frames", 0) > more_than, f"more than {more_than} frames"
        )

    def wait_for_workers(self, name: str, count: int) -> dict[str, Any]:
        """Wait until there are exactly so many workers, and all report; the status that says so."""
        wanted = {"desired": count, "ready": count}
        self.kubectl("wait", f"collectorjob/{name}", "--for=condition=Ready", "--timeout=300s")
        found = self.wait_until(name, lambda status: status.get("workers") == wanted, f"{count} workers")
        self.wait_until(name, lambda _: len(self.pods("worker")) == count, f"{count} pods of workers")
        return found

    def pods(self, role: str) -> list[dict[str, Any]]:
        text = self.kubectl("get", "pods", f"--selector=rollfleet.dev/role={role}", "--output=json")
        found: list[dict[str, Any]] = json.loads(text)["items"]
        return found

    def uids(self, *roles: str) -> set[str]:
        """The pods of these roles that are not on their way out, each by what no other ever has."""
        found = [pod["metadata"] for role in roles for pod in self.pods(role)]
        return {metadata["uid"] for metadata in found if "deletionTimestamp" not in metadata}

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """A condition of a job; empty: not reported yet."""
        found: list[dict[str, Any]] = self.status(name).get("conditions", [])
        return next((each for each in found if each["type"] == kind), {})

    def logs(self, role: str) -> str:
        return self.kubectl("logs", f"--selector=rollfleet.dev/role={role}", "--tail=-1")

    def remove(self) -> None:
        """Delete the namespace; nothing of ours holds it up, not even a job that runs."""
        run("kubectl", "delete", "namespace", self.namespace, "--timeout=60s")


@contextmanager
def user(lab: Lab, name: str, kubeconfig: Path, *, role: str = "") -> Iterator[None]:
    """Write the kubeconfig of a user who may work in the lab's namespace, and has a role of the release's, if any."""
    account, binding = f"--serviceaccount={lab.namespace}:{name}", f"{lab.namespace}-{name}"
    lab.kubectl("create", "serviceaccount", name)
    lab.kubectl("create", "rolebinding", name, "--clusterrole=rollfleet-user", account)
    if role:
        lab.release.kubectl("create", "rolebinding", binding, f"--role={role}", account)
    config: dict[str, Any] = yaml.safe_load(run("kubectl", "config", "view", "--raw", "--minify", "--flatten"))
    token = lab.kubectl("create", "token", name, "--duration=1h").strip()
    config["users"] = [{"name": name, "user": {"token": token}}]
    config["contexts"][0]["context"] |= {"user": name, "namespace": lab.namespace}
    kubeconfig.write_text(yaml.safe_dump(config))
    try:
        yield
    finally:
        if role:
            lab.release.kubectl("delete", "rolebinding", binding)


def restricted(namespace: str) -> str:
    """A namespace that enforces Pod Security "restricted"."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})


def counting_job(lab: Lab, repository: Path) -> dict[str, Any]:
    """A job whose learner takes some batches a second and trains nothing; that learner's code is in the lab."""
    code = repository / "tests/cluster/counting_learner.py"
    lab.kubectl("create", "configmap", "learner", f"--from-file=learner.py={code}")
    return job_data(
        {"name": "counting"},
        workers=2,
        mode="Sync",
        env={"id": "CartPole-v1", "numEnvs": 4},
        policy={"mlp": {"hidden": [64, 64]}},
        collect={"framesPerBatch": 512},
        weights={"interval": 1},
        learner=learner("/code/learner.py"),
    )


def learner(*command: str) -> dict[str, Any]:
    container = {
        "name": "learner",
        "command": ["python", "-u", *command],
        "volumeMounts": [{"name": "code", "mountPath": "/code"}],
    }
    volume = {"name": "code", "configMap": {"name": "learner"}}
    return {"template": {"spec": {"containers": [container], "volumes": [volume]}}}
