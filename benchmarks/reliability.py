"""The recovery time of a job after kills; `make chaos` counts what is lost.

`python benchmarks/reliability.py [--rounds 5] [--quick]`

`rollfleet run` with two workers, one learner. Kills are SIGKILL.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect
from dataclasses import dataclass
from pathlib import Path

import psutil

JOB = """
apiVersion: rollfleet.dev/v1alpha1
kind: CollectorJob
metadata: {name: reliability}
spec:
  workers: 2
  mode: Async
  env: {id: CartPole-v1, numEnvs: 8}
  policy: {mlp: {}}
  collect: {framesPerBatch: 256}
  weights: {maxLag: 1000000}
  failure: {maxRestartsPerWorker: 1000}
"""
# Restarts the learner after a kill: `rollfleet run` itself ends with its learner.
LEARNER = """
import subprocess, sys
while subprocess.call([sys.executable, *sys.argv[1:]]) < 0:
    pass
"""
COLLECT = """
import gymnasium, sys, time
import rollfleet
from rollfleet.learner.gathering import Gatherer

hand_over, out = Gatherer.hand_over, open(sys.argv[1], "a", buffering=1)

def recorded(self, *, stored):
    for each in self.under_way:
        print(time.monotonic(), each.worker, each.incarnation, file=out)
    hand_over(self, stored=stored)

Gatherer.hand_over = recorded
env = gymnasium.make("CartPole-v1")
with rollfleet.connect(policy=rollfleet.ActorCritic(env.observation_space, env.action_space)) as collector:
    for batch in collector:
        time.sleep(0.02)
"""


@dataclass(frozen=True)
class Batch:
    """One line of the learner's record."""

    time_s: float
    worker: int
    incarnation: int


class Record:
    """The learners' records, read incrementally."""

    def __init__(self, path: Path) -> None:
        """Read a file that may not exist yet."""
        path.touch()
        self.path, self.batches = path, list[Batch]()
        self._file, self._half = path.open(), ""

    def look(self) -> list[Batch]:
        """Return the new batches; `batches` has all."""
        *lines, self._half = (self._half + self._file.read()).split("\n")
        parts = (line.split() for line in lines)
        new = [Batch(float(line[0]), *map(int, line[1:])) for line in parts if len(line) == 3]
        self.batches += new
        return new


class Run:
    """A running job, and its processes."""

    def __init__(self, folder: Path) -> None:
        self.record = Record(folder / "record")
        for name, text in (("job.yaml", JOB), ("learner.py", LEARNER), ("collect.py", COLLECT)):
            (folder / name).write_text(text)
        learner = ["--learner", str(folder / "learner.py"), "--", str(folder / "collect.py")]
        command = [sys.executable, "-P", "-m", "rollfleet", "run", str(folder / "job.yaml"), *learner]
        arguments = [*command, str(self.record.path)]
        self.process = subprocess.Popen(arguments, stdout=(folder / "output").open("w"), stderr=subprocess.STDOUT)

    def parts(self) -> dict[str, psutil.Process]:
        """Return the job's processes by name."""
        found = {}
        for each in psutil.Process(self.process.pid).children(recursive=True):
            try:
                command, environ = each.cmdline(), each.environ()
            except psutil.Error:
                continue
            if "nats.json" in command[-1]:
                found["nats-server"] = each
            elif command[-1] == "worker":
                found[f"worker {environ['ROLLFLEET_WORKER']}"] = each
            elif len(command) > 1 and command[1].endswith("collect.py"):
                found["learner"] = each
        return found

    def kill(self, name: str) -> float:
        """Send SIGKILL, and return the time."""
        self.parts()[name].send_signal(signal.SIGKILL)
        return time.monotonic()

    def wait_for(self, worker: int | None = None, since_s: float = 0.0, *, next_life: bool = False) -> Batch:
        """Return the first batch since then; of a worker, the first of its next incarnation."""
        self.record.look()
        known = self.record.batches
        lives = [each.incarnation for each in known if each.worker == worker and each.time_s < since_s]
        new = known[bisect(known, since_s, key=lambda each: each.time_s) :]
        while self.process.poll() is None:
            for each in new:
                meant = each.time_s >= since_s and worker in (None, each.worker)
                if meant and (not next_life or each.incarnation > max(lives, default=-1)):
                    return each
            time.sleep(0.01)
            new = self.record.look()
        raise SystemExit("the job ended")


def recover(run: Run, name: str) -> float:
    """Return the seconds from a kill to the batch that proves the recovery."""
    killed_s = run.kill(name)
    if name.startswith("worker"):
        return run.wait_for(int(name.split()[1]), killed_s, next_life=True).time_s - killed_s
    if name == "nats-server":  # batches under way are still delivered
        return run.wait_for(None, killed_s + 0.2).time_s - killed_s
    return run.wait_for(None, killed_s).time_s - killed_s


def main() -> None:
    """Run and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two rounds")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        try:
            run.wait_for(0)
            run.wait_for(1)
            _recoveries(run, 2 if given.quick else given.rounds)
        finally:
            os.kill(run.process.pid, signal.SIGTERM)
            run.process.wait(30)


def _recoveries(run: Run, rounds: int) -> None:
    print("| killed | to the next batch, s: median | least | most |\n|---|---|---|---|")
    for name in ("worker 0", "nats-server", "learner"):
        took = []
        for _ in range(rounds):
            took.append(recover(run, name))
            run.wait_for(0, time.monotonic())
            run.wait_for(1, time.monotonic())
        print(f"| {name} | {statistics.median(took):.2f} | {min(took):.2f} | {max(took):.2f} |", flush=True)


if __name__ == "__main__":
    main()
