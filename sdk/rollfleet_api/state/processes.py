"""The processes of a job and their last heartbeats, as they are observed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollfleet_api.messages import LearnerStatus, WorkerStatus
from rollfleet_api.permissions import Role
from rollfleet_api.pods import Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The processes of one role with one revision of the spec. On a cluster a Kubernetes Job.

    Attributes:
        name: Its name.
        pods: Number of pods that should run.
        ready: Number of pods that do and are ready, as Kubernetes counts them.
        per_worker: Number of its pods for each worker; 0: the job's spec has the number.
        suspended: Whether it is suspended: by the operator after the job's end, else by another client, such as Kueue.
        held: Whether a scheduler decides when its pods start.
        complete: Whether all pods exited with 0.
        failed: The message of its failure; None: it has not failed.
        deleting: Whether it is being deleted.
        created_s: Its creation time.
        restarts: Number of failed pods.
    """

    name: str
    role: Role
    uid: str
    pods: int
    ready: int = 0
    per_worker: int = 0
    suspended: bool = False
    held: bool = False
    complete: bool = False
    failed: str | None = None
    deleting: bool = False
    created_s: float = 0.0
    restarts: int = 0

    @property
    def finished(self) -> bool:
        """Whether it will start no more pods."""
        return self.complete or self.failed is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The observed processes of a job.

    Attributes:
        runs: All runs, oldest first.
        current: The runs of the spec's present revision, by role. A role that the job lacks has none.
        pods: The pods of all runs, and those of the job's NATS server.
        refused_pods: Why a run cannot create pods (quota, Pod Security), in the API server's words; empty: it can.
        server_starts: Whether the job's own NATS server is not ready yet.
    """

    runs: tuple[Run, ...] = ()
    current: Mapping[Role, Run] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    refused_pods: str = ""
    server_starts: bool = False

    def pods_of(self, run: Run | None) -> list[Pod]:
        """Return the pods of a run."""
        return [pod for pod in self.pods if run is not None and pod.run == run.uid]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeats:
    """The last heartbeats of a job, of any age: each carries its own time.

    Attributes:
        workers: The newest heartbeat of each worker, by index. It may contain workers that have left.
        learner: The learner's newest heartbeat; None: the job never had a learner.
        since_s: Time since when NATS has answered without a gap; inf: it does not answer now.
    """

    workers: Mapping[int, WorkerStatus] = field(default_factory=dict)
    learner: LearnerStatus | None = None
    since_s: float = 0.0
