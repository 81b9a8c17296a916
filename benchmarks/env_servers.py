"""A vector of environments in servers beside Gymnasium's and EnvPool's: frames, steps, CPU, halves, starts.

`python -P benchmarks/env_servers.py [--quick] [--rounds N] [--only NAME]`

The loops have no policy: they step with the same actions. "over TLS" are programs `rollfleet env-server` of this
machine. A contender's CPU time is that of the process that calls `step`, for a frame. Medians of rounds in turn.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

sys.path.extend(str(Path(__file__).parent / folder) for folder in (".", "contenders"))

import numpy as np
import psutil
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import rollfleet
from env_hosts import host, hosts, write_certificate
from work import Plain, Work, make

ROUNDS, SECONDS = 5, 3.0
Figures = dict[str, list[float]]
Contenders = dict[str, Callable[[], Any]]


def cases(stack: ExitStack) -> dict[str, Contenders]:
    """Return the vectors of each case, by contender."""
    found: dict[str, Contenders] = {}
    for title, env, envs, servers in (
        ("16 CartPole, 2 servers", "CartPole-v1", 16, 2),
        ("8 CartPole, 1 server", "CartPole-v1", 8, 1),
        ("16 of 1 ms, 16 servers", "slow-1000", 16, 16),
        ("the same with a tail", "tail-1000", 16, 16),
    ):
        build = partial(make, env)
        found[title] = {
            "SyncVectorEnv": partial(SyncVectorEnv, [build] * envs),
            "AsyncVectorEnv": partial(AsyncVectorEnv, [build] * envs),
            "make_vec": partial(rollfleet.make_vec, build, num_envs=envs, workers=servers),
            "make_vec over TLS": partial(remote, stack, build, num_envs=envs, servers=servers),
        }
        if env == "CartPole-v1":
            found[title]["EnvPool"] = partial(envpool, envs)
    return found


def remote(stack: ExitStack, build: Callable[[], Any], num_envs: int, servers: int) -> Any:
    """Return a vector over programs that run until the stack is closed."""
    return rollfleet.make_vec(build, num_envs=num_envs, **stack.enter_context(hosts(servers)))


def envpool(num_envs: int) -> Any:
    """Return CartPole of EnvPool, with as many threads as there are cores."""
    import envpool as pool

    return pool.make_gymnasium("CartPole-v1", num_envs=num_envs, num_threads=psutil.cpu_count())


def stepped(envs: Any, actions: Any, seconds: float) -> dict[str, float]:
    """Step for some seconds."""
    took: list[float] = []
    began, cpu_s = time.perf_counter(), time.process_time()
    while (now := time.perf_counter()) - began < seconds:
        envs.step(actions)
        took.append(time.perf_counter() - now)
    frames = len(actions) * len(took)
    return {
        "frames/s": frames / (time.perf_counter() - began),
        "p50, ms": 1e3 * median(took),
        "p99, ms": 1e3 * float(np.quantile(took, 0.99)),
        "CPU, µs": 1e6 * (time.process_time() - cpu_s) / frames,
    }


def steps(contenders: Contenders, rounds: int, seconds: float) -> dict[str, Figures]:
    """Step the vectors in turn."""
    with ExitStack() as stack:
        vectors, found = {}, {name: Figures() for name in contenders}
        for name, start in contenders.items():
            vectors[name] = envs = start()
            stack.callback(envs.close)
            envs.reset()
            stepped(envs, np.zeros(envs.num_envs, np.int32 if name == "EnvPool" else np.int64), seconds / 3)
        for _ in range(rounds):
            for name, envs in vectors.items():
                actions = np.zeros(envs.num_envs, np.int32 if name == "EnvPool" else np.int64)
                for each, value in stepped(envs, actions, seconds).items():
                    found[name].setdefault(each, []).append(value)
    return found


def halves(rounds: int, seconds: float) -> Iterator[tuple[str, float]]:
    """Yield frames a second with `send` and `recv` of halves, as a ratio to those of `step`, for each case."""
    for num_envs in (16, 64):
        for servers in (2, 4):
            for wait_us in (0, 100, 1000):
                for width in (64, 2048):
                    work = Work(env=f"slow-{wait_us}", num_envs=num_envs, hidden=(width, width))
                    act = Plain(work)
                    make_half = partial(rollfleet.make_vec, partial(make, work.env), num_envs=num_envs, workers=servers)
                    whole, half = make_half(), make_half(batch_size=num_envs // 2)
                    ratios = []
                    for _ in range(rounds):
                        at_once = _frames(whole, act, seconds)
                        ratios.append(_frames(half, act, seconds) / at_once)
                    whole.close()
                    half.close()
                    yield f"{num_envs} envs, {servers} servers, {wait_us} µs, {width} wide", median(ratios)


@torch.no_grad()
def _frames(envs: Any, act: Callable[[torch.Tensor], Any], seconds: float) -> float:
    """Return frames a second of a loop with a policy."""
    envs.async_reset()
    began, frames = time.perf_counter(), 0
    while (taken := time.perf_counter() - began) < seconds:
        observations, *_, infos = envs.recv()
        envs.send(act(torch.from_numpy(observations))[0].numpy(), infos["env_id"])
        frames += len(observations)
    return frames / taken


def starts() -> Iterator[dict[str, float]]:
    """Yield seconds until a server listens, and its memory, without and with the environments of a vector."""
    with TemporaryDirectory() as folder:
        certificate = write_certificate(Path(folder))
        while True:
            began = time.perf_counter()
            with host(certificate) as (pid, port):
                listens_s = time.perf_counter() - began
                program = psutil.Process(pid)
                found = {"start, s": listens_s, "server, MB": program.memory_info().rss / 1e6}
                envs = rollfleet.make_vec(
                    "CartPole-v1", num_envs=8, servers=[f"localhost:{port}"], certificate=certificate
                )
                envs.reset()
                of_envs = sum(child.memory_full_info().uss for child in program.children(recursive=True))
                envs.close()
                yield found | {"of 8 CartPole, MB": of_envs / 1e6}


def show(case: str, name: str, figures: Figures) -> None:
    """Print medians, with the least and the greatest."""
    cells = [
        f"{each}: {median(values):.4g} ({min(values):.4g} to {max(values):.4g})" for each, values in figures.items()
    ]
    print(f"{case:24} {name:18} {'; '.join(cells)}", flush=True)


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Measure each contender once, for a third of a second.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="Times that each contender has its turn.")
    parser.add_argument("--only", default="", help="Measure the cases that have this in their name.")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rounds, seconds = (1, 0.3) if given.quick else (given.rounds, SECONDS)
    with ExitStack() as stack:
        for case, contenders in cases(stack).items():
            if given.only in case:
                for name, figures in steps(contenders, rounds, seconds).items():
                    show(case, name, figures)
    if given.only in "start":
        found = Figures()
        for _, each in zip(range(rounds), starts(), strict=False):
            for name, value in each.items():
                found.setdefault(name, []).append(value)
        show("start", "env-server", found)
    if given.only in "halves":
        for case, ratio in halves(rounds, seconds):
            print(f"halves, {case}: {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
