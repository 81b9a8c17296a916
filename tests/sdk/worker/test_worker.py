"""The end of a worker: what it keeps is delivered first."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from rollfleet.testing import small_job
from rollfleet.transports.worker_side import PendingBatch
from rollfleet.transports.workload import Workload
from rollfleet.worker.worker import Worker
from rollfleet_api.messages import Control, LearnerPhase, WorkerState, WorkerStatus


class OutOfOrder:
    """Takes batches at once. The first is delivered when `arrive` is called, the others at once."""

    incarnation, call = 0, None
    control = Control(session=1, phase=LearnerPhase.RUN, round=0, version=0)

    def __init__(self) -> None:
        self.first, self.waits = Future[None](), threading.Event()
        self.sent = 0
        self.leave: Callable[[], None] = lambda: None
        self._changed = threading.Condition()

    def follow_weights(self, layout: Any) -> None:
        return None

    def wait_until(self, condition: Callable[[], bool]) -> None:
        self.waits.set()
        with self._changed:
            assert self._changed.wait_for(condition, 30)

    def send(self, fragment: Any, meta: Any) -> PendingBatch:
        self.sent += 1
        done = Future[None]()
        done.set_result(None)
        if self.sent == 2:
            self.leave()
        return PendingBatch(admitted=done, delivered=self.first if self.sent == 1 else done)

    def arrive(self) -> None:
        with self._changed:
            self.first.set_result(None)
            self._changed.notify_all()

    def report(self, status: WorkerStatus) -> None:
        self.status = status

    def answer(self, answer: Any) -> None: ...

    def close(self) -> None: ...


def test_a_worker_that_leaves_waits_for_a_batch_that_a_later_one_has_overtaken() -> None:
    transport: Any = OutOfOrder()
    worker = Worker(transport, Workload.of(small_job(policy={"random": {}}, mode="Async")), 0)
    transport.leave = worker.leave
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert transport.waits.wait(30), "it left without the first batch"
    assert thread.is_alive()
    transport.arrive()
    thread.join(30)
    worker.close()
    assert (transport.sent, transport.status.state) == (2, WorkerState.LEFT)
