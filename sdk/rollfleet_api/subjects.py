"""A job's names on NATS: its subjects, its two streams, its consumer.

```
rollfleet.<namespace>.<job>.batches.<worker>.<chunk>    work queue: chunks of batches, towards the learner
rollfleet.<namespace>.<job>.batches.<worker>.began      work queue: a worker's next life begins after this
rollfleet.<namespace>.<job>.spec                        state: the job itself, for whoever joins
rollfleet.<namespace>.<job>.control                     state: what the learner wants done now
rollfleet.<namespace>.<job>.weights.manifest            state: the newest complete version, written last
rollfleet.<namespace>.<job>.weights.<slot>.<chunk>      state: the bytes of a version, in one of two slots
rollfleet.<namespace>.<job>.only.<worker>.<...>         state: the same two, of versions for this worker alone
rollfleet.<namespace>.<job>.claims.<worker>             state: the worker's incarnation, by compare and set
rollfleet.<namespace>.<job>.workers.<worker>            state: the worker's heartbeat
rollfleet.<namespace>.<job>.learner                     state: the learner's heartbeat
rollfleet.<namespace>.<job>.taken.<worker>              no stream: a hint that the worker's batch left the queue
rollfleet.<namespace>.<job>.ranks.<rank>                no stream: what rank 0 of a learner must know of another
```

Namespace and job are DNS labels: neither can hold a dot, a wildcard or an underscore, so every name has one reading.
"""

import re
from dataclasses import dataclass
from typing import Self

from rollfleet_api.metadata import DNS_LABEL_PATTERN, MAX_LABEL_LENGTH

ROOT = "rollfleet"
BEGAN = ".began"
LEARNER = "learner"
WEIGHT_SLOTS = 2  # a reader of version v is not disturbed while v + 1 is written


@dataclass(frozen=True, slots=True)
class WeightSubjects:
    """Where versions of the weights are written: for all workers, or for one.

    Attributes:
        prefix: What they begin with, without the last dot.
    """

    prefix: str

    @property
    def all(self) -> str:
        """All of them, as a wildcard."""
        return f"{self.prefix}.>"

    @property
    def manifest(self) -> str:
        """The manifest of the newest complete version."""
        return f"{self.prefix}.manifest"

    def chunk(self, version: int, index: int) -> str:
        """Where a chunk of a version's bytes is written."""
        return f"{self.prefix}.{version % WEIGHT_SLOTS}.{index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subjects:
    """The subjects and streams of one job.

    Raises:
        ValueError: Namespace or job is no DNS label: it would reach into the subjects of others.
    """

    namespace: str
    job: str

    def __post_init__(self) -> None:
        """Refuse what would not be one token of a subject."""
        for label in (self.namespace, self.job):
            if len(label) > MAX_LABEL_LENGTH or not re.fullmatch(DNS_LABEL_PATTERN, label):
                raise ValueError(
                    f"{self.key!r} names no job: expected `namespace/name`, both of a-z, 0-9 and `-`, beginning and "
                    f"ending with a letter or digit, at most {MAX_LABEL_LENGTH} characters each"
                )

    @classmethod
    def parse(cls, key: str) -> Self:
        """The inverse of `key`: `namespace/job`, or a bare job name in namespace `default`."""
        namespace, slash, job = key.rpartition("/")
        return cls(namespace=namespace if slash else "default", job=job)

    @property
    def key(self) -> str:
        """`namespace/job`."""
        return f"{self.namespace}/{self.job}"

    @property
    def prefix(self) -> str:
        """What every subject of this job begins with, without the last dot."""
        return f"{ROOT}.{self.namespace}.{self.job}"

    @property
    def batches_stream(self) -> str:
        """Name of the work queue that holds batches."""
        return f"{ROOT}_{self.namespace}_{self.job}_batches"

    @property
    def state_stream(self) -> str:
        """Name of the stream that keeps the last message of each state subject."""
        return f"{ROOT}_{self.namespace}_{self.job}_state"

    @property
    def learner_consumer(self) -> str:
        """Durable consumer of the work queue that a learner of one process reads; see `Rank` for those of several."""
        return LEARNER

    @property
    def spec(self) -> str:
        """The job itself."""
        return f"{self.prefix}.spec"

    @property
    def control(self) -> str:
        """What the learner wants done."""
        return f"{self.prefix}.control"

    def weights_of(self, worker: int | None) -> WeightSubjects:
        """Versions for one worker alone; None: for all."""
        return WeightSubjects(f"{self.prefix}.weights" if worker is None else f"{self.prefix}.only.{worker}")

    @property
    def weights(self) -> str:
        """Everything about weights for all workers, as a wildcard."""
        return self.weights_of(None).all

    @property
    def weights_for_some(self) -> str:
        """Everything about weights for single workers, as a wildcard."""
        return f"{self.prefix}.only.>"

    @property
    def manifest(self) -> str:
        """The manifest of the newest complete version for all workers."""
        return self.weights_of(None).manifest

    @property
    def learner(self) -> str:
        """The learner's heartbeat."""
        return f"{self.prefix}.learner"

    @property
    def workers(self) -> str:
        """The heartbeats of all workers, as a wildcard."""
        return f"{self.prefix}.workers.*"

    @property
    def leases(self) -> str:
        """The leases of all workers, as a wildcard."""
        return f"{self.prefix}.claims.*"

    def weight_chunk(self, version: int, chunk: int) -> str:
        """Where a chunk of a version for all workers is written."""
        return self.weights_of(None).chunk(version, chunk)

    def batch_chunk(self, worker: int, chunk: int) -> str:
        """Where a worker publishes a chunk of a batch."""
        return f"{self.prefix}.batches.{worker}.{chunk}"

    def batches_of(self, worker: int) -> str:
        """Everything that a worker publishes to the work queue, as a wildcard."""
        return f"{self.prefix}.batches.{worker}.*"

    def began(self, worker: int) -> str:
        """Where each life of a worker but the first says that it has begun, behind all that those before it sent."""
        return f"{self.prefix}.batches.{worker}{BEGAN}"

    def lease(self, worker: int) -> str:
        """Where a worker takes its lease: an incarnation that no other process has."""
        return f"{self.prefix}.claims.{worker}"

    def worker(self, worker: int) -> str:
        """A worker's heartbeat."""
        return f"{self.prefix}.workers.{worker}"

    def taken(self, worker: int) -> str:
        """The hint that a batch of this worker left the queue."""
        return f"{self.prefix}.taken.{worker}"

    @property
    def ranks(self) -> str:
        """What all ranks but 0 tell of themselves, as a wildcard."""
        return f"{self.prefix}.ranks.*"

    def rank(self, rank: int) -> str:
        """What a rank tells of itself."""
        return f"{self.prefix}.ranks.{rank}"

    @property
    def state_subjects(self) -> list[str]:
        """What the state stream keeps."""
        return [
            self.spec,
            self.control,
            self.weights,
            self.weights_for_some,
            self.leases,
            self.workers,
            self.learner,
        ]

    @property
    def batch_subjects(self) -> list[str]:
        """What the work queue keeps."""
        return [f"{self.prefix}.batches.*.*"]


def job_of(subject: str) -> Subjects:
    """The job that a subject belongs to: the inverse of every subject above.

    Raises:
        ValueError: The subject is none of ours.
    """
    root, *rest = subject.split(".")
    if root != ROOT or len(rest) < 3:
        raise ValueError(f"{subject!r} is no subject of a job: expected {ROOT}.<namespace>.<job>.<...>")
    return Subjects(namespace=rest[0], job=rest[1])
