"""Reconciles jobs from the queue, one after another, and tries again what fails."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from rollfleet_operator.errors import OperatorError
from rollfleet_operator.metrics import Metrics
from rollfleet_operator.nats_port import JobKey
from rollfleet_operator.reconcile import ReconcileResult
from rollfleet_operator.work_queue import WorkQueue

log = logging.getLogger(__name__)

STUCK_S: Final = 300.0
"""The longest time for a reconciliation: each of its requests has a shorter limit."""


class Reconciling:
    """What happens between a queue of jobs and their reconciliation.

    Args:
        look: Reconciles a job; see `Reconciler.reconcile`.
        verify: Raises OperatorError while another operator may lead. It is called before each reconciliation.
    """

    def __init__(
        self,
        look: Callable[[JobKey], Awaitable[ReconcileResult]],
        queue: WorkQueue[JobKey],
        metrics: Metrics,
        verify: Callable[[], None] = lambda: None,
    ) -> None:
        self._look, self._queue, self._metrics, self._verify = look, queue, metrics, verify
        self._logged: dict[JobKey, str] = {}

    async def run(self) -> None:
        """Reconcile until cancelled. Several tasks may do so."""
        while True:
            await self.reconcile(await self._queue.take())
            await asyncio.sleep(0)  # hundreds of looks that wait for nothing would hold up all else

    async def reconcile(self, key: JobKey) -> None:
        """Reconcile a job that was taken from the queue. Raise no error: the job is tried again."""
        began_s = time.perf_counter()
        try:
            self._verify()  # as before each write to the API server: a look writes to NATS, too
            async with asyncio.timeout(STUCK_S):
                result = await self._look(key)
        except OperatorError as error:
            result = ReconcileResult(problem=error)
        except TimeoutError:
            text = f"it was not reconciled within {STUCK_S:g} s: check that the API server and NATS answer"
            result = ReconcileResult(problem=OperatorError(text))
        except Exception as error:
            log.exception("%s/%s: error in the operator", *key)
            result = ReconcileResult(problem=OperatorError(repr(error)))
        self._metrics.count(time.perf_counter() - began_s, failed=result.problem is not None)
        if result.problem is None:
            self._logged.pop(key, None)
            self._queue.done(key, result.next_s)
            return
        retry_s, problem = self._queue.failed(key), str(result.problem)
        if result.next_s is not None:
            self._queue.add_later(key, result.next_s)
            retry_s = min(retry_s, result.next_s)
        if self._logged.get(key) != problem:  # once, however long it lasts: the job's condition has it
            self._logged[key] = problem
            log.warning("%s/%s: %s; retry in %.1f s", *key, problem, retry_s)
