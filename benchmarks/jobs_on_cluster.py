"""Jobs on a real cluster: how soon they start, what fifty servers need, what a pod's end and another job's flood cost.

    eval "$(tests/cluster/up)" && python -P benchmarks/jobs_on_cluster.py [install first many ends flood]

It installs the chart, and removes it. KUBECONFIG, IMAGES and TAG are those of the cluster's tests.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from tests.api.job_data import job_data  # noqa: E402
from tests.cluster.lab import Lab, Release, counting_job, learner, run  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

from rollfleet import Cluster, Collector  # noqa: E402

CHART = ROOT / "charts/rollfleet"
MANY, ROUNDS, WINDOW_S = 50, 3, 30.0

FAST_LEARNER = """
import gymnasium, rollfleet
env = gymnasium.make("CartPole-v1")
with rollfleet.connect(policy=rollfleet.ActorCritic(env.observation_space, env.action_space)) as collector:
    for batch in collector:
        pass
"""

FLOOD = """
import asyncio, os, ssl
from nats.aio.client import Client
from rollfleet_api.address import Address
from rollfleet_api.job import CollectorJob
from rollfleet_api.publication import subjects_of

async def flood():
    here, client = Address.read(os.environ), Client()
    user, password = here.credentials.read_text().strip().split(":")
    trust = ssl.create_default_context(cafile=str(here.ca))
    await client.connect(here.url, user=user, password=password, tls=trust, pending_size=1 << 30)
    subjects, number = subjects_of(CollectorJob.model_validate_json(here.spec.read_bytes())), 0
    while True:
        await client.publish(subjects.chunk(number % 1000), bytes(900_000))
        await client.publish(subjects.worker(number % 1000), bytes(60_000))
        number += 1
        await client.flush()

