"""Hundreds of workers and one learner on this machine: what a frame costs learner, server and worker, and its delay.

`python -P benchmarks/many_workers.py [--workers 200] [--mode Async] [--observations pong] [--quick] [...]`

A simulated worker is a `Worker` over NATS that replays a batch: it folds, compresses, sends and keeps it, and receives
weights, but steps no environment and asks no policy. `docs/benchmarks.md` explains the columns.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent / "contenders")]

import numpy as np
import psutil
import torch
from compression import pong  # type: ignore[import-not-found]
from delivery import ENVS, fragment_of  # type: ignore[import-not-found]
from torch import nn

import nats_job
import rollfleet
from rollfleet.data.batch import REWARD, Fragment
from rollfleet.envs.factory import make_env
from rollfleet.nats.link import Link
from rollfleet.nats.transport import NatsTransport
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet.rollout.rollouts import Rollouts
from rollfleet.schemes import Whole
from rollfleet.transports.workload import Workload
from rollfleet.worker import worker as worker_module
from rollfleet.worker.program import work
from rollfleet_api.address import Address
from rollfleet_api.permissions import Role
from rollfleet_api.ranks import Rank

COLUMNS = (
    "workers | mode | learner, µs | server, µs | worker, µs | core | received, MB/s | sent, MB/s | p50, ms | p99, ms | "
    "frames/s | weights, s | bytes a frame | learner, MiB | server, MiB | sent | yielded | lost | cut"
)


class Replay(Rollouts):
    """A rollout of a recorded fragment."""

    path, first_reset_failed, environments_s = "", False, 0.0

    def __init__(self, fragment: Fragment, pauses_s: Iterator[float]) -> None:
        """Pause before each batch."""
        self._fragment, self._pauses_s = fragment, pauses_s

    def collect(self, *, version: int, **_: object) -> Fragment:
        """Return the fragment, with the time at which it was handed over."""
        time.sleep(next(self._pauses_s))
        now = torch.full(self._fragment.steps[REWARD].shape[:2], time.monotonic(), dtype=torch.float64)
        return replace(self._fragment, steps={**self._fragment.steps, ("handed_s",): now}, version=version)

    def nothing(self, *_: Any) -> Any:
        """Do nothing: neither resets nor evaluation come to it."""

    close = outcomes = reseed = set_env = start_over = nothing  # type: ignore[assignment]


def simulate(url: str, workers: range, recorded: Any, sent: Any, options: argparse.Namespace, job: Any) -> None:
    """Run workers, each in a thread, until the job is complete; put the numbers of their batches and reconnections."""
    torch.set_num_threads(1)
    fragment = fragment_of(torch.from_numpy(recorded))
    period_s = fragment.frames / options.frames_per_s if options.frames_per_s else 0.0
    starts = iter(workers)

    def replay(*_: object, **__: object) -> Replay:
        return Replay(fragment, chain([period_s * next(starts) / options.workers], repeat(period_s)))

    def run(index: int) -> tuple[int, int]:
        policy: Any = nn.Linear(options.parameters, 1, bias=False)
        workload = Workload(
            job=job, make_env=lambda _: make_env(job.spec.env), make_policy=lambda *_: policy, scheme=Whole()
        )
        link = Link(Address(url=url, job=job.key), role=Role.WORKER, timeout_s=60.0)
        port = NatsWorkerTransport(link, index, job)
        _, status = work(port, lambda: worker_module.Worker(port, workload, index), index)
        return status.batches, link.client.stats["reconnects"]

    worker_module.make_rollout = replay  # type: ignore[attr-defined]
    with ThreadPoolExecutor(len(workers)) as pool:
        sent.put(np.sum([*pool.map(run, workers)], axis=0))


def learn(url: str, rank: Rank, pids: Any, leaving: Any, results: Any, options: argparse.Namespace, job: Any) -> None:
    """Iterate until no batch is as old as the start, then for some seconds; put what was counted."""
    link = Link(Address(url=url, job=job.key), role=Role.LEARNER)
    policy = nn.Linear(options.parameters, 1, bias=False) if rank.leads else None

    def counts() -> Any:
        cpu_s = [sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in each) for each in ([os.getpid()], *pids)]
        nbytes = collector.stats().bytes, link.client.stats["in_bytes"], link.client.stats["out_bytes"]
        return np.array([time.monotonic(), collector.frames, *cpu_s, *nbytes])

    delays, before = list[float](), None
    with rollfleet.Collector.over(NatsTransport(link, job, rank=rank), job, policy) as collector:
        for batch in collector:
            if before is not None:
                delays += (time.monotonic() - batch["handed_s"][::ENVS, 0]).tolist()
                if time.monotonic() - before[0] >= options.seconds:
                    break
            elif sum(each.batches > 3 for each in collector.stats().workers.values()) == options.workers:
                before = counts()
        counted, stats = counts() - before, collector.stats()
        memory = [psutil.Process(pid).memory_info().rss / (1 << 20) for pid in (os.getpid(), *pids[0])]
        lost = stats.missed + stats.repeated + stats.stale + stats.corrupt
        ends = collector.frames // batch[:ENVS].numel(), lost, link.client.stats["reconnects"]  # batches, of a worker
        results.put((counted, delays, ends, memory, arrival_s(collector) if rank.leads else 0.0))
        leaving.wait()  # the end of the first rank completes the job


def arrival_s(collector: rollfleet.Collector) -> float:
    """Return the seconds until all workers have a version of the weights."""
    began_s = time.monotonic()
    collector.update_policy_weights_()
    collector.wait_for_version(collector.version, 300.0)
    return time.monotonic() - began_s


def limit(port: str, gbit: float) -> None:
    """Limit what this network namespace's loopback carries from a port, and to it."""
    script = f"""tc qdisc replace dev lo root handle 1: htb && for end in sport dport; do
        tc class add dev lo parent 1: classid 1:$((++number)) htb rate {gbit}gbit quantum 60000 &&
        tc filter add dev lo parent 1: u32 match ip $end {port} 0xffff flowid 1:$number || exit; done"""
    subprocess.run(["bash", "-c", script], check=True)


