"""The program of a worker process on the learner's machine.

It ignores Ctrl-C, which is meant for the learner. It ends when the learner is gone, or at SIGTERM.
"""

import faulthandler
import os
import signal
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollfleet.system.child_processes import close_in_children, die_with
from rollfleet.system.cpus import limit_threads
from rollfleet.system.process_setup import silence_warnings
from rollfleet_api.exit_codes import EXIT_GONE

if TYPE_CHECKING:
    from rollfleet.transports.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerArguments:
    """The arguments of a worker process. Descriptors are numbers that are valid in that process.

    Attributes:
        threads: Number of torch's threads.
        quiet: Whether to ignore warnings.
        evaluation: Whether this is an evaluation worker.
        parent: Process with which the worker dies; 0: it notices the learner's end by the connection alone.
        connection: Socket to the learner. The descriptors after it are those of `SharedMemory`.
        crash: It gets the stack if a signal such as SIGSEGV ends the process.
        pickled_workload: -1: `run` gets the workload itself.
    """

    index: int
    incarnation: int
    max_batches_ahead: int
    threads: int
    quiet: bool
    evaluation: bool
    parent: int
    connection: int
    control_block: int
    batches: int
    crash: int
    weights: int
    pickled_workload: int

    def descriptors(self) -> list[int]:
        """Return the descriptors that a spawned process inherits."""
        return [self.connection, self.control_block, self.batches, self.crash, self.weights, self.pickled_workload]


def run(arguments: WorkerArguments, workload: "Workload | None" = None) -> int:
    """Collect until the job is complete, or the learner asks this worker to leave. Returns the exit code.

    Without a `workload`, it reads `pickled_workload`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if arguments.parent:
        die_with(arguments.parent)
        os.register_at_fork(after_in_child=_die_with_parent)
    faulthandler.enable(arguments.crash)
    if arguments.quiet:
        silence_warnings()
    connection = socket.socket(fileno=arguments.connection)
    close_in_children(connection)

    from rollfleet.errors import JobEnded
    from rollfleet.processes.control_block import ControlBlock
    from rollfleet.processes.pickled_workload import unpickle_workload
    from rollfleet.processes.worker_transport import ProcessWorkerTransport
    from rollfleet.system.shared_memory import SharedMemory
    from rollfleet.worker.evaluation import EvaluationWorker
    from rollfleet.worker.program import work
    from rollfleet.worker.worker import Worker

    limit_threads(arguments.threads)
    transport = ProcessWorkerTransport(
        connection,
        control_block=ControlBlock(SharedMemory(arguments.control_block)),
        batches=SharedMemory(arguments.batches),
        weights=SharedMemory(arguments.weights),
        incarnation=arguments.incarnation,
        max_batches_ahead=arguments.max_batches_ahead,
    )

    def make() -> Worker | EvaluationWorker:
        given = workload
        if given is None:
            pickled_workload = SharedMemory(arguments.pickled_workload)
            given = unpickle_workload(pickled_workload.map(0, os.fstat(arguments.pickled_workload).st_size).data)
            pickled_workload.close()
        worker = (EvaluationWorker if arguments.evaluation else Worker)(transport, given, arguments.index)
        transport.on_leave = worker.leave
        return worker

    try:
        return work(transport, make, arguments.index, gone=(JobEnded,))[0]
    except JobEnded:  # the learner is gone
        return EXIT_GONE


def _die_with_parent() -> None:
    """Tie the process of an environment, which is a fork of the worker's, to the worker."""
    die_with(os.getppid())