asyncio.run(flood())
"""


def install(lab: Lab) -> None:
    """From `helm install` to ready, three times."""
    for _ in range(3):
        lab.release.uninstall()
        took_s = timed(lab.release.install)
        print(f"| `helm install` until ready, s | {took_s:.1f} |", flush=True)


def first(lab: Lab) -> None:
    """From a `Collector` to its first batch from pods."""
    for number in range(ROUNDS):
        began_s = time.monotonic()
        where = Cluster(name=f"first-{number}", namespace=lab.namespace)
        with Collector("CartPole-v1", frames_per_batch=64, workers=2, cluster=where) as collector:
            next(collector)
            print(f"| from `Collector` to the first batch, s | {time.monotonic() - began_s:.1f} |", flush=True)


def many(lab: Lab) -> None:
    """Fifty jobs at once, whose workers find no node: the one of this cluster takes 60 pods."""
    template = {"spec": {"nodeSelector": {"rollfleet.dev/no": "node"}}}
    little: dict[str, Any] = {"resources": {"requests": {"cpu": "5m", "memory": "16Mi"}}}
    jobs = [
        job_data(
            {"name": f"many-{number}", "namespace": lab.namespace},
            policy={"random": {}},
            workers=1,
            template=template,
            nats=little,
        )
        for number in range(MANY)
    ]
    lab.apply({"apiVersion": "v1", "kind": "List", "items": jobs})

    def servers() -> int:
        found = json.loads(lab.kubectl("get", "deployments", "--output=json"))["items"]
        return sum(bool(each["status"].get("readyReplicas")) for each in found)

    took_s = timed(lambda: wait_until(lambda: servers() >= MANY, 200))
    print(f"| {MANY} jobs until each has its server, s | {took_s:.0f} |")
    time.sleep(20)
    for container, mib in memory_mib().items():
        print(f"| memory of {container}, MiB: mean, most | {sum(mib) / len(mib):.1f}, {max(mib):.1f} |", flush=True)
    took_s = timed(lambda: lab.kubectl("delete", "collectorjobs", "--all", "--wait=true"))
    print(f"| until all are deleted, s | {took_s:.0f} |", flush=True)


def ends(lab: Lab) -> None:
    """How long a loop has no batch after the end of a pod."""
    lab.apply(counting_job(lab, ROOT))
    lab.wait_for_frames("counting", more_than=0)
    for role in ("nats", "learner"):
        for _ in range(ROUNDS):
            before = lab.status("counting")["frames"]
            lab.kubectl("delete", "pods", f"--selector=rollfleet.dev/role={role}", "--wait=false")
            began_s = time.monotonic()
            lab.wait_for_frames("counting", more_than=before + 20 * 512)
            pause = f"{longest_pause_s(lab):.1f}" if role == "nats" else f"at most {time.monotonic() - began_s:.1f}"
            print(f"| {role} deleted: longest time without a batch so far, s | {pause} |", flush=True)
    lab.kubectl("delete", "collectorjob", "counting")


def longest_pause_s(lab: Lab) -> float:
    """The longest time between two batches of a counting learner."""
    log = lab.kubectl("logs", "--selector=rollfleet.dev/role=learner", "--tail=-1", "--timestamps")
    times = [datetime.fromisoformat(line.split()[0]) for line in log.splitlines() if line.endswith("environments")]
    return max((after - earlier).total_seconds() for earlier, after in pairwise(times))


def flood(lab: Lab) -> None:
    """What a job gets while a worker of another one sends what it can; each pod has at most a quarter of a core."""
    lab.kubectl("create", "configmap", "fast", f"--from-literal=learner.py={FAST_LEARNER}")
    half = {"requests": {"cpu": "10m"}, "limits": {"cpu": "250m"}}
    of_learner = learner("/code/learner.py")
    of_learner["template"]["spec"]["volumes"][0]["configMap"]["name"] = "fast"
    of_learner["template"]["spec"]["containers"][0]["resources"] = half
    for name in ("quiet", "loud"):
        spec = {
            "workers": 1,
            "env": {"id": "CartPole-v1", "numEnvs": 8},
            "policy": {"mlp": {}},
            "collect": {"framesPerBatch": 512},
            "learner": of_learner,
            "template": {"spec": {"containers": [{"name": "worker", "resources": half}]}},
            "nats": {"resources": half},
        }
        lab.apply(job_data({"name": name}, **spec))
    for name in ("quiet", "loud"):
        lab.wait_for_frames(name, more_than=20_000)
    print(f"| the other job, frames/s, before | {rate(lab, 'quiet'):,.0f} |", flush=True)
    (pod,) = (each["metadata"]["name"] for each in running(lab, "worker") if "loud" in each["metadata"]["name"])
    command = ["kubectl", f"--namespace={lab.namespace}", "exec", pod, "--", "python", "-c", FLOOD]
    with subprocess.Popen(command) as flooding:
        time.sleep(10)
        print(f"| during the flood | {rate(lab, 'quiet'):,.0f} |", flush=True)
        print(f"| the flooded job itself meanwhile | {rate(lab, 'loud'):,.0f} |", flush=True)
        flooding.terminate()
    lab.kubectl("delete", "collectorjobs", "--all")


def rate(lab: Lab, job: str) -> float:
    """Return the frames a second of a job's learner."""
    before, began_s = lab.status(job)["frames"], time.monotonic()
    time.sleep(WINDOW_S)
    return float((lab.status(job)["frames"] - before) / (time.monotonic() - began_s))


def running(lab: Lab, role: str) -> list[dict[str, Any]]:
    """Return the pods of a role that run."""
    return [each for each in lab.pods(role) if each["status"]["phase"] == "Running"]


def memory_mib() -> dict[str, list[float]]:
    """Return the memory of the operator's and the servers' containers."""
    found: dict[str, list[float]] = {}
    node = run("kubectl", "get", "nodes", "--output=jsonpath={.items[0].metadata.name}")
    metrics = run("kubectl", "get", "--raw", f"/api/v1/nodes/{node}/proxy/metrics/resource")
    for container, size in re.findall(r'working_set_bytes\{container="(operator|nats)".*?\} (\S+)', metrics):
        found.setdefault(container, []).append(float(size) / 2**20)
    return found


def timed(work: Callable[[], object]) -> float:
    """Return how long something takes, seconds."""
    began_s = time.monotonic()
    work()
    return time.monotonic() - began_s


def main() -> None:
    """Print a table."""
    parts = {each.__name__: each for each in (install, first, many, ends, flood)}
    release = Release(CHART)
    release.install()
    try:
        for name in sys.argv[1:] or parts:
            lab = Lab(release)
            try:
                parts[name](lab)
            finally:
                lab.remove()
    finally:
        release.uninstall()
        release.remove()


if __name__ == "__main__":
    main()
