"""Starts worker processes: as new interpreters (`spawn`) or as forks of this process (`fork`)."""

import json
import multiprocessing
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Literal, get_args

from rollfleet.processes.worker_main import WorkerArguments, run
from rollfleet.system.child_processes import ChildProcess

if TYPE_CHECKING:
    from rollfleet.transports.workload import Workload

StartMethod = Literal["spawn", "fork"]

START_METHODS: tuple[StartMethod, ...] = get_args(StartMethod)

_SPAWNED = """
import json, os, sys
given = json.load(sys.stdin)
sys.path[:], sys.argv[:] = given["path"], given["argv"]
from rollfleet.processes.worker_main import WorkerArguments, run
code = run(WorkerArguments(**given["arguments"]))
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)  # as forks of multiprocessing do: an orderly end of torch takes longer than all other cleanup
"""


def start(method: StartMethod, arguments: WorkerArguments, workload: "Workload | None") -> ChildProcess:
    """Start a worker process. It inherits the descriptors that `arguments` names.

    Args:
        method: `spawn`: a new interpreter with this one's flags, paths and arguments. `fork`: a copy of this process.
        arguments: The worker's arguments.
        workload: The workload of a fork. A spawned process reads it from `pickled_workload`.
    """
    return _Spawned(arguments) if method == "spawn" else _Forked(arguments, workload)


class _Spawned:
    def __init__(self, arguments: WorkerArguments) -> None:
        given = {"path": [*map(str, sys.path)], "argv": sys.argv, "arguments": asdict(arguments)}
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        with TemporaryFile("w+") as file:  # the system bounds the length of an argument
            json.dump(given, file)
            file.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, *flags, "-c", _SPAWNED],
                stdin=file,
                pass_fds=arguments.descriptors(),
                env={"OMP_NUM_THREADS": str(arguments.threads), **os.environ},
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
    def __init__(self, arguments: WorkerArguments, workload: "Workload | None") -> None:
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_forked, args=(arguments, workload), name="rollfleet-worker")
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def wait(self, timeout_s: float) -> int | None:
        self._process.join(timeout_s)
        return self._process.exitcode


def _forked(arguments: WorkerArguments, workload: "Workload | None") -> None:
    os.setpgid(0, 0)
    sys.exit(run(arguments, workload))
