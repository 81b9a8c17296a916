"""A worker in a process of its own, from its start to its exit code."""

from collections.abc import Callable
from dataclasses import replace

from rollfleet.errors import ConnectionFailed, JobEnded, Timeout
from rollfleet.transports.worker_side import WorkerTransport
from rollfleet.worker.evaluation import EvaluationWorker
from rollfleet.worker.worker import Worker, failure
from rollfleet_api.exit_codes import EXIT_COMPLETE, EXIT_CRASHED, EXIT_PERMANENT, EXIT_TERMINATED
from rollfleet_api.messages import WorkerState, WorkerStatus


class Terminated(BaseException):
    """SIGTERM ends this process. A BaseException, so that handlers of ordinary errors do not catch it."""


def work(
    transport: WorkerTransport,
    make: Callable[[], Worker | EvaluationWorker],
    index: int,
    *,
    gone: tuple[type[Exception], ...] = (ConnectionFailed, JobEnded, Timeout),
) -> tuple[int, WorkerStatus]:
    """Make a worker, let it work to its end, and close both it and its transport. Its error goes into its last report.

    Args:
        transport: The worker's transport.
        make: Makes the worker.
        index: The worker's index.
        gone: Errors that are raised: the learner, the way to it, or an environment server is gone. The worker has not
            failed.

    Returns:
        The exit code (see `rollfleet_api.exit_codes`), and the last report.

    Raises:
        ConnectionFailed, JobEnded, Timeout: Those in `gone`.
    """
    worker: Worker | EvaluationWorker | None = None
    status = WorkerStatus(worker=index, incarnation=transport.incarnation)
    try:
        worker = make()
        worker.run()
        return EXIT_COMPLETE, worker.status
    except Terminated:
        status = replace(worker.status if worker else status, state=WorkerState.LEFT)
        transport.report(status)
        return EXIT_TERMINATED, status
    except gone:
        raise
    except (Exception, SystemExit) as error:  # user code may exit, and code 0 would mean a complete job
        status = worker.failed(error) if worker else failure(status, error)
        transport.report(status)
        return EXIT_PERMANENT if status.fatal else EXIT_CRASHED, status
    finally:
        transport.close()
        if worker:
            worker.close()
