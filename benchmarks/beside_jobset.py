"""The load on the API server of 2,000 pods in 40 jobs: as CollectorJobs, as JobSets, and as bare Kubernetes Jobs.

`KUBEBUILDER_ASSETS=FOLDER python -P benchmarks/beside_jobset.py MODULE`

FOLDER as for `operator_scale.py`, and in it `jobset`: the program that `go build` makes of MODULE, the folder of the Go
module sigs.k8s.io/jobset. Its webhooks are not installed: the JobSets have the defaults that these would write.
"""

import asyncio
import multiprocessing
import re
import ssl
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import yaml

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.fake_nodes.cluster import NAMESPACE, PROGRAMS, Cluster, Operator, wait_for
from benchmarks.fake_nodes.heartbeats import send_heartbeats
from benchmarks.operator_scale import Size, job
from tests.control.kubernetes import TOKEN, find

from rollfleet_api.job import API_VERSION
from rollfleet_operator.errors import ApiError
from rollfleet_operator.kinds import Kind

VERSIONS = {"CollectorJob": API_VERSION, "JobSet": "jobset.x-k8s.io/v1alpha2", "Job": "batch/v1"}
PATHS = {kind: Kind(api_version=each, plural=f"{kind.lower()}s").path(NAMESPACE) for kind, each in VERSIONS.items()}
SIZE = Size.of(jobs=40, pods=2_000, largest=50)
ALL_CLIENTS = {
    "apiserver_watch_events_total": "all clients: watch events",
    "apiserver_watch_events_sizes_sum": "all clients: bytes of watch events",
    "process_cpu_seconds_total": "API server: CPU, s",
}
OF_THE_SERVER = "controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"
WITHIN_S, SETTLE_S, REST_S = 1200.0, 15.0, 60.0


def main() -> None:
    """Create, leave alone, suspend, resume and delete the jobs, each kind on a cluster of its own."""
    missing = [program for program in (*PROGRAMS, "jobset") if not find(program)]
    if missing or len(sys.argv) != 2:
        print(f"skipped: it needs MODULE, and programs in KUBEBUILDER_ASSETS; not found: {missing}")
        return
    pods: dict[str, Any] = {}  # the spec of the operator's Kubernetes Jobs, for the other kinds
    for kind in PATHS:
        with tempfile.TemporaryDirectory(prefix="beside-jobset-") as folder:
            cluster = Cluster(Path(folder))
            try:
                pods = measure(cluster, kind, pods)
            finally:
                cluster.stop()


def measure(cluster: Cluster, kind: str, pods: dict[str, Any]) -> dict[str, Any]:
    """Measure a kind; return the spec of a Kubernetes Job."""
    before, path, workers = counted(cluster), PATHS[kind], SIZE.workers
    operator = Operator(cluster) if kind == "CollectorJob" else None
    if kind == "JobSet":
        start_jobset(cluster)
    time.sleep(SETTLE_S)
    call(cluster, *(("POST", path, manifest(kind, name, count, pods)) for name, count in workers.items()))
    wait_for(lambda: len(runs(cluster)) == len(workers), WITHIN_S, every_s=2.0)
    beats = multiprocessing.get_context("spawn").Process(
        target=send_heartbeats, args=(cluster.nats.settings, workers), daemon=True
    )
    if operator:
        beats.start()
    wait_until_ready(cluster, SIZE.pods)
    before = report(kind, "created", cluster, before)
    time.sleep(REST_S)
    before = report(kind, f"at rest, {REST_S:g} s", cluster, before)
    for suspend, left in ((True, SIZE.pods - workers["job-0"]), (False, SIZE.pods)):
        call(cluster, ("PATCH", f"{path}/job-0", {"spec": {"suspend": suspend}}))
        wait_until_ready(cluster, left)
    before = report(kind, "one job suspended and resumed", cluster, before)
    spec: dict[str, Any] = runs(cluster)[0]["spec"]
    if operator:
        beats.terminate()
    call(cluster, *(("DELETE", f"{path}/{name}", {"propagationPolicy": "Background"}) for name in workers))
    wait_for(lambda: not call(cluster, ("GET", "/api/v1/pods?limit=1", None))[0]["items"], WITHIN_S, every_s=2.0)
    report(kind, "deleted", cluster, before)
    if operator:
        operator.stop()
    return spec


