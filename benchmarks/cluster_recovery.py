"""The longest pause of a learner on a cluster after `kubectl delete pod` of one part.

`eval "$(tests/cluster/up)"; python -P benchmarks/cluster_recovery.py [--rounds 3] [--quick]`

The job has one worker, so its learner's loop waits until that worker is back. A figure is the longest pause of the loop
in the seconds after the deletion, from the timestamps of the learner's log.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from tests.cluster.lab import Lab, Release, counting_job  # noqa: E402

JOB = "counting"
WATCHED_S = 40.0


def main() -> None:
    """Install the chart, run a job, delete its parts in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round")
    given = parser.parse_args()
    if not os.environ.get("KUBECONFIG") or not os.environ.get("IMAGES"):
        print('skipped: no cluster with our images; `eval "$(tests/cluster/up)"` brings one')
        return
    release = Release(ROOT / "charts/rollfleet")
    release.install()
    lab = Lab(release)
    try:
        job = counting_job(lab, ROOT)
        job["spec"]["workers"] = 1
        lab.apply(job)
        lab.wait_for_frames(JOB, more_than=10_000)
        parts: dict[str, Callable[[], str]] = {
            "worker": lambda: lab.kubectl("delete", "pod", "--wait=false", "--selector=rollfleet.dev/role=worker"),
            "learner": lambda: lab.kubectl("delete", "pod", "--wait=false", "--selector=rollfleet.dev/role=learner"),
            "NATS": lambda: release.kubectl("delete", "pod", "--wait=false", "rollfleet-nats-0"),
            "operator": lambda: release.kubectl(
                "delete", "pod", "--wait=false", "--selector=app.kubernetes.io/component=operator"
            ),
        }
        print("| deleted | without a batch, s: median | least | most |\n|---|---|---|---|")
        for name, delete in parts.items():
            pauses = []
            for _ in range(1 if given.quick else given.rounds):
                deleted = datetime.now(UTC)
                delete()
                time.sleep(WATCHED_S)
                pauses.append(longest_pause_s(lab, deleted))
            print(f"| {name} | {statistics.median(pauses):.1f} | {min(pauses):.1f} | {max(pauses):.1f} |", flush=True)
    finally:
        lab.remove()
        release.uninstall()
        release.remove()


def longest_pause_s(lab: Lab, since: datetime) -> float:
    """Return the longest time between batches in the learner's log; the whole time if none has come."""
    # A pod that does not exist yet has no log.
    log = lab.kubectl("logs", "--selector=rollfleet.dev/role=learner", "--tail=-1", "--timestamps", check=False)
    times = [datetime.fromisoformat(line.split()[0]) for line in log.splitlines() if line.endswith("environments")]
    moments = [since, *(each for each in times if each > since)]
    if len(moments) == 1:
        moments.append(since + timedelta(seconds=WATCHED_S))
    return max((after - before).total_seconds() for before, after in pairwise(moments))


if __name__ == "__main__":
    main()
