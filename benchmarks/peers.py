"""Rollfleet and its peers on the same work, side by side: `python -P benchmarks/peers.py [--quick] [--only NAME]`.

Each contender runs in a separate process. All contenders of a case are started first. Then they take turns, one at a
time, round after round, so that noise of the machine affects all. The results are written as JSON, with a description
of the machine; `benchmarks/report` turns them into tables and pictures. A contender that cannot run is reported as
such.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
PEERS = ("torchrl", "ray", "rllib", "sb3")
"""Their contenders run with --peer-python."""
PACKAGES = ("torch", "torchrl", "tensordict", "gymnasium", "numpy", "stable-baselines3", "envpool", "ray", "nats-py")

Rounds = dict[str, list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case: the same work for all of its contenders.

    Attributes:
        name: The name for `--only`.
        title: The title in the docs.
        contenders: `module.function` in benchmarks/contenders.
        measure: A function of benchmarks/contenders/measures.py.
        work: See `Work` in benchmarks/contenders/work.py.
    """

    name: str
    title: str
    contenders: Sequence[str]
    measure: str = "rate"
    work: dict[str, Any] = field(default_factory=dict)


HAND = ("by_hand.list_torch", "by_hand.list_numpy", "by_hand.vector_torch")
ENVPOOL = ("by_hand.envpool_torch", "by_hand.envpool_numpy")
OURS = ("rollfleet_here.plain_torch", "rollfleet_here.mlp")
OURS_ENVPOOL = ("rollfleet_here.envpool_torch", "rollfleet_here.envpool_mlp")
OTHERS = ("sb3_here.rollouts", "rllib_here.runner")
TORCHRL = ("torchrl_here.serial", "torchrl_here.vector")
TORCHRL_TWO = ("torchrl_two.sync_serial", "torchrl_two.async_serial", "torchrl_two.sync_vector")
PROCESSES = ("rollfleet_two.processes_sync", "rollfleet_two.processes_async", "rollfleet_two.processes_async_mlp")
NATS = ("rollfleet_two.nats_sync", "rollfleet_two.nats_async", "rollfleet_two.nats_async_mlp")
SLOW = (("slow-100", 64), ("slow-1000", 64), ("slow-1000", 1024))
"""Environments that wait for so many µs a step, and the width of a policy."""


def cases() -> Iterator[Case]:
    """Return all cases."""
    for env, num_envs in (("CartPole-v1", 1), ("CartPole-v1", 8), ("CartPole-v1", 64), ("Pendulum-v1", 8)):
        pool = (*ENVPOOL, *OURS_ENVPOOL) if num_envs == 64 else ()
        yield _here(env, num_envs, *HAND, *pool, *OURS, *OTHERS, *TORCHRL)
    yield _here("HalfCheetah-v5", 8, *HAND, *OURS, *OTHERS, *TORCHRL)
    yield Case(
        name="one-policy",
        title="16 CartPole in servers, the policy in one place",
        contenders=(
            *("by_hand.async_torch", "by_hand.make_vec_torch", "rollfleet_here.servers", "rollfleet_here.hosts"),
            "torchrl_here.async_batched",
        ),
        work={"num_envs": 16},
    )
    two = {"workers": 2, "num_envs": 8}
    for env, hidden in (*(("CartPole-v1", width) for width in (64, 256, 1024)), *SLOW):
        yield Case(
            name=f"where-to-act-{env.removesuffix('-v1').lower()}-{hidden}",
            title=f"Two workers that act, or two servers of one that does: 16 {env}, policy of {hidden} x {hidden}",
            contenders=("rollfleet_two.processes_async_mlp", "rollfleet_here.servers", "rollfleet_here.hosts"),
            work=two | {"env": env, "hidden": (hidden, hidden)},
        )
    yield Case(
        name="two-processes",
        title="Two worker processes of 8 CartPole, weights after each batch",
        contenders=(
            *("two_by_hand.torch_policy", "two_by_hand.numpy_policy", *PROCESSES, *NATS),
            *(*TORCHRL_TWO, "torchrl_two.async_vector", "ray_two.async_serial", "ray_two.async_vector"),
            *("rllib_two.sync", "rllib_two.async_"),
        ),
        work=two | {"weights": True},
    )
    yield Case(
        name="two-processes-without-weights",
        title="The same, no weights",
        contenders=("two_by_hand.torch_policy", NATS[1], "ray_two.async_serial", "ray_two.sync_serial"),
        work=two,
    )
    for env, title in (("pixels", "Images of 84 x 84 x 4 bytes"), ("stacked", "The same, stacks of the last four")):
        yield Case(
            name=env,
            title=f"{title}, two worker processes of 8",
            contenders=(
                "two_by_hand.torch_policy",
                *PROCESSES[:2],
                *NATS[:2],
                *TORCHRL_TWO[:2],
                "ray_two.async_serial",
            ),
            work=two | {"env": env},
        )
    for name, parameters in (("weights-4MB", 1_000_000), ("weights-400MB", 100_000_000)):
        yield Case(
            name=name,
            title=f"Weights of {4 * parameters / 1e6:.0f} MB to two workers",
            contenders=(
                *("rollfleet_two.processes_async", "rollfleet_two.nats_async", "rollfleet_two.nats_sync"),
                *("torchrl_two.async_serial", "ray_two.async_serial", "ray_two.sync_serial"),
            ),
            measure="weights",
            work=two | {"steps": 32, "parameters": parameters},
        )
    started = ("torchrl_two.async_serial", "torchrl_two.async_vector", "ray_two.async_serial", "rllib_two.async_")
    yield Case(
        name="start",
        title="From nothing to the first batch of two workers",
        contenders=(*PROCESSES[:2], *NATS[:2], *started),
        measure="first_batch",
        work=two,
    )
    yield Case(
        name="idle",
        title="CPU of waiting processes",
        contenders=(*PROCESSES[:2], *NATS[:2], *started),
        measure="idle",
        work=two,
    )
    yield Case(
        name="imports",
        title="What importing costs",
        contenders=tuple(
            f"imports.{what}" for what in ("torch_alone", "rollfleet_api", "rollfleet", "rollfleet_worker", "torchrl")
        ),
        measure="imports",
    )


