"""A job's names on NATS: its subjects. NATS carries all of them, and stores none.

```
rollfleet.<namespace>.<job>.spec       the job itself, from its owner
rollfleet.<namespace>.<job>.ask.job    who asks for it
rollfleet.<namespace>.<job>.<uid>.*    all else:
  ask.<what>                a question of a process that joins: see `Ask`
  control                   the learner's orders
  learners.<rank>.<ranks>   the heartbeat of a learner's process
  weights.<receiver>        chunks of a version of the weights, for `all`, or for one process
  wants.<receiver>          what that process has of the weights, and wants
  workers.<worker>          the worker's heartbeat
  batches.<worker>.chunk    chunks of batches, towards the learner
  batches.<worker>.offer    which batches the worker keeps for the learner
  taken.<worker>            which of them the learner has, and wants
  evaluations.<worker>      an evaluation worker's newest result
  calls.<worker>            the learner's call of a method on the worker
  answers.<worker>          the worker's answer to it
```

Namespace and job are DNS labels: neither can contain a dot, a wildcard or an underscore, so that every name is
unambiguous. The UID is the cluster's; `_` stands for none. So processes of a deleted job do not meet its namesake's.
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

    Attributes:
        namespace, job: Its name.
        uid: Its `metadata.uid`; empty: it has none, or is not known yet.

    Raises:
        ValueError: Namespace or job is not a DNS label, or the UID not a token: it could match subjects of other jobs.

    Example:
        >>> Subjects(namespace="default", job="cartpole").worker(3)
        'rollfleet.default.cartpole._.workers.3'
    """

    namespace: str
    job: str
    uid: str = ""

    def __post_init__(self) -> None:
        """Refuse labels that would not be one token of a subject."""
        for label in (self.namespace, self.job):
            if len(label) > MAX_LABEL_LENGTH or not re.fullmatch(DNS_LABEL_PATTERN, label):
                raise ValueError(
                    f"{self.key!r} is not the name of a job: expected `namespace/name`, both of a-z, 0-9 and `-`, "
                    f"beginning and ending with a letter or digit, at most {MAX_LABEL_LENGTH} characters each"
                )
        if not re.fullmatch(r"[A-Za-z0-9-]*|\*", self.uid):
            raise ValueError(
                f"metadata.uid {self.uid!r}: expected letters, digits and `-`; remove it without a cluster"
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
        """Common prefix of the subjects of all jobs of this name, without the last dot."""
        return f"{ROOT}.{self.namespace}.{self.job}"

    @property
    def own(self) -> str:
        """Common prefix of those of this job alone."""
        return f"{self.prefix}.{self.uid or '_'}"

    @property
    def spec(self) -> str:
        """The job itself."""
        return f"{self.prefix}.spec"

    @property
    def control(self) -> str:
        """The learner's orders."""
        return f"{self.own}.control"

    def ask(self, what: str) -> str:
        """Return the subject of a question."""
        return f"{self.prefix if what == Ask.JOB else self.own}.ask.{what}"

    def weights_of(self, receiver: str) -> str:
        """Return the subject of the chunks of versions for one process, or for `ALL`, or a wildcard."""
        return f"{self.own}.weights.{receiver}"

    def wants(self, receiver: str) -> str:
        """Return the subject on which a process asks for chunks of versions."""
        return f"{self.own}.wants.{receiver}"

    def learner(self, rank: int | str, ranks: int | str = "*") -> str:
        """Return the subject of the heartbeat of a learner's rank, or a wildcard."""
        return f"{self.own}.learners.{rank}.{ranks}"

    @property
    def workers(self) -> str:
        """Wildcard of the workers' heartbeats."""
        return f"{self.own}.workers.*"

    @property
    def batches(self) -> str:
        """Wildcard of the workers' chunks and offers."""
        return self.batches_of("*")

    def batches_of(self, worker: int | str) -> str:
        """Return the wildcard of a worker's chunks and offers: one subscription receives both in their order."""
        return f"{self.own}.batches.{worker}.*"

    def chunk(self, worker: int) -> str:
        """Return the subject of the chunks of a worker's batches."""
        return f"{self.own}.batches.{worker}.chunk"

    def offer(self, worker: int) -> str:
        """Return the subject on which a worker names the batches that it keeps."""
        return f"{self.own}.batches.{worker}{OFFER}"

    def worker(self, worker: int) -> str:
        """Return the subject of a worker's heartbeat."""
        return f"{self.own}.workers.{worker}"

    def taken(self, worker: int | str) -> str:
        """Return the subject of the learner's receipts for a worker's batches."""
        return f"{self.own}.taken.{worker}"

    @property
    def evaluations(self) -> str:
        """Wildcard of the results of evaluation workers."""
        return f"{self.own}.evaluations.*"

    def evaluation(self, worker: int) -> str:
        """Return the subject of an evaluation worker's newest result."""
        return f"{self.own}.evaluations.{worker}"

    @property
    def calls(self) -> str:
        """Wildcard of the learner's calls of methods on workers."""
        return self.call("*")

    def call(self, worker: int | str) -> str:
        """Return the subject of the learner's calls of methods on a worker."""
        return f"{self.own}.calls.{worker}"

    @property
    def answers(self) -> str:
        """Wildcard of the workers' answers to calls."""
        return self.answer("*")

    def answer(self, worker: int | str) -> str:
        """Return the subject of a worker's answers to calls."""
        return f"{self.own}.answers.{worker}"