def start_jobset(cluster: Cluster) -> None:
    """Start JobSet's controller, as the user whose requests are counted."""
    definition = Path(sys.argv[1], "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml")
    cluster.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(definition.read_text()))
    for ours, its in (("apiserver.crt", "tls.crt"), ("apiserver.key", "tls.key")):
        (cluster.folder / its).symlink_to(cluster.folder / "api" / ours)
    config = cluster.folder / "jobset.yaml"
    settings: dict[str, Any] = {"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration"}
    settings |= {"leaderElection": {"leaderElect": False}, "internalCertManagement": {"enable": False}}
    config.write_text(yaml.safe_dump(settings | {"webhook": {"certDir": str(cluster.folder)}}))
    cluster.start("jobset", f"--kubeconfig={cluster.users}", f"--config={config}", "--metrics-bind-address=0")


def manifest(kind: str, name: str, count: int, pods: dict[str, Any]) -> dict[str, Any]:
    """Return a job of this kind."""
    if kind == "CollectorJob":
        return job(name, count)
    metadata = pods["template"]["metadata"]
    labels = {key: value for key, value in metadata["labels"].items() if key not in OF_THE_SERVER}
    template = pods["template"] | {"metadata": metadata | {"labels": labels}}
    spec = pods | {"template": template, "completions": count, "parallelism": count}
    del spec["selector"]
    if kind == "JobSet":
        spec = {
            "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": spec}}],
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All"},
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
        }
    return {"apiVersion": VERSIONS[kind], "kind": kind, "metadata": {"name": name}, "spec": spec}


def call(cluster: Cluster, *requests: tuple[str, str, Any]) -> list[dict[str, Any]]:
    """Make all requests at once; return their answers."""

    async def answer(method: str, path: str, body: Any) -> dict[str, Any]:
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        return await cluster.server.api._request(method, path, body=body, content_type=content)

    async def answers() -> list[dict[str, Any]]:
        return await asyncio.gather(*(answer(*each) for each in requests))

    return cluster.server.call(answers(), 300)


def runs(cluster: Cluster) -> list[dict[str, Any]]:
    """Return all Kubernetes Jobs; none if the API server is too busy."""
    try:
        found: list[dict[str, Any]] = call(cluster, ("GET", PATHS["Job"], None))[0]["items"]
    except ApiError:
        return []
    return found


def wait_until_ready(cluster: Cluster, pods: int) -> None:
    """Wait until the Job controller counts this number of ready pods, and a little for what follows from it."""
    wait_for(lambda: sum(each["status"].get("ready", 0) for each in runs(cluster)) == pods, WITHIN_S, every_s=1.0)
    time.sleep(SETTLE_S)


def counted(cluster: Cluster) -> dict[str, float]:
    """Return the controller's requests, and what the API server has done for all of its clients."""
    found = {f"{verb} {resource}": float(count) for (verb, resource), count in cluster.requests().items()}
    context = ssl.create_default_context(cafile=str(cluster.server.folder / "apiserver.crt"))
    asked = urllib.request.Request(f"{cluster.server.url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(asked, context=context) as answer:
        for line in answer.read().decode().splitlines():
            title = ALL_CLIENTS.get(re.split(r"[{ ]", line, maxsplit=1)[0])
            if title:
                found[title] = found.get(title, 0.0) + float(line.rpartition(" ")[2])
    return found


def report(kind: str, title: str, cluster: Cluster, before: dict[str, float]) -> dict[str, float]:
    """Print what was counted since; return what has been counted by now."""
    now = counted(cluster)
    for what in sorted(now):
        if more := now[what] - before.get(what, 0.0):
            print(f"| {kind} | {title} | {what} | {more:.4g} |", flush=True)
    return now


if __name__ == "__main__":
    main()