def scaling() -> Iterator[Case]:
    """Return the cases of docs/scaling.md: frames per second along one axis at a time."""
    two = (NATS[1], PROCESSES[1])
    for num_envs in (1, 2, 4, 8, 16, 32, 64, 128):
        work = {"workers": 1, "num_envs": num_envs, "critic": True}
        yield _point("envs", num_envs, f"One worker of {num_envs} CartPole", (NATS[1], *OURS), work)
    for workers in (1, 2, 4, 8):
        yield _point("workers", workers, f"{workers} workers of 8 CartPole", two, {"workers": workers, "weights": True})
    for nbytes in (64, 1024, 4096, 16384, 65536):
        title = f"One worker of 8, observations of {nbytes} bytes"
        yield _point("bytes", nbytes, title, two, {"workers": 1, "env": f"bytes-{nbytes}"})
    for parameters in (10_000, 100_000, 1_000_000, 10_000_000):
        title = f"Weights of {parameters:,} numbers to two workers after each batch of 1,024 frames"
        work = {"workers": 2, "weights": True, "parameters": parameters}
        yield _point("parameters", parameters, title, (NATS[0], *two), work)


def _point(axis: str, at: int, title: str, contenders: Sequence[str], work: dict[str, Any]) -> Case:
    return Case(name=f"scaling-{axis}-{at}", title=title, contenders=contenders, work=work)


def _here(env: str, num_envs: int, *contenders: str) -> Case:
    return Case(
        name=f"{env.partition('-')[0].lower()}-{num_envs}",
        title=f"{env}, {num_envs} environment{'s' if num_envs > 1 else ''}, in this process, actor and critic",
        contenders=contenders,
        work={"env": env, "num_envs": num_envs, "critic": True},
    )


class Failed(Exception):
    """A contender cannot run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A contender's process, which answers requests."""

    process: "subprocess.Popen[str]"
    stderr: Path

    def answer(self, question: object = None) -> dict[str, float]:
        """Wait for a line; request it first, unless it comes without a request."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            if question is not None:
                print(json.dumps(question), file=self.process.stdin, flush=True)
            answered: dict[str, float] = json.loads(self.process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError) as error:
            words = self.stderr.read_text(errors="replace").strip().splitlines()
            raise Failed("\n".join(words[-12:]) or "no last words") from error
        return answered

    def stop(self) -> None:
        """End its requests, so that it ends."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()


