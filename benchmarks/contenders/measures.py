"""The measurements of a contender."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from statistics import median
from typing import Any

import psutil

from work import Running, Work

Start = Callable[[Work], AbstractContextManager[Running]]
Figures = Callable[[float], dict[str, float]]


@contextmanager
def rate(start: Start, work: Work) -> Iterator[Figures]:
    """`frames/s` over some seconds; `CPU µs` a frame, of all processes; `worker MB`, resident, of worker processes."""
    with start(work) as running:

        def figures(seconds: float) -> dict[str, float]:
            _warm(running, work)
            before = _family_cpu_s()
            frames, elapsed = _collect(running, work, seconds)
            cpu_us = 1e6 * (_family_cpu_s() - before) / frames
            return {"frames/s": frames / elapsed, "CPU µs": cpu_us} | _resident(running)

        yield figures


@contextmanager
def first_batch(start: Start, work: Work) -> Iterator[Figures]:
    """`start s`: from nothing, with all imports done here, until the first batch."""

    def figures(_: float) -> dict[str, float]:
        began = time.perf_counter()
        with start(work) as running:
            running.next_batch()
            return {"start s": time.perf_counter() - began} | _resident(running)

    yield figures


@contextmanager
def weights(start: Start, work: Work) -> Iterator[Figures]:
    """`call ms`: the learner's own call. `acted ms`: from the call until all workers have acted on the weights."""
    with start(work) as running:
        send, policy = running.send_weights, running.policy
        assert send is not None
        assert policy is not None
        assert policy.ballast is not None
        last, marker = policy.ballast.data[-1:], 0.0

        def figures(seconds: float) -> dict[str, float]:
            nonlocal marker
            calls: list[float] = []
            acted: list[float] = []
            until = time.monotonic() + seconds
            while not calls or time.monotonic() < until:
                marker += 1.0
                last.fill_(marker)
                began = time.monotonic()
                send()
                calls.append(time.monotonic() - began)
                acted.append(_acted_at(running, marker, work.workers) - began)
            return {"call ms": 1e3 * median(calls), "acted ms": 1e3 * median(acted)}

        running.next_batch()
        yield figures


@contextmanager
def idle(start: Start, work: Work) -> Iterator[Figures]:
    """`idle CPU %` of a worker, and `learner idle CPU %`, of a core, while no batch is requested."""
    with start(work) as running:
        for _ in range(4):
            running.next_batch()
        time.sleep(2.0)

        def figures(seconds: float) -> dict[str, float]:
            before, began = _cpu_s(running), time.perf_counter()
            time.sleep(max(2.0, 5.0 * seconds))  # CPU is counted in hundredths of a second
            elapsed = time.perf_counter() - began
            now = _cpu_s(running)
            workers = max(now[pid] - before[pid] for pid in running.worker_pids)
            own = now[os.getpid()] - before[os.getpid()]
            return {"idle CPU %": 100 * workers / elapsed, "learner idle CPU %": 100 * own / elapsed}

        yield figures


@contextmanager
def imports(start: Callable[[Work], AbstractContextManager[Any]], work: Work) -> Iterator[Figures]:
    """`import s` and `import MB`, resident, of a module in a fresh interpreter."""
    with start(work) as module:
        program = (
            f"import time; began = time.perf_counter(); import {module}; took = time.perf_counter() - began;"
            "import psutil; print(took, psutil.Process().memory_info().rss / 1e6)"
        )

        def figures(_: float) -> dict[str, float]:
            done = subprocess.run([sys.executable, "-P", "-c", program], check=True, capture_output=True, text=True)
            seconds, megabytes = map(float, done.stdout.split()[-2:])
            return {"import s": seconds, "import MB": megabytes}

        yield figures


def _warm(running: Running, work: Work) -> None:
    """Discard the batches that have waited since the last round."""
    for _ in range(1 + 3 * work.workers):
        _next(running, work)


def _collect(running: Running, work: Work, seconds: float) -> tuple[int, float]:
    """Return the frames of some seconds, and these seconds."""
    frames, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        frames += _next(running, work)
    return frames, elapsed


def _next(running: Running, work: Work) -> int:
    _, frames = running.next_batch()
    if work.weights and running.send_weights:
        running.send_weights()
    return frames


def _acted_at(running: Running, marker: float, workers: int) -> float:
    """Return the time when the last worker first acted on the weights with this marker."""
    first: dict[float, float] = {}
    while len(first) < workers:
        batch, _ = running.next_batch()
        new = batch["marker"].reshape(-1) == marker
        pids, times = (batch[key].reshape(-1)[new].tolist() for key in ("pid", "acted_at"))
        for pid, at in zip(pids, times, strict=True):
            first[pid] = min(first.get(pid, at), at)
    return max(first.values())


def _cpu_s(running: Running) -> dict[int, float]:
    times = {pid: psutil.Process(pid).cpu_times() for pid in (*running.worker_pids, os.getpid())}
    return {pid: each.user + each.system for pid, each in times.items()}


def _family_cpu_s() -> float:
    own = psutil.Process()
    times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def _resident(running: Running) -> dict[str, float]:
    if not running.worker_pids:
        return {}
    return {"worker MB": max(psutil.Process(pid).memory_info().rss for pid in running.worker_pids) / 1e6}


MEASURES: Mapping[str, Callable[[Any, Work], AbstractContextManager[Figures]]] = {
    "rate": rate,
    "first_batch": first_batch,
    "weights": weights,
    "idle": idle,
    "imports": imports,
}
