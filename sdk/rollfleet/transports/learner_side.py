"""The learner's side of a transport, as a Protocol: batches come in, weights and control go out."""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rollfleet.errors import JobInvalid
from rollfleet_api.messages import Answer, Call, Control, Evaluation, LearnerStatus, WorkerStatus
from rollfleet_api.ranks import ALONE, Rank
from rollfleet_api.transfers import BatchMeta

if TYPE_CHECKING:
    from tensordict import TensorDict

    from rollfleet.data.batch import Episodes
    from rollfleet.schemes import Layout
    from rollfleet.weights.layout import State
    from rollfleet_api.job import CollectorJob


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrival:
    """One worker's batch, ready for the learner.

    Attributes:
        worker: Index of the worker in its job.
        incarnation: The incarnation of the worker that collected it.
        sequence: Its number in that incarnation, from 0.
        meta: Session, round, version and number of frames.
        batch: TensorDict `[envs, T]`, on the learner's device if it named one. The learner owns its memory.
        episodes: The episodes that ended in it: `returns`, float64 `[m]`, `lengths` in frames, int64 `[m]`, and more.
        nbytes: Its size on the wire.
        process: See `Identity` of `rollfleet.wire`; 0: no two processes have the same incarnation.
    """

    worker: int
    incarnation: int
    sequence: int
    meta: BatchMeta
    batch: "TensorDict"
    episodes: "Episodes"
    nbytes: int
    process: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The job's state when the learner connects.

    Attributes:
        session: This learner's session: greater than that of each learner before it.
        version: The count of the newest version of the weights that was ever published; 0: none.
        target: The newest version that all workers were sent; 0: none.
        frames: Frames that earlier learners received, as of the last heartbeat.
        batches: Batches that earlier learners received, as of the last heartbeat.
        env_version: The newest version of their environments' settings; 0: they set none.
    """

    session: int
    version: int
    target: int = 0
    frames: int = 0
    batches: int = 0
    env_version: int = 0


class Elastic(Protocol):
    """Adds and removes workers. A transport has it if it owns its workers."""

    def add_workers(self, count: int) -> list[int]:
        """Start this many workers. Returns their indices, which were never used before."""

    def remove_workers(self, workers: Collection[int]) -> None:
        """Make these workers leave: each sends the frames that it has. They stop being members now."""


class Transport(Protocol):
    """The learner's side of a transport. All methods but `receive` and `close` return at once.

    The next call of any method raises an error that happened in the background. A transport that inherits from this
    class has the bodies of capabilities that it lacks.

    Example:
        >>> from rollfleet.processes.inline import InlineTransport
        >>> from rollfleet.testing import small_job
        >>> from rollfleet.transports.workload import Workload
        >>> from rollfleet_api.messages import Control, LearnerPhase
        >>> job = small_job(policy={"random": {}})
        >>> transport = InlineTransport(Workload.of(job))
        >>> session = transport.resumed.session
        >>> transport.control(Control(session=session, phase=LearnerPhase.RUN, round=0, version=0))
        >>> arrival = transport.receive(timeout_s=1)
        >>> transport.take(arrival)
        >>> arrival.batch.shape
        torch.Size([2, 4])
        >>> transport.close()
    """

    @property
    def resumed(self) -> Resumed:
        """The job's state when this learner connected; by default, that of a job that starts from nothing."""
        return Resumed(session=1, version=0)

    @property
    def job(self) -> "CollectorJob | None":
        """The job with the edits since this learner connected; None: it is never edited."""
        return None

    @property
    def rank(self) -> Rank:
        """This process's rank in the learner; `ALONE` if the learner is one process.

        `receive` returns batches of this rank's workers only. `members` and `workers` cover the whole job.
        """
        return ALONE

    @property
    def leader_control(self) -> Control | None:
        """On ranks other than 0, rank 0's newest control; None: it has sent none, or this is rank 0."""
        return None

    @property
    def elastic(self) -> Elastic | None:
        """Adds and removes workers; None: the transport does not own them."""
        return None

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The results of the job's evaluation so far, by version."""
        return ()

    def control(self, control: Control) -> None:
        """Send control to all workers, including those that join later. It follows the weights sent before it."""

    def send_weights(
        self, version: int, layout: "Layout", models: "Mapping[str, State]", *, workers: frozenset[int] | None = None
    ) -> None:
        """Send a version to these workers; None: to all. `layout.snapshot(models)` copies it before this returns.

        Workers that join later get the newest version that was meant for them.

        Raises:
            WeightMismatch: The models differ from the layout. Nothing is sent.
        """

    def receive(self, *, timeout_s: float) -> Arrival | None:
        """Return the next batch; None: none came in time. A batch may come twice, or come after a gap."""

    def take(self, arrival: Arrival) -> None:
        """Confirm that this batch is processed or dropped. It is not sent again, and its worker may continue."""

    def members(self) -> frozenset[int]:
        """Return the indices of the workers that a round waits for."""

    def workers(self) -> Mapping[int, WorkerStatus]:
        """Return the newest heartbeat of each worker, by index."""

    def report(self, status: Callable[[], LearnerStatus]) -> None:
        """Set the function that returns the content of each heartbeat of the learner. By default none is sent."""
        return

    def call(self, worker: int, call: Call) -> "Future[Answer]":
        """Call a method on a worker, which answers between two batches. Cancel the future to stop waiting.

        Raises:
            JobInvalid: The transport does not have this capability.
        """
        raise JobInvalid(f"{type(self).__name__} cannot call methods on workers")

    def corrupt(self) -> Mapping[int, int]:
        """Return the number of batches that could not be read so far, by worker. A round goes on without them."""
        return {}

    def close(self, *, timeout_s: float | None = None) -> None:
        """Release everything. Closing twice is harmless.

        Args:
            timeout_s: How long the transport's own workers have to end in order, before signals end them. None: the
                transport's default.
        """
