"""Starts worker processes: new interpreters, or forks of this one."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from rollfleet.processes.worker_main import Assignment, run

if TYPE_CHECKING:
    from rollfleet.transports.workload import Workload

StartMethod = Literal["spawn", "fork"]

START_METHODS: tuple[StartMethod, ...] = get_args(StartMethod)

_SPAWNED = """
import json, os, sys
told = json.loads(sys.argv[1])
sys.path[:], sys.argv[:] = told["path"], told["argv"]
from rollfleet.processes.worker_main import Assignment, run
code = run(Assignment(**told["assignment"]))
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)  # as forks of multiprocessing do: to take torch apart in order takes longer than all else at the end
"""


class WorkerProcess(Protocol):
    """A child in a process group of its own, of which it is the leader."""

    @property
    def pid(self) -> int:
        """Its process id, and its group's."""
        ...

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code (minus the signal's number where one ended it); None: it has not ended in time."""
        ...


def start(method: StartMethod, assignment: Assignment, errors: int, workload: "Workload | None") -> WorkerProcess:
    """Start a worker.

    Args:
        method: `spawn`: a new interpreter with this one's flags, paths and arguments. `fork`: a copy of this process.
        assignment: What it is told. It inherits the descriptors that are named there.
        errors: Descriptor that becomes its standard error.
        workload: For a fork; a spawned process has it in `pickled_workload`.
    """
    return _Spawned(assignment, errors) if method == "spawn" else _Forked(assignment, errors, workload)


def main_thread_alone() -> bool:
    """Whether this thread lives as long as the process: the system ties a child's life to the thread that made it."""
    return threading.current_thread() is threading.main_thread()


def signal_group(process: WorkerProcess, number: signal.Signals) -> None:
    """To a worker and all that it started."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):  # it is gone, or has not made its group yet
        with suppress(ProcessLookupError):
            if process.wait(0) is None:
                os.kill(process.pid, number)


class _Spawned:
    def __init__(self, assignment: Assignment, errors: int) -> None:
        told = {"path": sys.path, "argv": sys.argv, "assignment": asdict(assignment)}
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        self._process = subprocess.Popen(
            [sys.executable, *flags, "-c", _SPAWNED, json.dumps(told)],
            stdin=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=_descriptors(assignment),
            env={"OMP_NUM_THREADS": str(assignment.threads), **os.environ},
            process_group=0,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout_s: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None


class _Forked:
    def __init__(self, assignment: Assignment, errors: int, workload: "Workload | None") -> None:
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_forked, args=(assignment, errors, workload), name="rollfleet-worker")
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self._code: int | None = None

    def wait(self, timeout_s: float) -> int | None:
        if self._code is None:
            self._process.join(timeout_s)
            self._code = self._process.exitcode
            if self._code is not None:
                self._process.close()
        return self._code


def _forked(assignment: Assignment, errors: int, workload: "Workload | None") -> None:
    os.setpgid(0, 0)
    os.dup2(errors, 2)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115  # ours may go elsewhere
    sys.exit(run(assignment, workload))


def _descriptors(assignment: Assignment) -> list[int]:
    named = (
        assignment.line,
        assignment.control_block,
        assignment.batches,
        assignment.weights,
        assignment.pickled_workload,
    )
    ring = (assignment.ring, assignment.ring_locks)
    return [descriptor for descriptor in (*named, *ring) if descriptor >= 0]
