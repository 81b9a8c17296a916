"""The seam between a worker and whoever it collects for, as a Protocol: the other end of a transport."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from rollfleet_api.messages import BatchMeta, Control, WorkerStatus

if TYPE_CHECKING:
    from rollfleet.data.batch import Fragment
    from rollfleet.schemes import Layout


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """A complete version: uint8 `[total_bytes]`. To be loaded before anything is reported, sent, or asked again."""

    version: int
    data: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """A batch on its way.

    Attributes:
        admitted: Done when there was room for it; until then the learner is behind.
        stored: Done when all of it is safe, and its memory may change; its result is what went wrong.
    """

    admitted: "Future[None]"
    stored: "Future[None]"


class WeightsInbox(Protocol):
    """A worker's weights."""

    def newest(self) -> Weights | None:
        """The newest complete version; None: none has come yet.

        Raises:
            WeightMismatch: A version came that does not fit the policy here.
        """
        ...


class WorkerTransport(Protocol):
    """What a worker asks of a transport."""

    @property
    def incarnation(self) -> int:
        """Which life of this worker this is, from 0; nobody else has it."""
        ...

    @property
    def control(self) -> Control | None:
        """The newest control message; None: none has come yet."""
        ...

    @property
    def status(self) -> WorkerStatus | None:
        """What was reported last."""
        ...

    def follow_weights(self, layout: "Layout") -> WeightsInbox | None:
        """From now on, receive the weights of a policy that is laid out like this. Called once.

        None: the policy is the learner's own, and so are its weights.
        """
        ...

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so; it is asked again whenever control or weights have changed, or a second passed.

        Raises:
            JobEnded: Whoever is collected for is gone for good.
        """
        ...

    def send(self, fragment: "Fragment", meta: BatchMeta) -> Sending:
        """Send a batch, after those that were sent before. The fragment must not change until it is stored."""
        ...

    def report(self, status: WorkerStatus) -> None:
        """What the heartbeat says from now on; sent at once."""
        ...

    def close(self) -> None:
        """Leave. The last report is still sent."""
        ...
