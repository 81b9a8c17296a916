"""Random schedules of faults, each reproducible by its number: no batch is lost but with its worker, none comes twice.

`make test` runs a few of them, `make chaos` many: `ROLLFLEET_CHAOS=17` runs number 17 only, `0-199` all up to 199.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from typing import Any

import psutil
import pytest
from tests.faults.fleet import Fleet
from tests.faults.record import check, missing

from rollfleet_api.permissions import Role

StartFleet = Callable[..., Fleet]
QUICK = "0-4"
FAULTS = (
    "kill worker",
    "kill environment",
    "kill env-server",
    "kill learner",
    "replace learner",
    "replace worker",
    "namesake",
    "kill nats",
    "terminate nats",
    "attack nats",
    "terminate worker",
    "stop worker",
    "stop learner",
    "cut workers",
    "cut learner",
    "stall workers",
    "stall learner",
    "half-close workers",
    "half-close learner",
    "slow workers",
    "slow learner",
    "clock of a worker",
    "clock of the learner",
)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: its seconds after the previous one, its seconds until it is mended, and whom it may hit."""

    after_s: float
    kind: str
    lasts_s: float
    worker: int


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The job, the largest message of NATS, and the faults of a seed."""

    spec: dict[str, Any]
    max_payload: int
    faults: list[Fault]


def schedule(seed: int) -> Schedule:
    chance = random.Random(seed)
    sync, workers = chance.random() < 0.4, chance.randint(2, 3)
    where: dict[str, Any] = chance.choice(
        [{}, {"vectorization": "Async"}, {"vectorization": "Async", "servers": {"replicas": 1}}]
    )
    shorter = 4 if where else 1  # a step of another process waits for a core
    spec = {
        "workers": workers,
        "mode": "Sync" if sync else "Async",
        "env": {"entrypoint": "traced_env:TracedEnv", "numEnvs": 2} | where,
        "failure": {"environments": {"maxShare": 1.0}},
        "policy": chance.choice([{"random": {}}, {"mlp": {"hidden": [32]}}]),
        "collect": {"framesPerBatch": chance.choice([16, 64, 256]) // shorter * (workers if sync else 1)},
        "delivery": {"maxBatchesAhead": chance.randint(1, 3)},
        "weights": {"interval": 0, "maxLag": 1_000_000},
    }
    faults = [
        Fault(
            after_s=chance.uniform(0.0, 0.7),
            kind=chance.choice(FAULTS),
            lasts_s=chance.uniform(0.0, 0.8),
            worker=chance.randrange(workers),
        )
        for _ in range(chance.randint(3, 7))
    ]
    return Schedule(
        spec=spec,
        max_payload=chance.choice([1 << 20, 4096]),
        faults=faults,
    )


class Breaking:
    def __init__(self, fleet: Fleet, schedule: Schedule) -> None:
        self._fleet, self._schedule = fleet, schedule
        self._undo: list[tuple[float, Callable[[], None]]] = []
        self._down: set[str] = set()

    def run(self) -> None:
        """Break and repair parts, to the end of the schedule."""
        for fault in self._schedule.faults:
            self._pass(fault.after_s)
            self._break(fault)
        self._pass(2.0)
        while self._undo:
            self._pass(0.1)
        for proxy in self._fleet.proxies.values():
            proxy.heal()

    def _pass(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.02))
            for due, mend in list(self._undo):
                if time.monotonic() >= due:
                    self._undo.remove((due, mend))
                    mend()

    def _later(self, fault: Fault, mend: Callable[[], None]) -> None:
        self._undo.append((time.monotonic() + fault.lasts_s, mend))

    def _break(self, fault: Fault) -> None:
        fleet, (verb, _, whom) = self._fleet, fault.kind.partition(" ")
        if verb == "attack":
            attacker = fleet.start_attack()
            self._later(fault, lambda: self._end(attacker, fault))
            return
        if verb == "namesake":
            fleet.start_namesake()
            return
        if verb == "replace":
            name = f"worker {fault.worker}" if whom == "worker" else whom
            if name not in self._down:
                self._replace(name, fault)  # while the other one lives
            return
        if whom == "environment":
            self._kill_environment(f"worker {fault.worker}")
            return
        if whom == "env-server":
            if fleet.env_server and whom not in self._down:
                self._down.add(whom)
                fleet.env_server.close()
                self._later(fault, lambda: self._bring_back(whom, fault))
            return
        if verb in ("kill", "terminate", "stop") or verb == "clock":
            name = f"worker {fault.worker}" if "worker" in whom else whom.rpartition(" ")[2]
            if name in self._down:
                return
            if verb == "clock":
                process = self._process(name)  # the signal would end a process that has not begun
                fleet.wait_for(lambda: any(each["pid"] == process.pid for each in fleet.events("began")), "it begins")
                self._signal(name, signal.SIGUSR1)
                return
            self._down.add(name)
            number = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "stop": signal.SIGSTOP}[verb]
            if name == "nats":
                fleet.end_nats(number)
            else:
                self._signal(name, number)
            self._later(fault, lambda: self._bring_back(name, fault))
            return
        proxy = fleet.proxies[Role.WORKER if whom == "workers" else Role.LEARNER]
        if verb == "cut":
            proxy.cut()
        elif verb == "half-close":
            proxy.half_close()
        elif verb == "stall":
            proxy.stall()
            self._later(fault, proxy.heal)
        else:
            proxy.delay_s, proxy.bytes_per_s = 0.02, 200_000.0
            self._later(fault, proxy.heal)

    def _replace(self, name: str, fault: Fault) -> None:
        if name == "learner":
            self._fleet.start_learner()
        elif any(each["pid"] == self._process(name).pid for each in self._fleet.events("collected")):
            # Of two that have no number, the last that the learner hears has the greater one.
            self._lose(name)
            self._fleet.start_worker(fault.worker)

    def _kill_environment(self, name: str) -> None:
        """Kill the process of an environment, if it has one, of a worker that has begun to collect."""
        pid = self._process(name).pid
        if name not in self._down and any(each["pid"] == pid for each in self._fleet.events("collected")):
            server = self._fleet.env_server
            parent = server.pid if server and "env-server" not in self._down else pid
            for child in psutil.Process(parent).children()[:1]:
                child.kill()

    def _end(self, attacker: ForkServerProcess, fault: Fault) -> None:
        if any(each["pid"] == attacker.pid for each in self._fleet.events("attacked")):
            attacker.kill()
        else:  # it has not reached NATS
            self._later(fault, lambda: self._end(attacker, fault))

    def _bring_back(self, name: str, fault: Fault) -> None:
        if fault.kind == "terminate worker" and self._process(name).is_alive():  # its successor waits for its end
            self._later(fault, lambda: self._bring_back(name, fault))
            return
        self._down.remove(name)
        if fault.kind.startswith("stop"):
            self._signal(name, signal.SIGCONT)
        elif name == "nats":
            self._fleet.start_nats()
        elif name == "learner":
            self._fleet.start_learner()
        elif name == "env-server":
            self._fleet.start_env_server()
        else:
            self._fleet.start_worker(int(name.split()[1]))

    def _process(self, name: str) -> ForkServerProcess:
        process = self._fleet.learner if name == "learner" else self._fleet.workers[int(name.split()[1])]
        assert process is not None
        return process

    def _lose(self, name: str) -> None:
        """Note that what a worker keeps is lost with it."""
        pid = self._process(name).pid
        assert pid is not None
        self._fleet.killed.add(pid)

    def _signal(self, name: str, number: signal.Signals) -> None:
        pid = self._process(name).pid
        assert pid is not None
        if number == signal.SIGKILL and name != "learner":
            self._lose(name)
        os.kill(pid, number)


def numbers() -> list[int]:
    first, _, last = os.environ.get("ROLLFLEET_CHAOS", QUICK).partition("-")
    return list(range(int(first), int(last or first) + 1))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", numbers())
def test_random_faults_lose_no_batch_but_with_its_worker(seed: int, start_fleet: StartFleet) -> None:
    plan = schedule(seed)
    assert len(plan.faults) >= 3
    fleet = start_fleet(max_payload=plan.max_payload, **plan.spec)
    fleet.start()
    Breaking(fleet, plan).run()
    fleet.wait_for_every_worker(5, time.monotonic())
    fleet.end_workers()
    if plan.spec["mode"] == "Async":
        fleet.wait_for(lambda: not missing(fleet), "all batches but those lost with their workers", 60.0)
    check(fleet)
