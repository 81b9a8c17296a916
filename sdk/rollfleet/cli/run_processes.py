"""The processes of a run on this machine, as pods: those that run now, and the ends of those before."""

import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final

from rollfleet.system.child_processes import Child, describe_exit
from rollfleet_api.exit_codes import EXIT_CRASHED, EXIT_PERMANENT
from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.pods import MOST_TEXT, Crash, Pod
from rollfleet_api.state.problems import Problem
from rollfleet_api.state.processes import Processes, Run
from rollfleet_api.state.verdict import crashes_count_from
from rollfleet_ui.model import ObjectRow

SIGNALLED: Final = 128
"""The exit code of a process that a signal ended, as a cluster reports it, is the signal's number and this."""


@dataclass(slots=True)
class _Process:
    """A process that is started again after its ends: the newest start (None: it failed), and those before."""

    role: Role
    index: int
    child: Child | None = None
    previous: Child | None = None
    before: list[Pod] = field(default_factory=list)


class RunProcesses:
    """The processes of a run, by name."""

    def __init__(self, job: CollectorJob) -> None:
        self._job, self._over_s = job, inf
        self._processes: dict[str, _Process] = {}

    def started(self, role: Role, index: int, child: Child) -> None:
        """Note that a process was started."""
        self._next(role, index, child.name).child = child

    def not_started(self, role: Role, index: int, name: str, cause: str) -> None:
        """Note that a process could not be started, which counts as a crash."""
        crash = Crash(code=EXIT_CRASHED, reason="", message=cause, finished_s=time.time())
        self._next(role, index, name).before.append(self._pod(role, index, time.time(), crash))

    def over(self) -> None:
        """Note the end of the run: no later end of a process is a failure."""
        self._over_s = min(self._over_s, time.time())

    def crashes(self, name: str) -> int:
        """Return the number of a process' ends that use up restarts now."""
        found, earliest_s = self._processes.get(name), crashes_count_from(self._job, time.time())
        return sum(pod.counts and pod.crashed_s > earliest_s for pod in self._pods(found)) if found else 0

    def observed(self) -> Processes:
        """Return all processes as pods. A learner's own failure, unlike its death by a signal, is its run's."""
        roles: dict[Role, list[list[Pod]]] = {}
        for process in self._processes.values():
            if process.role is not Role.NATS:
                roles.setdefault(process.role, []).append([*self._pods(process)])
        runs = tuple(self._run(role, found) for role, found in roles.items())
        pods = [pod for found in roles.values() for each in found for pod in each]
        return Processes(runs=runs, current={run.role: run for run in runs}, pods=tuple(pods))

    @property
    def nats_away(self) -> Problem | None:
        """The end of nats-server, until it is started again; None: it runs, or is not this run's."""
        servers = [each.child for each in self._processes.values() if each.role is Role.NATS]
        away = next((child for child in servers if child and child.ended_s), None)
        return Problem("NatsUnavailable", away.describe_end()) if away else None

    def objects(self) -> list[ObjectRow]:
        """Return the processes as objects of the page."""
        return [
            ObjectRow(kind="Process", name=name, state=f"pid {child.pid}" if child and not child.ended_s else "ended")
            for name, child in ((name, each.child) for name, each in self._processes.items())
        ]

    def outputs(self) -> Iterator[tuple[str, bool, Child]]:
        """Yield each process' name, whether it is the start before the newest one, and that start."""
        for name, process in self._processes.items():
            for is_previous, child in ((False, process.child), (True, process.previous)):
                if child:
                    yield name, is_previous, child

    def _next(self, role: Role, index: int, name: str) -> _Process:
        """Make the newest start of a process the previous one. Of its ends, those that count as restarts are kept."""
        process = self._processes.setdefault(name, _Process(role, index))
        counting = [pod for pod in process.before if pod.counts][-self._job.spec.failure.max_restarts_per_worker - 1 :]
        process.before = counting + ([self._of_child(process, process.child)] if process.child else [])
        process.child, process.previous = None, process.child or process.previous
        return process

    def _pods(self, process: _Process) -> Iterator[Pod]:
        yield from process.before
        if process.child:
            yield self._of_child(process, process.child)

    def _of_child(self, process: _Process, child: Child) -> Pod:
        ended_s, code = child.ended_s, child.process.returncode
        crash: Crash | None = None
        if ended_s and code and ended_s < self._over_s:
            cause = describe_exit(code) if code < 0 else ""
            text = child.last_output()[-MOST_TEXT:]
            crash = Crash(code=abs(code) + SIGNALLED * (code < 0), reason=cause, message=text, finished_s=ended_s)
        return self._pod(process.role, process.index, child.started_s, crash, ended=ended_s is not None)

    def _pod(self, role: Role, index: int, started_s: float, crash: Crash | None, *, ended: bool = True) -> Pod:
        gpu = self._job.spec.resources.gpu
        devices = {gpu.resource: gpu.count} if gpu.count and role is not Role.LEARNER else {}
        return Pod.of_process(
            role, index, started_s=started_s, node=platform.node(), devices=devices, crash=crash, ended=ended
        )

    def _run(self, role: Role, processes: list[list[Pod]]) -> Run:
        newest = [pods[-1] for pods in processes]
        crashes = [pod.crash for pod in newest if pod.crash]
        final = [each for each in crashes if (not each.reason if role is Role.LEARNER else each.code == EXIT_PERMANENT)]
        return Run(
            name=str(role),
            role=role,
            uid=str(role),
            pods=len(newest),
            complete=all(pod.done for pod in newest),
            failed=final[0].message if final else None,
            restarts=sum(pod.failed for pods in processes for pod in pods),
        )
