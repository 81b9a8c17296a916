"""The program in a worker: joins a job over NATS by an address and an index alone, and works until it is complete.

SIGTERM drains: what was collected so far goes out as a shorter batch, then the worker leaves. A second one ends it, and
so does a step, or a queue without room, that lets it wait for longer than 10 s. Warnings are left out unless Python was
asked for them, by -W or PYTHONWARNINGS.
"""

import logging
import os
import signal
import sys
import threading
from dataclasses import replace
from types import FrameType

import torch

from rollfleet.errors import ConnectionFailed, JobInvalid, JobNotFound, WeightMismatch
from rollfleet.nats.link import Link
from rollfleet.nats.state import read_job
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet.system.cpus import available_cpus
from rollfleet.system.warnings_off import be_quiet
from rollfleet.transports.workload import Workload
from rollfleet.worker.worker import Worker, failure
from rollfleet_api.environment import THREADS, WORKER, Address
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import WorkerState, WorkerStatus
from rollfleet_api.permissions import Role

log = logging.getLogger(__name__)

EXIT_COMPLETE, EXIT_CRASHED, EXIT_HOPELESS, EXIT_TERMINATED = 0, 1, 2, 143
JOB_TIMEOUT_S = 60.0
DRAIN_S = 10.0  # within the grace that Kubernetes gives, 30 s, also for what comes after


class Terminated(BaseException):
    """SIGTERM came. Derived from BaseException so that no handler of ordinary errors takes it for one."""


class _Termination:
    """What SIGTERM does: nothing is lost where there is a worker, and at once where there is none yet."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.came = False
        os.register_at_fork(after_in_child=self._forget)
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.worker is None or self.came:
            signal.signal(number, signal.SIG_IGN)  # what follows is the way out
            raise Terminated
        self.came = True
        self.worker.leave()
        end = threading.Timer(DRAIN_S, os.kill, (os.getpid(), number))
        end.daemon = True
        end.start()

    def _forget(self) -> None:
        """In an environment's process, which is forked from ours: end at SIGTERM, as any process."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def main(address: Address, index: int, *, timeout_s: float = JOB_TIMEOUT_S) -> int:
    """Work until the job is complete.

    Args:
        address: Where the job is.
        index: Which of its workers this is.
        timeout_s: How long to wait for NATS, and then for the job.

    Returns:
        0: the job is complete. 1: something broke; starting again may help. 2: it would break again in the same way.
        143: told to stop by SIGTERM.
    """
    os.environ[WORKER] = str(index)  # for what makes environments and policies, however this was told it
    if not sys.warnoptions:
        be_quiet()
    termination = _Termination()
    link: Link | None = None
    try:
        link = Link(address, role=Role.WORKER, timeout_s=timeout_s)
        job = link.call(read_job(link, timeout_s=timeout_s))
        if index >= job.spec.workers:
            log.error("worker %d: job %s has workers 0 to %d", index, job.key, job.spec.workers - 1)
            return EXIT_HOPELESS
        return _work(link, job, index, termination)
    except (ConnectionFailed, JobNotFound) as error:
        log.error("%s", error)
        return EXIT_CRASHED
    except Terminated:
        return EXIT_TERMINATED
    finally:
        if link:
            link.close()


def _work(link: Link, job: CollectorJob, index: int, termination: _Termination) -> int:
    transport = NatsWorkerTransport(link, index)
    worker: Worker | None = None
    try:
        torch.set_num_threads(int(os.environ.get(THREADS, 0)) or available_cpus())
        worker = termination.worker = Worker(transport, Workload.of(job), index)
        worker.run()
        return EXIT_TERMINATED if termination.came else EXIT_COMPLETE
    except Terminated:
        transport.report(
            replace(transport.status or WorkerStatus.starting(index, transport.incarnation), state=WorkerState.LEFT)
        )
        raise
    except Exception as error:
        # Bad input and misfits would fail again in the same way; an environment that broke may work next time.
        fatal = isinstance(error, JobInvalid | WeightMismatch)
        status = transport.status or WorkerStatus.starting(index, transport.incarnation)
        failed = replace(worker.failed(error) if worker else failure(status, error), fatal=fatal)
        log.error("worker %d of %s: %s", index, job.key, failed.error)
        transport.report(failed)
        return EXIT_HOPELESS if fatal else EXIT_CRASHED
    finally:
        transport.close()
        if worker:
            worker.close()
