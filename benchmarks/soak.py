"""An hour of a whole cluster: one job learns, others come and go. What restarts, what is lost, what is left?

`eval "$(tests/cluster/up)"; python -P benchmarks/soak.py [--seconds 3600] [--quick]`

The job that learns is `examples/cartpole`, which goes on when it is solved. Beside it, one job after the other collects
its frames and is deleted; every third one is deleted before. Memory is the working set of each pod that lasts, as its
kubelet reports it. The exit code is 1 if a container restarted, a batch was dropped, or anything of a deleted job was
left.
"""

import argparse
import os
import re
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from tests.cluster.lab import Lab, Release, counting_job, learner, run  # noqa: E402

LEARNING, EXAMPLE = "cartpole", ROOT / "examples/cartpole"
BATCHES = 50  # of each job that comes and goes
LEFT_S = 180.0  # until what is still there counts as left: the operator looks for orphans each minute
OF_JOBS = "jobs,pods,deployments,services,secrets,serviceaccounts,networkpolicies"

_MEMORY = re.compile(
    r'container_memory_working_set_bytes\{.*namespace="(?P<namespace>[^"]*)",pod="(?P<pod>[^"]*)"\} (?P<bytes>\S+)'
)


class Soak:
    """The jobs and what was seen of them.

    Attributes:
        memory: MiB of each pod that lasts, in the order of time.
        finished: Number of jobs that collected all their frames.
        deleted: Number of jobs that were deleted before.
        dropped: Number of batches that the jobs lost.
    """

    def __init__(self, release: Release) -> None:
        self._release, self._learning, self._others = release, Lab(release), Lab(release)
        self._job = counting_job(self._others, ROOT)
        self._job["spec"]["collect"]["totalFrames"] = BATCHES * int(self._job["spec"]["collect"]["framesPerBatch"])
        self._before = self.left()
        self.memory: dict[str, list[float]] = defaultdict(list)
        self.finished = self.deleted = self.dropped = 0

    def begin(self) -> None:
        """Start the job that learns."""
        self._learning.kubectl("create", "configmap", "learner", f"--from-file={EXAMPLE / 'learner.py'}")
        job: dict[str, Any] = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
        job["spec"]["learner"] = learner("/code/learner.py", "--output", "/tmp/out")
        del job["spec"]["source"]
        job["spec"]["collect"]["totalFrames"] = 1 << 40
        self._learning.apply(job)
        self._learning.wait_for_frames(LEARNING, more_than=0)

    def come_and_go(self, number: int) -> None:
        """Run one job beside it, and delete it; every third one in the middle."""
        name = f"brief-{number}"
        self._others.apply(self._job | {"metadata": {"name": name}})
        if number % 3 == 2:
            self._others.wait_for_frames(name, more_than=0)
            self.deleted += 1
        else:
            self._others.kubectl("wait", f"collectorjob/{name}", "--for=condition=Complete", "--timeout=300s")
            self.finished += 1
        self.dropped += self._others.status(name)["batches"]["dropped"]
        self._others.kubectl("delete", f"collectorjob/{name}", "--wait=true", "--timeout=120s")
        self._others.kubectl("wait", "--for=delete", "pods", "--all", "--timeout=120s")

    def look(self) -> None:
        """Read the memory of the pods that last."""
        lasting = (self._release.namespace, self._learning.namespace)
        for node in run("kubectl", "get", "nodes", "--output=jsonpath={.items[*].metadata.name}").split():
            for line in run("kubectl", "get", "--raw", f"/api/v1/nodes/{node}/proxy/metrics/resource").splitlines():
                found = _MEMORY.match(line)
                if found and found["namespace"] in lasting:
                    self.memory[found["pod"]].append(float(found["bytes"]) / (1 << 20))

    def frames(self) -> int:
        """Return the frames of the job that learns."""
        return int(self._learning.status(LEARNING)["frames"])

    def restarts(self) -> int:
        """Return how often containers that last were restarted, or replaced by another pod."""
        names = "--output=jsonpath={.items[*].status.containerStatuses[*].restartCount}"
        counts = [each.kubectl("get", "pods", names).split() for each in (self._release, self._learning)]
        replaced = len(self.memory) - sum(map(len, counts))  # each of these pods has one container
        return sum(int(count) for each in counts for count in each) + max(0, replaced)

    def left(self) -> set[str]:
        """Return the objects of jobs that come and go."""
        return set(self._others.kubectl("get", OF_JOBS, "--output=name").split())

    def end(self) -> set[str]:
        """Delete the job that learns; return what is left that was not there before."""
        self.dropped += self._learning.status(LEARNING)["batches"]["dropped"]
        self._learning.kubectl("delete", f"collectorjob/{LEARNING}", "--wait=true", "--timeout=120s")
        self._learning.kubectl("wait", "--for=delete", "pods", "--all", "--timeout=120s")
        until = time.monotonic() + LEFT_S
        while (left := self.left() - self._before) and time.monotonic() < until:
            time.sleep(1.0)
        for each in (self._learning, self._others):
            each.remove()
        return left


def main() -> None:
    """Install the chart, soak it, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--quick", action="store_true", help="two minutes")
    given = parser.parse_args()
    if not os.environ.get("KUBECONFIG") or not os.environ.get("IMAGES"):
        print('skipped: no cluster with our images; `eval "$(tests/cluster/up)"` brings one')
        return
    release = Release(ROOT / "charts/rollfleet")
    release.install()
    soak, number = Soak(release), 0
    soak.begin()
    until = time.monotonic() + (120.0 if given.quick else given.seconds)
    while time.monotonic() < until:
        soak.come_and_go(number)
        soak.look()
        number += 1
        print(f"{number} jobs, {soak.frames():,} frames of the job that learns", file=sys.stderr)
    restarts, frames = soak.restarts(), soak.frames()
    left = soak.end()
    print("| finished | deleted before | frames learned from | restarts | dropped | left |\n|---|---|---|---|---|---|")
    print(f"| {soak.finished} | {soak.deleted} | {frames:,} | {restarts} | {soak.dropped} | {', '.join(left) or 0} |")
    print("\n| pod | MiB: median of the first quarter | of the last | most |\n|---|---|---|---|")
    for pod, used in sorted(soak.memory.items()):
        quarter = -(-len(used) // 4)
        first, last = statistics.median(used[:quarter]), statistics.median(used[-quarter:])
        print(f"| {pod} | {first:.0f} | {last:.0f} | {max(used):.0f} |")
    release.uninstall()
    release.remove()
    sys.exit(1 if restarts or soak.dropped or left else 0)


if __name__ == "__main__":
    main()
