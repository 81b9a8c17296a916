"""The operator beside thousands of pods: its memory, the loop's time for a look, and how soon an edit reaches pods.

`KUBEBUILDER_ASSETS=FOLDER python -P benchmarks/operator_scale.py [--jobs 200] [--pods 10000] [--largest 2000]`

FOLDER has etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok, whose fake kubelets say that each pod
runs. nats-server is real, and so are the heartbeats: one a second of each worker, from a program of this benchmark.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from tests.control import kubernetes  # noqa: E402
from tests.control.kubernetes import ApiServer, find  # noqa: E402
from tests.control.wire.jwt_nats import NatsInJwtMode  # noqa: E402
from tests.ports import free_ports  # noqa: E402

from rollfleet_api import messages  # noqa: E402
from rollfleet_api.job import API_VERSION, KIND  # noqa: E402
from rollfleet_api.messages import pack  # noqa: E402
from rollfleet_api.permissions import Role  # noqa: E402
from rollfleet_api.subjects import Subjects  # noqa: E402
from rollfleet_operator.nats.connection import Connection, own_user  # noqa: E402
from rollfleet_operator.nats.settings import NatsSettings  # noqa: E402
from rollfleet_operator.nats.trust import SEED_FILE  # noqa: E402

NAMESPACE = "default"
NODES = 20
LARGEST = "largest"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")


class Size(NamedTuple):
    """The workers of each job, by name."""

    workers: dict[str, int]

    @classmethod
    def of(cls, jobs: int, pods: int, largest: int) -> "Size":
        """Return one largest job; the others share the rest evenly."""
        others, rest = jobs - 1, pods - largest
        sizes = {f"job-{n}": rest // others + (n < rest % others) for n in range(others)}
        return cls({LARGEST: largest} | sizes)

    @property
    def pods(self) -> int:
        """Number of pods."""
        return sum(self.workers.values())


class Cluster:
    """An API server, its controllers, nodes that are not there, and NATS."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("api", "nats"):
            (folder / name).mkdir()
        self.server = ApiServer(folder / "api")
        kubernetes.serve_definition(self.server)
        self.nats = NatsInJwtMode(folder / "nats")
        (folder / SEED_FILE).write_text(self.nats.keys.operator.seed)
        self.admin = self.server.kubeconfig()
        self.users = folder / "operator.kubeconfig"
        self.users.write_text(self.admin.read_text().replace(kubernetes.TOKEN, kubernetes.OTHER_TOKEN))
        self._prepare()
        self._processes = [self._start(*command) for command in self._commands()]

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
                "--controllers=job-controller,garbage-collector-controller",
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

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        path = find(program)
        assert path is not None
        with (self.folder / f"{program}.log").open("wb") as log:
            return subprocess.Popen([path, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL)

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
                counted[event["verb"], resource] += event["stage"] != "ResponseStarted" or event["verb"] == "watch"
        return counted

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
            "ROLLFLEET_NATS_URL": cluster.nats.url,
            "ROLLFLEET_NATS_KEYS": str(cluster.folder),
            "ROLLFLEET_NATS_STATE_BYTES": "16Mi",
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


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--largest", type=int, default=2_000, help="workers of the largest job")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the measurement at rest")
    parser.add_argument("--within", type=float, default=1800.0, help="longest time for all pods to run, seconds")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # its programs end with it
    missing = [program for program in PROGRAMS if not find(program)]
    if missing:
        print(f"skipped: {', '.join(missing)} not found; KUBEBUILDER_ASSETS names their folder")
        return
    size = Size.of(given.jobs, given.pods, given.largest)
    with tempfile.TemporaryDirectory(prefix="operator-scale-") as name:
        cluster = Cluster(Path(name))
        try:
            measure(cluster, size, given.seconds, given.within)
        finally:
            cluster.stop()


def measure(cluster: Cluster, size: Size, seconds: float, within_s: float) -> None:
    """Create the jobs and print what the operator needs: at their start, at rest, for an edit, and after a restart."""
    operator = Operator(cluster)
    beats = None
    try:
        time.sleep(10)
        print(f"| without jobs | {operator.mib('VmRSS')} MiB |", flush=True)
        operator.measured()
        began = time.monotonic()
        create_jobs(cluster, size)
        wait_for(
            lambda: len(cluster.server.call(cluster.server.api.list("Job"), 60).items) >= len(size.workers), within_s
        )
        beats = multiprocessing.get_context("spawn").Process(
            target=send_heartbeats, args=(cluster.nats.settings, size.workers), daemon=True
        )
        beats.start()
        wait_for(lambda: ready(cluster) >= size.pods, within_s, every_s=2.0)
        report(f"from creation until all are ready: {time.monotonic() - began:.0f} s", operator)
        time.sleep(10)
        operator.measured()
        before = cluster.requests()
        time.sleep(seconds)
        report(f"at rest, {seconds:g} s", operator)
        for (verb, resource), count in sorted((cluster.requests() - before).items()):
            print(f"|   requests: {verb} {resource} | {count} |")
        for name in (LARGEST, "job-0"):
            taken = [scaled_s(cluster, name, size.workers[name] + more) for more in (1, 2, 3)]
            print(f"| edit of {name} seen in pods, s | {' '.join(f'{each:.2f}' for each in taken)} |", flush=True)
        report("the edits", operator)
        operator.stop()
        operator = Operator(cluster)
        again = time.monotonic()
        time.sleep(5)
        wait_for(lambda: operator.alive and scaled_s(cluster, "job-1", size.workers["job-1"] + 1) >= 0, 300)
        print(f"| restart until it acts on an edit, s | {time.monotonic() - again:.1f} |")
        time.sleep(30)
        report("restart, 30 s more", operator)
    finally:
        if beats is not None:
            beats.terminate()
            beats.join()
        operator.stop()


