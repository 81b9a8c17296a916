"""A job's names on NATS: its subjects. NATS carries all of them, and stores none.

```
rollfleet.<namespace>.<job>.spec                  the job itself, from its owner
rollfleet.<namespace>.<job>.ask.<what>            a question of a process that joins: see `Ask`
rollfleet.<namespace>.<job>.control               the learner's orders
rollfleet.<namespace>.<job>.learners.<rank>.<ranks>  the heartbeat of a learner's process
rollfleet.<namespace>.<job>.weights.<receiver>    chunks of a version of the weights, for `all`, or for one process
rollfleet.<namespace>.<job>.wants.<receiver>      what that process has of the weights, and wants
rollfleet.<namespace>.<job>.workers.<worker>      the worker's heartbeat
rollfleet.<namespace>.<job>.batches.<worker>.chunk  chunks of batches, towards the learner
rollfleet.<namespace>.<job>.batches.<worker>.offer  which batches the worker keeps for the learner
rollfleet.<namespace>.<job>.taken.<worker>        which of them the learner has, and wants
rollfleet.<namespace>.<job>.evaluations.<worker>  an evaluation worker's newest result
rollfleet.<namespace>.<job>.calls.<worker>        the learner's call of a method on the worker
rollfleet.<namespace>.<job>.answers.<worker>      the worker's answer to it
```

Namespace and job are DNS labels: neither can contain a dot, a wildcard or an underscore, so that every name is
unambiguous.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from rollfleet_api.metadata import DNS_LABEL_PATTERN, MAX_LABEL_LENGTH

ROOT = "rollfleet"
OFFER = ".offer"
ALL = "all"  # receivers of a version of the weights


class Ask(StrEnum):
    """What a process asks for. Who has it sends it to all, on its usual subject."""

    JOB = "job"  # of the job's owner, on `spec`
    CONTROL = "control"  # of the learner
    HEARTBEATS = "heartbeats"  # of workers and learners


@dataclass(frozen=True, slots=True, kw_only=True)
class Subjects:
    """The subjects of one job.

    Raises:
        ValueError: Namespace or job is not a DNS label: it could match subjects of other jobs.

    Example:
        >>> Subjects(namespace="default", job="cartpole").worker(3)
        'rollfleet.default.cartpole.workers.3'
    """

    namespace: str
    job: str

    def __post_init__(self) -> None:
        """Refuse labels that would not be one token of a subject."""
        for label in (self.namespace, self.job):
            if len(label) > MAX_LABEL_LENGTH or not re.fullmatch(DNS_LABEL_PATTERN, label):
                raise ValueError(
                    f"{self.key!r} is not the name of a job: expected `namespace/name`, both of a-z, 0-9 and `-`, "
                    f"beginning and ending with a letter or digit, at most {MAX_LABEL_LENGTH} characters each"
                )

    @classmethod
    def parse(cls, key: str) -> Self:
        """Parse `namespace/job`, the inverse of `key`, or a bare job name in namespace `default`."""
        namespace, slash, job = key.rpartition("/")
        return cls(namespace=namespace if slash else "default", job=job)

    @property
    def key(self) -> str:
        """`namespace/job`."""
        return f"{self.namespace}/{self.job}"

    @property
    def prefix(self) -> str:
        """Common prefix of the job's subjects, without the last dot."""
        return f"{ROOT}.{self.namespace}.{self.job}"

    @property
    def spec(self) -> str:
        """The job itself."""
        return f"{self.prefix}.spec"

    @property
    def control(self) -> str:
        """The learner's orders."""
        return f"{self.prefix}.control"

    def ask(self, what: str) -> str:
        """Return the subject of a question."""
        return f"{self.prefix}.ask.{what}"

    def weights_of(self, receiver: str) -> str:
        """Return the subject of the chunks of versions for one process, or for `ALL`, or a wildcard."""
        return f"{self.prefix}.weights.{receiver}"

    def wants(self, receiver: str) -> str:
        """Return the subject on which a process asks for chunks of versions."""
        return f"{self.prefix}.wants.{receiver}"

    def learner(self, rank: int | str, ranks: int | str = "*") -> str:
        """Return the subject of the heartbeat of a learner's rank, or a wildcard."""
        return f"{self.prefix}.learners.{rank}.{ranks}"

    @property
    def workers(self) -> str:
        """Wildcard of the workers' heartbeats."""
        return f"{self.prefix}.workers.*"

    @property
    def batches(self) -> str:
        """Wildcard of the workers' chunks and offers."""
        return self.batches_of("*")

    def batches_of(self, worker: int | str) -> str:
        """Return the wildcard of a worker's chunks and offers: one subscription receives both in their order."""
        return f"{self.prefix}.batches.{worker}.*"

    def chunk(self, worker: int) -> str:
        """Return the subject of the chunks of a worker's batches."""
        return f"{self.prefix}.batches.{worker}.chunk"

    def offer(self, worker: int) -> str:
        """Return the subject on which a worker names the batches that it keeps."""
        return f"{self.prefix}.batches.{worker}{OFFER}"

    def worker(self, worker: int) -> str:
        """Return the subject of a worker's heartbeat."""
        return f"{self.prefix}.workers.{worker}"

    def taken(self, worker: int | str) -> str:
        """Return the subject of the learner's receipts for a worker's batches."""
        return f"{self.prefix}.taken.{worker}"

    @property
    def evaluations(self) -> str:
        """Wildcard of the results of evaluation workers."""
        return f"{self.prefix}.evaluations.*"

    def evaluation(self, worker: int) -> str:
        """Return the subject of an evaluation worker's newest result."""
        return f"{self.prefix}.evaluations.{worker}"

    @property
    def calls(self) -> str:
        """Wildcard of the learner's calls of methods on workers."""
        return self.call("*")

    def call(self, worker: int | str) -> str:
        """Return the subject of the learner's calls of methods on a worker."""
        return f"{self.prefix}.calls.{worker}"

    @property
    def answers(self) -> str:
        """Wildcard of the workers' answers to calls."""
        return self.answer("*")

    def answer(self, worker: int | str) -> str:
        """Return the subject of a worker's answers to calls."""
        return f"{self.prefix}.answers.{worker}"
