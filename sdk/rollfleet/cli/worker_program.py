"""The program behind `rollfleet worker`: join a job over NATS with an address and an index, and work until it ends.

`rollfleet_api.exit_codes` lists its exit codes. Code 0 means that the learner has completed the job, and nothing else.

SIGTERM drains the worker: it sends its collected frames as a shorter batch and leaves. A second SIGTERM ends it at
once. So does a step, or a learner that is away, that blocks the worker for more than 10 s after the first. Python
warnings are hidden unless -W or PYTHONWARNINGS asks for them.
"""

import logging
import os
import signal
import sys
import threading
from functools import partial
from logging import CRITICAL, ERROR
from types import FrameType

from rollfleet.errors import (
    ConnectionFailed,
    JobEnded,
    JobNotFound,
    Timeout,
    WorkerReplaced,
)
from rollfleet.nats.job_source import read_job
from rollfleet.nats.link import Link
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet.system.cpus import available_cpus, limit_threads
from rollfleet.system.process_setup import silence_warnings
from rollfleet.transports.workload import Workload
from rollfleet.worker.evaluation import EvaluationWorker
from rollfleet.worker.program import Terminated, work
from rollfleet.worker.worker import Worker
from rollfleet_api.address import WORKER, Address
from rollfleet_api.exit_codes import (
    EXIT_COMPLETE,
    EXIT_GONE,
    EXIT_PERMANENT,
    EXIT_REPLACED,
    EXIT_TERMINATED,
)
from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role

log = logging.getLogger(__name__)

DRAIN_S = 10.0  # leaves time to report and close within the 30 s grace period of Kubernetes


class _Sigterm:
    """The reaction to SIGTERM: the worker drains. A process without a worker ends at once, as at a second SIGTERM."""

    def __init__(self) -> None:
        self.worker: Worker | EvaluationWorker | None = None
        self.came = False
        signal.signal(signal.SIGTERM, self._handle)
        # It ends the process of an environment, which is forked from this one.
        os.register_at_fork(after_in_child=partial(signal.signal, signal.SIGTERM, signal.SIG_DFL))

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.worker is None or self.came:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # no further signal interrupts the clean-up
            raise Terminated
        self.came = True
        self.worker.leave()
        end = threading.Timer(DRAIN_S, os.kill, (os.getpid(), signal.SIGTERM))
        end.daemon = True
        end.start()


def main(address: Address, index: int, *, evaluation: bool, threads: int, timeout_s: float) -> int:
    """Work until the job is complete.

    `threads` are torch's; 0: one for each CPU. `timeout_s` is how long to wait for NATS, and then for the job.

    Returns:
        0: the learner has completed the job. 1: an error; a restart may help. 2: an error that a restart would
        repeat. 3: the job, NATS, or an environment server is not there. 4: another process took the index. 143: SIGTERM
        stopped the worker.
    """
    os.environ[WORKER] = str(index)  # environments and policies read it, however this program got its index
    if not sys.warnoptions:
        silence_warnings()
    sigterm = _Sigterm()
    link: Link | None = None
    try:
        link = Link(address, role=Role.WORKER, timeout_s=timeout_s)
        job = link.call(read_job(link, timeout_s=timeout_s, workers=0 if evaluation else index + 1))
        role = Role.EVALUATION if evaluation else Role.WORKER
        if index >= (count := job.spec.size(role)):
            kind = "evaluation worker" if evaluation else "worker"
            known = f"{kind}s 0 to {count - 1}" if count else f"no {kind}"
            log.error("%s: job %s has %s", role.process(index), job.key, known)
            return EXIT_PERMANENT
        limit_threads(threads or available_cpus())
        return _work(link, job, role, index, sigterm)
    except (ConnectionFailed, JobNotFound, JobEnded, Timeout) as error:
        log.error("%s", error)
        return EXIT_REPLACED if isinstance(error, WorkerReplaced) else EXIT_GONE
    except Terminated:
        return EXIT_TERMINATED
    finally:
        if link:
            link.close()


def _work(link: Link, job: CollectorJob, role: Role, index: int, sigterm: _Sigterm) -> int:
    evaluation = role is Role.EVALUATION
    transport = NatsWorkerTransport(link, index, job, evaluates=evaluation)

    def made() -> Worker | EvaluationWorker:
        sigterm.worker = (EvaluationWorker if evaluation else Worker)(transport, Workload.of(job), index)
        return sigterm.worker

    code, status = work(transport, made, index)
    if status.error:
        how = CRITICAL if status.fatal and "\n" not in status.error else ERROR
        log.log(how, "%s of %s: %s", role.process(index), job.key, status.error)
    return EXIT_TERMINATED if sigterm.came and code == EXIT_COMPLETE else code
