"""The program in a worker that is a process of the learner's machine.

It ignores Ctrl-C, which is the learner's; it ends when the learner is gone, or at SIGTERM.
"""

import faulthandler
import os
import signal
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rollfleet.commands.children import die_with
from rollfleet.quiet import be_quiet
from rollfleet.transports.forks import close_in_children

if TYPE_CHECKING:
    from rollfleet.learning.workload import Workload

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
        board: Arena of the learner's notices.
        batches: Arena of batches.
        weights: Arena of weights.
        parcel: Arena with the workload; -1: it is given otherwise.
        ring: Arena of the learner's replay buffer, into which frames are written; -1: batches go to the learner.
        ring_locks: File of its locks.
        account: Number of the account there on which they are counted.
    """

    index: int
    incarnation: int
    most_waiting: int
    threads: int
    quiet: bool
    parent: int
    line: int
    board: int
    batches: int
    weights: int
    parcel: int
    ring: int = -1
    ring_locks: int = -1
    account: int = -1


def run(assignment: Assignment, workload: "Workload | None" = None) -> int:
    """Work until told to leave; the exit code.

    Args:
        assignment: Which worker this is, and how it reaches the learner.
        workload: What to do; None: it is in the parcel.
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

    from rollfleet.buffering.account import Account
    from rollfleet.buffering.ring import Ring
    from rollfleet.errors import JobEnded, JobInvalid, WeightMismatch
    from rollfleet.transports.arena import Arena
    from rollfleet.transports.board import Board
    from rollfleet.transports.parcel import unwrap
    from rollfleet.transports.shared_port import SharedPort
    from rollfleet.transports.system_locks import SystemLocks
    from rollfleet.worker import Worker, failure
    from rollfleet_api.messages import WorkerStatus

    torch.set_num_threads(assignment.threads)
    port = SharedPort(
        line,
        board=Board(Arena(assignment.board)),
        batches=Arena(assignment.batches),
        weights=Arena(assignment.weights),
        incarnation=assignment.incarnation,
        most_waiting=assignment.most_waiting,
        account=None
        if assignment.ring < 0
        else Account(Ring(Arena(assignment.ring), SystemLocks(Arena(assignment.ring_locks))), assignment.account),
    )
    worker: Worker | None = None
    try:
        if workload is None:
            parcel = Arena(assignment.parcel)
            workload = unwrap(parcel.map(0, os.fstat(assignment.parcel).st_size).data)
            parcel.close()
        worker = Worker(port, workload, assignment.index)
        port.on_leave = worker.leave
        worker.run()
    except JobEnded:
        pass
    except Exception as error:
        # Bad input and misfits would fail again in the same way; an environment that broke may work next time.
        fatal = isinstance(error, JobInvalid | WeightMismatch)
        status = port.status or WorkerStatus.starting(assignment.index, assignment.incarnation)
        port.report(replace(worker.failed(error) if worker else failure(status, error), fatal=fatal))
        return EXIT_FAILED
    finally:
        port.close()
        if worker:
            worker.close()
    return EXIT_COMPLETE


def _die_with_parent() -> None:
    """In an environment's process, which is forked from ours."""
    die_with(os.getppid())