@contextmanager
def contender(python: str, case: Case, name: str) -> Iterator[Contender]:
    """Start a contender, and stop it at the end."""
    environ = os.environ | {"PYTHONPATH": str(HERE / "contenders"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "stderr", "w+") as stderr:
        process = subprocess.Popen(
            [python, "-P", "-m", "answers", name, case.measure, json.dumps(case.work)],
            env=environ | {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        started = Contender(process=process, stderr=Path(folder) / "stderr")
        try:
            yield started
        finally:
            started.stop()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def measure(case: Case, pythons: dict[str, str], *, rounds: int, seconds: float) -> dict[str, Any]:
    """Return each contender's figures by name, one for each round; or its error."""
    figures: dict[str, Rounds] = {name: defaultdict(list) for name in case.contenders}
    errors: dict[str, str] = {}
    with ExitStack() as stack:
        running = {name: stack.enter_context(contender(pythons[name], case, name)) for name in case.contenders}
        for name, each in running.items():
            with _noting(errors, name):
                each.answer()
        for _ in range(rounds):
            for name in [name for name in running if name not in errors]:
                with _noting(errors, name):
                    for figure, value in running[name].answer({"seconds": seconds}).items():
                        figures[name][figure].append(value)
        for each in running.values():  # so that they stop at the same time, before the first is waited for
            each.stop()
    return {name: {"error": errors[name]} if name in errors else dict(figures[name]) for name in case.contenders}


@contextmanager
def _noting(errors: dict[str, str], name: str) -> Iterator[None]:
    try:
        yield
    except Failed as error:
        errors[name] = str(error)


def machine() -> dict[str, Any]:
    """Describe the machine."""
    names = [line for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = [line for line in _lines("/proc/meminfo") if line.startswith("MemTotal")]
    return {
        "cpu": names[0].partition(": ")[2] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(int(memory[0].split()[1]) / 2**20) if memory else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def show(case: Case, figures: dict[str, Any]) -> None:
    """Print the medians."""
    print(f"\n{case.name}: {case.title}")
    for name, own in figures.items():
        result = own["error"].splitlines()[-1] if "error" in own else _words(own)
        print(f"  {name:36} {result}", flush=True)


def _words(figures: Rounds) -> str:
    return "   ".join(
        f"{figure} {median(values):,.{0 if median(values) > 100 else 2}f}" for figure, values in figures.items()
    )


def main() -> None:
    """Run the selected cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two short rounds: a check that it runs, not for figures")
    parser.add_argument(
        "--only", action="append", default=[], help="cases or contenders by a part of their name, or case:contender"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of a round")
    parser.add_argument("--json", type=Path, help="file for the results; keeps earlier results of other cases")
    parser.add_argument(
        "--peer-python", default=sys.executable, help="interpreter of a virtual environment with the peers"
    )
    options = parser.parse_args()
    rounds, seconds = (2, 0.3) if options.quick else (options.rounds, options.seconds)
    results: dict[str, Any] = {"cases": {}}
    options.only = [word for words in options.only for word in words.split(",")]
    if options.json and options.json.exists():
        results = json.loads(options.json.read_text())
    for case in (*cases(), *scaling()):
        chosen = _chosen(case, options.only)
        if chosen is None:
            continue
        pythons = {
            name: options.peer_python if any(peer in name for peer in PEERS) else sys.executable
            for name in chosen.contenders
        }
        load = os.getloadavg()[0]
        figures = measure(chosen, pythons, rounds=rounds, seconds=seconds)
        show(chosen, figures)
        results["machine"] = machine()
        results["cases"][case.name] = {
            "title": case.title,
            "measure": case.measure,
            "work": case.work,
            "contenders": figures,
            "date": time.strftime("%Y-%m-%d"),
            "load": round(load, 1),
        }
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(results, indent=1) + "\n")


def _chosen(case: Case, only: Sequence[str]) -> Case | None:
    """Select contenders of a case: by a part of the case's or a contender's name, or exactly by `case:contender`."""
    if not only or any(word in case.name for word in only):
        return case
    names = tuple(
        name for name in case.contenders if any(word in name or word == f"{case.name}:{name}" for word in only)
    )
    return replace(case, contenders=names) if names else None


if __name__ == "__main__":
    main()