def report(title: str, operator: Operator) -> None:
    """Print the measurements since the last report."""
    found = operator.measured()
    print(f"| {title} | RSS {operator.mib('VmRSS')} MiB, at most {operator.mib('VmHWM')} MiB |")
    print(f"|   CPU of the operator | {found['cpu_s'] / found['seconds']:.0%} of a core |")
    longest, collection = found["longest_s"] * 1e3, found["collection_s"] * 1e3
    print(f"|   longest call of its loop | {longest:.0f} ms; longest garbage collection: {collection:.0f} ms |")
    for name in (LARGEST, ""):
        looks = [(cpu_s, longest_s) for job, cpu_s, longest_s in found["looks"] if not name or job == name]
        if looks:
            cpu, longest = [each[0] * 1e3 for each in looks], [each[1] * 1e3 for each in looks]
            times = f"{statistics.median(cpu):.1f} ms of the loop (at most {max(cpu):.1f})"
            parts = f"without a pause {statistics.median(longest):.1f} ms (at most {max(longest):.1f})"
            print(f"|   looks at {name or 'all jobs'}: {len(looks)} | {times}, {parts} |", flush=True)


def create_jobs(cluster: Cluster, size: Size) -> None:
    """Create all jobs, 20 at a time."""

    async def create() -> None:
        todo = [job(name, workers) for name, workers in size.workers.items()]
        for first in range(0, len(todo), 20):
            await asyncio.gather(*(cluster.server.api.create(each) for each in todo[first : first + 20]))

    cluster.server.call(create(), 300)


def job(name: str, workers: int) -> dict[str, Any]:
    """Return a small job."""
    spec = {
        "workers": workers,
        "env": {"id": "CartPole-v1"},
        "policy": {"mlp": {}},
        "collect": {"framesPerBatch": 64},
        "delivery": {"maxBytes": "1Mi"},
        "failure": {"pendingDeadlineSeconds": 0},
    }
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def ready(cluster: Cluster) -> int:
    """Return the number of ready workers in the status of all jobs."""
    jobs = cluster.server.call(cluster.server.api.list(KIND), 60).items
    return sum((each.get("status") or {}).get("workers", {}).get("ready", 0) for each in jobs)


def scaled_s(cluster: Cluster, name: str, workers: int) -> float:
    """Scale a job as `kubectl scale` does; return the seconds until a pod of the new worker exists."""
    began = time.monotonic()
    cluster.server.call(cluster.server.api.patch(KIND, NAMESPACE, name, {"spec": {"replicas": workers}}, "scale"))
    labels = f"rollfleet.dev/job={name},batch.kubernetes.io/job-completion-index={workers - 1}"
    wait_for(
        lambda: cluster.server.call(cluster.server.api.list("Pod", NAMESPACE, labels=labels), 60).items,
        300,
        every_s=0.2,
    )
    return time.monotonic() - began


def send_heartbeats(settings: NatsSettings, workers: dict[str, int]) -> None:
    """Be the workers and learners of all jobs, until the process is ended."""
    asyncio.run(_send_heartbeats(settings, workers))


async def _send_heartbeats(settings: NatsSettings, workers: dict[str, int]) -> None:
    connections = {}
    for name in workers:
        subjects = Subjects(namespace=NAMESPACE, job=name)
        account = own_user(settings.keys.account(subjects, Role.LEARNER))
        connections[name] = await Connection(settings.server, account, "heartbeats").client()
    for name, client in connections.items():
        subjects = Subjects(namespace=NAMESPACE, job=name)
        for index in range(workers[name]):
            await client.publish(
                subjects.lease(index), pack(messages.Lease(incarnation=1, host=f"{name}-{index}", pid=1))
            )
        control = messages.Control(session=1, phase=messages.LearnerPhase.RUN, round=0, version=1)
        await client.publish(subjects.control, pack(control))
    sent = 0
    while True:
        began, now_s = time.monotonic(), time.time()
        sent += 1
        beat = replace(
            messages.WorkerStatus.starting(0, 1), state=messages.WorkerState.COLLECTING, frames=64 * sent, time_s=now_s
        )
        before, after = pack(beat).split(b'"worker":0', 1)
        learner = messages.LearnerStatus(
            session=1, version=sent, applied_version=sent, frames=64 * sent, batches=sent, dropped=0, mean_return=None,
            lag=0, waited_s=0.5 * sent, time_s=now_s,
        )  # fmt: skip
        for name, client in connections.items():
            subjects = Subjects(namespace=NAMESPACE, job=name)
            prefix = subjects.workers.removesuffix("*")
            for index in range(workers[name]):
                await client.publish(f"{prefix}{index}", b'%b"worker":%d%b' % (before, index, after))
            await client.publish(subjects.learner, pack(learner))
            await asyncio.sleep(0)
        await asyncio.sleep(max(0.0, began + 1.0 - time.monotonic()))


def wait_for(look: Callable[[], Any], timeout_s: float, *, every_s: float = 0.05) -> Any:
    """Return what `look` returns, once it is true."""
    until = time.monotonic() + timeout_s
    while not (found := look()):
        if time.monotonic() > until:
            raise TimeoutError("waited in vain")
        time.sleep(every_s)
    return found


if __name__ == "__main__":
    main()
