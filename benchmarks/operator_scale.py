"""The operator beside thousands of pods: its memory, the loop's time for a look, and how soon an edit reaches pods.

`KUBEBUILDER_ASSETS=FOLDER python -P benchmarks/operator_scale.py [--jobs 200] [--pods 10000] [--largest 2000]`

FOLDER has etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok, whose fake kubelets say that each pod
runs. Each job's nats-server is real, and so are the heartbeats: one a second of each worker, from a program of this
benchmark. It needs root, for names of its own in /etc/hosts.
"""

import argparse
import asyncio
import multiprocessing
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from benchmarks.fake_nodes.cluster import NAMESPACE, PROGRAMS, Cluster, Operator, wait_for  # noqa: E402
from benchmarks.fake_nodes.heartbeats import send_heartbeats  # noqa: E402
from benchmarks.fake_nodes.job_servers import with_own_hosts  # noqa: E402
from tests.control.chart.helm import find  # noqa: E402

from rollfleet_api.job import API_VERSION, KIND  # noqa: E402

LARGEST = "largest"


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
    with_own_hosts()
    size = Size.of(given.jobs, given.pods, given.largest)
    with tempfile.TemporaryDirectory(prefix="operator-scale-") as name:
        cluster = Cluster(Path(name), size.workers)
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
        wait_for(lambda: len(cluster.nats.start()) == len(size.workers), within_s, every_s=0.5)
        # Heartbeats later: these servers share two cores with the API server, and would take half a core of it.
        wait_for(lambda: running(cluster) >= size.pods, within_s, every_s=2.0)
        report(f"from creation until all pods run: {time.monotonic() - began:.0f} s", operator)
        beats = multiprocessing.get_context("spawn").Process(
            target=send_heartbeats, args=(cluster.nats.start(), size.workers), daemon=True
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
            edits = [edit(cluster, operator, name, size.workers[name] + more) for more in (1, 2, 3)]
            titles = "s to the operator's write", "looks at others meanwhile", "s to the pod"
            for what, *each in zip(titles, *edits, strict=True):
                print(f"| edit of {name}: {what} | {' '.join(f'{number:.3g}' for number in each)} |", flush=True)
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
        looks = [(cpu_s, longest_s) for job, cpu_s, longest_s, _ in found["looks"] if not name or job == name]
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
        "failure": {"pendingDeadlineSeconds": 0},
    }
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def running(cluster: Cluster) -> int:
    """Return the number of workers' pods that run."""
    jobs = cluster.server.call(cluster.server.api.list("Job"), 60)
    return sum(each["status"].get("ready", 0) for each in jobs)


def ready(cluster: Cluster) -> int:
    """Return the number of ready workers in the status of all jobs."""
    jobs = cluster.server.call(cluster.server.api.list(KIND), 60)
    return sum((each.get("status") or {}).get("workers", {}).get("ready", 0) for each in jobs)


def scaled_s(cluster: Cluster, name: str, workers: int) -> float:
    """Scale a job as `kubectl scale` does; return the seconds until a pod of the new worker exists."""
    began = time.monotonic()
    cluster.server.call(cluster.server.api.patch(KIND, NAMESPACE, name, {"spec": {"replicas": workers}}, "scale"))
    labels = f"rollfleet.dev/job={name},batch.kubernetes.io/job-completion-index={workers - 1}"
    wait_for(
        lambda: cluster.server.call(cluster.server.api.list("Pod", NAMESPACE, labels=labels), 60),
        300,
        every_s=0.2,
    )
    return time.monotonic() - began


def edit(cluster: Cluster, operator: Operator, name: str, workers: int) -> tuple[float, int, float]:
    """Scale a job; return the seconds to the operator's write, its looks at other jobs before, and `scaled_s`."""
    operator.measured()
    began_s = time.time()
    total_s = scaled_s(cluster, name, workers)
    wrote_s = cluster.wrote_s(began_s)
    looks = [ended_s for job, *_, ended_s in operator.measured()["looks"] if job != name]
    return wrote_s - began_s, sum(began_s < each < wrote_s for each in looks), total_s


if __name__ == "__main__":
    main()
