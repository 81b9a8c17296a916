"""Megabytes of batches per second that reach a learner outside of a cluster: directly, and through its API server.

`KUBECONFIG=... python -P benchmarks/from_outside.py [--namespace default] [--nats rollfleet/rollfleet-nats] [--quick]`

The cluster has Rollfleet. Workers send frames of 84 x 84 x 4 bytes as fast as the learner takes them; the figure counts
bytes on the wire. The direct way needs an address of NATS that answers from here, such as the chart's `nats.publicUrl`.
"""

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import gymnasium
import numpy as np

import rollfleet
from rollfleet.cluster.reach import NATS_PORT, Reach
from rollfleet.cluster.sources import Sources
from rollfleet.cluster.tunnel import Tunnel
from rollfleet.nats.link import Link
from rollfleet.nats.state import read_job
from rollfleet.nats.transport import NatsTransport
from rollfleet_api.address import Address
from rollfleet_api.permissions import Role

WORKERS, TIMEOUT_S = 2, 600.0


class Noise(gymnasium.Env[Any, Any]):
    """Images that compress no stack, at no cost."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self._images, self._step = np.random.default_rng(0).integers(0, 255, (8, 84, 84, 4), np.uint8), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        return self._images[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the next of eight images."""
        self._step += 1
        return self._images[self._step % 8], 1.0, False, False, {}


@contextmanager
def reached(jobs: rollfleet.Jobs, name: str, image: str | None) -> Iterator[Reach]:
    """Run a job, and yield the way to it that `rollfleet.connect` finds."""
    sources, namespace = Sources(), jobs.api.namespace
    spec = {
        "workers": WORKERS,
        "env": {"entrypoint": sources.name(Noise, "env").entrypoint, "numEnvs": 4},
        "policy": {"random": {}},
        "collect": {"framesPerBatch": 512},
        "delivery": {"maxBytes": "512Mi", "maxBatchesAhead": 4},
        "source": {"configMap": f"{name}-source"},
    } | ({"image": image} if image else {})
    head = {"apiVersion": "rollfleet.dev/v1alpha1", "kind": "CollectorJob"}
    jobs.submit({**head, "metadata": {"name": name}, "spec": spec}, sources=sources)
    try:
        reach = Reach(jobs.api, namespace, name, timeout_s=TIMEOUT_S)
        yield reach
        reach.close()
    finally:
        jobs.delete(name)


def mb_per_s(address: Address, seconds: float) -> float:
    """Return the megabytes of batches per second, without the first four batches."""
    link = Link(address, role=Role.LEARNER, timeout_s=TIMEOUT_S)
    job = link.call(read_job(link, timeout_s=TIMEOUT_S))
    with rollfleet.Collector.over(NatsTransport(link, job), job) as collector:
        for _ in range(4):
            next(collector)
        began, before = time.perf_counter(), collector.stats().bytes
        while (passed := time.perf_counter() - began) < seconds:
            next(collector)
        return (collector.stats().bytes - before) / passed / 1e6


def main() -> None:
    """Measure both ways in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namespace", help="of the job; default: the kubeconfig's")
    parser.add_argument("--nats", default="rollfleet/rollfleet-nats", help="namespace and name of NATS's Service")
    parser.add_argument("--image", help="of the workers; default: the chart's")
    parser.add_argument("--quick", action="store_true", help="2 s each")
    given = parser.parse_args()
    if not os.environ.get("KUBECONFIG"):
        print("skipped: KUBECONFIG names no cluster with Rollfleet")
        return
    jobs, seconds = rollfleet.Jobs(namespace=given.namespace), 2.0 if given.quick else 30.0
    print("| way | MB/s |\n|---|---|")
    with reached(jobs, "direct", given.image) as reach:
        found = f"{mb_per_s(reach.address, seconds):,.0f}" if reach.is_direct else "no address answers from here"
        print(f"| direct | {found} |", flush=True)
    namespace, _, service = given.nats.partition("/")
    with reached(jobs, "tunnel", given.image) as reach:
        tunnel = Tunnel(jobs.api, namespace, [f"{service}-0"], NATS_PORT)
        url = f"{urlsplit(reach.address.url).scheme}://127.0.0.1:{tunnel.port}"
        address = replace(reach.address, url=url, server_name=f"{service}.{namespace}.svc")
        print(f"| through the API server | {mb_per_s(address, seconds):,.0f} |")
        tunnel.close()


if __name__ == "__main__":
    main()
