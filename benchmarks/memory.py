"""The growth of memory: a job of a million frames through one learner, with samples of every process's resident memory.

`python benchmarks/memory.py [--frames N] [--quick]`

The slope is that of a least-squares line through the samples after the first third of the frames, in KiB for each
100,000 frames.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import psutil

SAMPLE_EVERY_S = 0.25
JOB = """
apiVersion: rollfleet.dev/v1alpha1
kind: CollectorJob
metadata: {{name: memory}}
spec:
  workers: 2
  mode: {mode}
  env: {{id: CartPole-v1, numEnvs: 32}}
  policy: {{mlp: {{}}}}
  collect: {{framesPerBatch: 4096, totalFrames: {frames}}}
"""
LEARNER = """
import gymnasium, pathlib, sys, rollfleet
env = gymnasium.make("CartPole-v1")
policy = rollfleet.ActorCritic(env.observation_space, env.action_space)
with rollfleet.connect(policy=policy) as collector, open(sys.argv[1], "w", buffering=1) as progress:
    for batch in collector:
        print(collector.frames, file=progress)
"""


def sample(mode: str, frames: int) -> dict[str, list[tuple[int, int]]]:
    """Sample frames and resident bytes of each process until the job ends."""
    samples: dict[str, list[tuple[int, int]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        job, learner, progress = (Path(folder) / name for name in ("job.yaml", "learner.py", "progress"))
        job.write_text(JOB.format(mode=mode, frames=frames))
        learner.write_text(LEARNER)
        progress.touch()
        run = [sys.executable, "-P", "-m", "rollfleet", "run", str(job), "--learner", str(learner), "--", str(progress)]
        with subprocess.Popen(run, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                time.sleep(SAMPLE_EVERY_S)
                lines = progress.read_text().split()
                if lines:
                    for name, resident_bytes in _resident(process.pid, str(learner)):
                        samples[name].append((int(lines[-1]), resident_bytes))
        if process.returncode:
            raise SystemExit(f"the job ended with {process.returncode}")
    return samples


def _resident(runner: int, learner: str) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    try:
        children = psutil.Process(runner).children()
        for child in sorted(children, key=lambda child: child.pid):
            command = child.cmdline()
            name = "learner" if learner in command else "worker" if "worker" in command else "nats-server"
            if not child.memory_info().rss:  # it has ended already
                continue
            number = len([other for other, _ in found if other.startswith(name)])
            found.append((f"{name} {number}" if name == "worker" else name, child.memory_info().rss))
    except psutil.Error:  # it is ending
        return []
    return found


def slope(points: list[tuple[int, int]]) -> tuple[float, float]:
    """Return the KiB per 100,000 frames after the first third, and the last resident size in MiB."""
    frames, resident = np.array(points, dtype=float).T
    warm = frames > frames[-1] / 3
    gradient = np.polyfit(frames[warm], resident[warm], 1)[0]
    return float(gradient * 1e5 / 1024), float(resident[-1] / 2**20)


def main() -> None:
    """Run and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="200,000 frames")
    arguments = parser.parse_args()
    frames = 200_000 if arguments.quick else arguments.frames
    print("| mode | process | resident, MiB | slope, KiB per 100,000 frames |\n|---|---|---|---|")
    for mode in ("Sync", "Async"):
        began = time.monotonic()
        samples = sample(mode, frames)
        for name, points in sorted(samples.items()):
            gradient, resident = slope(points)
            print(f"| {mode} | {name} | {resident:,.0f} | {gradient:+,.0f} |")
        print(f"| {mode} | {frames / (time.monotonic() - began):,.0f} frames/s, start-up included | | |", flush=True)


if __name__ == "__main__":
    main()