def measured(options: argparse.Namespace, recorded: Any) -> str:
    """Return a row of the table."""
    context, workers = multiprocessing.get_context("spawn"), options.workers
    at_once = workers if options.mode == "Sync" else 1  # workers whose fragments are one batch of the iterator
    job = nats_job.job(
        mode=options.mode,
        workers=workers,
        env={"id": "CartPole-v1", "numEnvs": ENVS},
        policy={"mlp": {}},
        collect={"framesPerBatch": ENVS * recorded.shape[1] * at_once},
        weights={"interval": options.weights_every * workers // at_once},
        delivery={"compression": options.compression},
    )
    leaving, results, sent = context.Barrier(options.ranks), context.Queue(), context.Queue()

    def start(function: Any, *arguments: Any) -> Any:
        process = context.Process(target=function, args=(*arguments, options, job), daemon=True)
        process.start()
        return process

    with nats_job.nats_server(job) as server:
        if options.gbit:
            limit(server.host_port.rpartition(":")[2], options.gbit)
        groups = [range(first, min(first + 100, workers)) for first in range(0, workers, 100)]  # one for a process
        simulators = [start(simulate, server.url(Role.WORKER), group, recorded, sent) for group in groups]
        pids = [server.child.pid], [process.pid for process in simulators]
        ranks = [Rank(rank, options.ranks) for rank in range(options.ranks)]
        learners = [start(learn, server.url(Role.LEARNER), rank, pids, leaving, results) for rank in ranks]
        each = [results.get(timeout=300.0 + 2 * options.seconds) for _ in learners]
        batches, reconnections = sum(sent.get(timeout=60.0) for _ in groups)
        for process in (*learners, *simulators):
            process.join()
    counted, delays, ends, memory, arrivals_s = zip(*each, strict=True)
    s, frames, cpu_s, nats_s, workers_s, *nbytes = np.transpose(counted)
    per_s = sum(frames / s)
    cpus = [sum(cpu_s) / sum(frames), *(np.mean(each_s / s) / per_s for each_s in (nats_s, workers_s))]
    figures = [*(1e6 * each for each in cpus), max(cpu_s / s), *(max(each / s) / 1e6 for each in nbytes[1:])]
    figures += [1e3 * each for each in np.percentile(np.concatenate(delays), [50, 99])]
    counts = [sum(nbytes[0]) / sum(frames), *np.max(memory, axis=0), batches]
    counts += [*np.sum([*ends, (0, 0, reconnections)], axis=0)]
    rest = [f"{per_s:,.0f}", f"{max(arrivals_s):,.2f}", *map("{:,.0f}".format, counts)]
    return " | ".join([str(workers), options.mode, *map("{:,.2f}".format, figures), *rest])


def main() -> None:
    """Measure, and print a table of one row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--mode", choices=["Async", "Sync"], default="Async")
    parser.add_argument("--observations", choices=["pong", "cartpole"], default="pong", help="cartpole: 8 x 8 frames")
    parser.add_argument("--steps", type=int, default=128, help="of 8 environments in a batch; a round has all batches")
    parser.add_argument("--frames-per-s", type=float, default=0.0, help="of each worker; 0: as the learner takes them")
    parser.add_argument("--weights-every", type=int, default=1, help="batches of each worker; 0: only at the start")
    parser.add_argument("--parameters", type=int, default=1_000_000, help="float32")
    parser.add_argument("--compression", default="Auto", help="`delivery.compression` of the job")
    parser.add_argument("--ranks", type=int, default=1, help="processes of the learner, in mode Async")
    of_its_own = "it shapes the loopback, so as root: unshare --net sh -c 'ip link set lo up; python -P ... --gbit 1'"
    gbit_help = f"a limit in Gbit/s to the server, and one from it; {of_its_own}"
    parser.add_argument("--gbit", type=float, default=0.0, help=gbit_help)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--quick", action="store_true", help="four workers, two seconds")
    options = parser.parse_args()
    if options.quick:
        options.workers, options.seconds = 4, 2.0
    os.environ |= nats_job.KEEPING
    numbers = np.random.default_rng(0).random((ENVS, 8, 4), np.float32)
    recorded = pong().numpy()[:, : options.steps] if options.observations == "pong" else numbers
    print(f"| {COLUMNS} |\n{'|---' * len(COLUMNS.split('|'))}|\n| {measured(options, recorded)} |")


if __name__ == "__main__":
    main()
