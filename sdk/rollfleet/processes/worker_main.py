"""The program in a worker that is a process of the learner's machine.

It ignores Ctrl-C, which is the learner's; it ends when the learner is gone, or at SIGTERM.
"""

import faulthandler
import os
import signal
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rollfleet.processes.fork_safety import close_in_children
from rollfleet.system.child_processes import die_with
from rollfleet.system.warnings_off import be_quiet

if TYPE_CHECKING:
    from rollfleet.transports.workload import Workload

EXIT_COMPLETE, EXIT_FAILED = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a worker's process is told. The numbers of descriptors are valid in that process.

    Attributes:
        index: Which worker it is.
        incarnation: Which life of it this is, from 0.
        most_waiting: Batches that may wait for the learner.
        threads: For torch.
        quiet: Whether warnings are left out.
        parent: Process whose end is ours, or 0: notice it by the socket alone.
        line: Socket to the learner.
        control_block: SharedMemory of the learner's notices.
        batches: SharedMemory of batches.
        weights: SharedMemory of weights.
        pickled_workload: SharedMemory with the workload; -1: it is given otherwise.
        ring: SharedMemory of the learner's replay buffer, into which frames are written; -1: batches go to the learner.
        ring_locks: File of its locks.
        quota: Number of the quota there in which they are counted.
    """

    index: int
    incarnation: int
    most_waiting: int
    threads: int
    quiet: bool
    parent: int
    line: int
    control_block: int
    batches: int
    weights: int
    pickled_workload: int
    ring: int = -1
    ring_locks: int = -1
    quota: int = -1


def run(assignment: Assignment, workload: "Workload | None" = None) -> int:
    """Work until told to leave; the exit code.

    Args:
        assignment: Which worker this is, and how it reaches the learner.
        workload: What to do; None: it is in `pickled_workload`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if assignment.parent:
        die_with(assignment.parent)
        os.register_at_fork(after_in_child=_die_with_parent)
    faulthandler.enable()
    if assignment.quiet:
        be_quiet()
    line = socket.socket(fileno=assignment.line)
    close_in_children(line)

    import torch

    from rollfleet.data.ring import Ring
    from rollfleet.data.write_quota import WriteQuota
    from rollfleet.errors import JobEnded, JobInvalid, WeightMismatch
    from rollfleet.processes.control_block import ControlBlock
    from rollfleet.processes.pickled_workload import unpickle_workload
    from rollfleet.processes.worker_transport import ProcessWorkerTransport
    from rollfleet.system.file_locks import FileLocks
    from rollfleet.system.shared_memory import SharedMemory
    from rollfleet.worker.worker import Worker, failure
    from rollfleet_api.messages import WorkerStatus

    torch.set_num_threads(assignment.threads)
    transport = ProcessWorkerTransport(
        line,
        control_block=ControlBlock(SharedMemory(assignment.control_block)),
        batches=SharedMemory(assignment.batches),
        weights=SharedMemory(assignment.weights),
        incarnation=assignment.incarnation,
        most_waiting=assignment.most_waiting,
        quota=None
        if assignment.ring < 0
        else WriteQuota(
            Ring(SharedMemory(assignment.ring), FileLocks(SharedMemory(assignment.ring_locks))), assignment.quota
        ),
    )
    worker: Worker | None = None
    try:
        if workload is None:
            pickled_workload = SharedMemory(assignment.pickled_workload)
            workload = unpickle_workload(pickled_workload.map(0, os.fstat(assignment.pickled_workload).st_size).data)
            pickled_workload.close()
        worker = Worker(transport, workload, assignment.index)
        transport.on_leave = worker.leave
        worker.run()
    except JobEnded:
        pass
    except Exception as error:
        # Bad input and misfits would fail again in the same way; an environment that broke may work next time.
        fatal = isinstance(error, JobInvalid | WeightMismatch)
        status = transport.status or WorkerStatus.starting(assignment.index, assignment.incarnation)
        transport.report(replace(worker.failed(error) if worker else failure(status, error), fatal=fatal))
        return EXIT_FAILED
    finally:
        transport.close()
        if worker:
            worker.close()
    return EXIT_COMPLETE


def _die_with_parent() -> None:
    """In an environment's process, which is forked from ours."""
    die_with(os.getppid())
