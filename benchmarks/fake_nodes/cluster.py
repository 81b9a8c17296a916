"""A real control plane and a real NATS, nodes that KWOK pretends, and the operator's program."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml
from benchmarks.fake_nodes.job_servers import JobServers
from tests.control import kubernetes
from tests.control.chart.helm import find
from tests.control.kubernetes import ApiServer
from tests.ports import free_ports

from rollfleet_api.times import parse_time

ROOT = Path(__file__).parents[2]

NAMESPACE = "default"
NODES = 20
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")


class Cluster:
    """An API server, its controllers, nodes that are not there, and the NATS servers of jobs with these names."""

    def __init__(self, folder: Path, jobs: Iterable[str]) -> None:
        self.folder = folder
        (folder / "api").mkdir()
        self.server = ApiServer(folder / "api")
        kubernetes.serve_definition(self.server)
        self.nats = JobServers(folder, self.server, NAMESPACE, jobs)
        self.admin = self.server.kubeconfig()
        self.users = folder / "operator.kubeconfig"
        self.users.write_text(self.admin.read_text().replace(kubernetes.TOKEN, kubernetes.OTHER_TOKEN))
        self._prepare()
        self._processes: list[subprocess.Popen[bytes]] = []
        for command in self._commands():
            self.start(*command)

    def _prepare(self) -> None:
        """The operator is a user of its own, so that its requests are in the audit log, which has no others."""
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": kubernetes.OTHER}
        binding = {"metadata": {"name": "operator"}, "roleRef": role, "subjects": [subject]}
        self.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
        for number in range(NODES):
            room = {"cpu": "10k", "memory": "100Ti", "pods": "2000", "ephemeral-storage": "100Ti"}
            status = {"allocatable": room, "capacity": room}
            self.post("/api/v1/nodes", {"metadata": {"name": f"node-{number}"}, "status": status})
            # Admission marks a new node as not ready, for a controller that does not run here.
            merge, path = "application/merge-patch+json", f"/api/v1/nodes/node-{number}"
            call = self.server.api._request("PATCH", path, body={"spec": {"taints": None}}, content_type=merge)
            self.server.call(call)

    def _commands(self) -> list[list[str]]:
        scheduler = self.folder / "scheduler.yaml"
        client = {"kubeconfig": str(self.admin), "qps": 5000, "burst": 5000}
        scheduler.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1",
                    "kind": "KubeSchedulerConfiguration",
                    "leaderElection": {"leaderElect": False},
                    "clientConnection": client,
                }
            )
        )
        (port,) = free_ports(1)
        return [
            [
                "kube-controller-manager",
                f"--kubeconfig={self.admin}",
                "--controllers=job-controller,deployment-controller,replicaset-controller,garbage-collector-controller",
                "--leader-elect=false",
                "--secure-port=0",
                "--kube-api-qps=5000",
                "--kube-api-burst=5000",
                "--concurrent-job-syncs=20",
            ],
            ["kube-scheduler", f"--config={scheduler}", "--secure-port=0"],
            [
                "kwok",
                f"--kubeconfig={self.admin}",
                "--manage-all-nodes=true",
                f"--config={ROOT / 'benchmarks/fake_kubelets.yaml'}",
                f"--server-address=127.0.0.1:{port}",
                "--node-lease-duration-seconds=0",
                "--cidr=10.0.0.1/8",
            ],
        ]

    def start(self, program: str, *arguments: str) -> None:
        """Start a program, which `stop` ends."""
        path = find(program)
        assert path is not None
        with (self.folder / f"{program}.log").open("wb") as log:
            process = subprocess.Popen([path, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self._processes.append(process)

    def post(self, path: str, body: dict[str, Any]) -> None:
        """Create an object."""
        self.server.call(self.server.api._request("POST", path, body=body))

    def requests(self) -> Counter[tuple[str, str]]:
        """Return the number of the operator's requests so far, by verb and resource."""
        counted: Counter[tuple[str, str]] = Counter()
        with (self.folder / "api" / kubernetes.AUDIT_LOG).open() as lines:
            for line in lines:
                event = json.loads(line)
                resource = event.get("objectRef", {}).get("resource", event["requestURI"])
                counted[event["verb"], resource] += (event["stage"] == "ResponseStarted") == (event["verb"] == "watch")
        return counted

    def wrote_s(self, since_s: float) -> float:
        """Return when the operator first wrote a Kubernetes Job since then, seconds since the epoch."""
        with (self.folder / "api" / kubernetes.AUDIT_LOG).open() as lines:
            events = [json.loads(line) for line in lines if '"verb":"patch"' in line]
        jobs = [each for each in events if each["objectRef"]["resource"] == "jobs"]
        return min(written for each in jobs if (written := parse_time(each["requestReceivedTimestamp"])) > since_s)

    def stop(self) -> None:
        """End it all."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait(30)
        self.nats.stop()
        self.server.stop()


class Operator:
    """The operator's process, with a probe in it."""

    def __init__(self, cluster: Cluster) -> None:
        self._file = cluster.folder / "probe.json"
        self._file.unlink(missing_ok=True)
        said = {
            "KUBECONFIG": str(cluster.users),
            "ROLLFLEET_KEY_SECRET": f"{NAMESPACE}/{kubernetes.KEY}",
            "ROLLFLEET_PORT": "0",
        }
        command = [sys.executable, "-P", str(ROOT / "benchmarks/operator_probe.py"), str(self._file)]
        with (cluster.folder / "operator.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=os.environ | said, stderr=log, stdin=subprocess.DEVNULL)

    def mib(self, field: str) -> int:
        """Return its memory now (`VmRSS`), or at most so far (`VmHWM`)."""
        found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{self._process.pid}/status").read_text())
        assert found
        return int(found[1]) >> 10

    def measured(self) -> dict[str, Any]:
        """Return the probe's measurements since the last call."""
        self._file.unlink(missing_ok=True)
        self._process.send_signal(signal.SIGUSR1)
        wait_for(self._file.exists, 60)
        found: dict[str, Any] = json.loads(self._file.read_text())
        return found

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """SIGTERM, and wait."""
        self._process.terminate()
        self._process.wait(60)


def wait_for(look: Callable[[], Any], timeout_s: float, *, every_s: float = 0.05) -> Any:
    """Return what `look` returns, once it is true."""
    until = time.monotonic() + timeout_s
    while not (found := look()):
        if time.monotonic() > until:
            raise TimeoutError("waited in vain")
        time.sleep(every_s)
    return found
