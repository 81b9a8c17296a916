"""The worker's side of a transport, as a Protocol: batches go out, weights and control come in."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from rollfleet_api.messages import Answer, Call, Control, WorkerStatus
from rollfleet_api.transfers import BatchMeta, Flags

if TYPE_CHECKING:
    from rollfleet.data.batch import Fragment
    from rollfleet.schemes import Layout


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """A complete version of the weights, valid until the worker reports, sends, or asks for weights again.

    Attributes:
        version: Its number: a newer version has a greater one.
        data: uint8 `[total_bytes]`. The transport owns the memory.
        flags: The `training` flags of this version: see `rollfleet.schemes.Layout`.
    """

    version: int
    data: NDArray[np.uint8]
    flags: Flags = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBatch:
    """A batch on its way to the learner.

    Attributes:
        admitted: Done when the worker may collect the next batch: the learner does not lag too far behind. From then
            on, the memory of the fragment before this one may change.
        delivered: Done when the learner has it: a worker that leaves waits for this.

    A worker calls `wait_until` until they are done.
    """

    admitted: "Future[None]"
    delivered: "Future[None]"


class WeightsInbox(Protocol):
    """The weights that a worker receives."""

    def newest(self) -> Weights | None:
        """Return the newest complete version; None: none has come yet.

        Raises:
            WeightMismatch: A version does not fit the worker's policy.
        """


class WorkerTransport(Protocol):
    """The worker's side of a transport. `Worker` runs its loop over one.

    Example:
        >>> from rollfleet.errors import JobEnded
        >>> from rollfleet.testing import small_job
        >>> from rollfleet.transports.workload import Workload
        >>> from rollfleet.worker.worker import Worker
        >>> from rollfleet_api.messages import LearnerPhase
        >>> class PrintOneBatch:
        ...     incarnation = 0
        ...     call = None
        ...     control = Control(session=1, phase=LearnerPhase.RUN, round=0, version=0)
        ...
        ...     def follow_weights(self, layout):
        ...         return None
        ...
        ...     def wait_until(self, condition):
        ...         raise JobEnded("control never changes")
        ...
        ...     def send(self, fragment, meta):
        ...         print(f"{meta.frames} frames of version {meta.version}")
        ...         self.control = Control(session=1, phase=LearnerPhase.COMPLETE, round=0, version=0)
        ...         done = Future()
        ...         done.set_result(None)
        ...         return PendingBatch(admitted=done, delivered=done)
        ...
        ...     def report(self, status):
        ...         pass
        >>> worker = Worker(PrintOneBatch(), Workload.of(small_job(policy={"random": {}})), index=0)
        >>> worker.run()
        8 frames of version 0
        >>> worker.close()
    """

    @property
    def incarnation(self) -> int:
        """The worker's incarnation, from 0. No other process has the same one. It may change until there is control."""

    @property
    def control(self) -> Control | None:
        """The newest control message; None: none has come yet."""

    @property
    def call(self) -> Call | None:
        """The learner's call that waits for an answer; None: none does, or the transport has no calls."""

    def answer(self, answer: Answer) -> None:
        """Answer the call. `call` is then another one, or None."""

    def follow_weights(self, layout: "Layout") -> WeightsInbox | None:
        """Receive the weights of a policy with this layout from now on. Called once.

        Returns None if the policy is the learner's own object: it always has the newest weights.
        """

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true. Check it whenever control, weights or a batch change, and once a second.

        Raises:
            JobEnded: The learner is gone for good.
        """

    def send(self, fragment: "Fragment", meta: BatchMeta) -> PendingBatch:
        """Send a batch after those sent before. Its fragment must not change until the next one is admitted."""

    def report(self, status: WorkerStatus) -> None:
        """Set the content of the heartbeat, and send it soon."""

    def close(self) -> None:
        """Leave. The last report is still sent."""
