"""A job's names on NATS: its subjects, and its stream.

```
rollfleet.<namespace>.<job>.batches.<worker>.chunk      no stream: chunks of batches, towards the learner
rollfleet.<namespace>.<job>.batches.<worker>.offer      no stream: which batches the worker keeps for the learner
rollfleet.<namespace>.<job>.taken.<worker>              no stream: which of them the learner has, and wants
rollfleet.<namespace>.<job>.spec                        state: the job itself, for processes that join
rollfleet.<namespace>.<job>.control                     state: the learner's orders
rollfleet.<namespace>.<job>.weights.<slot>.<chunk>      state: a version of the weights, in one of two slots
rollfleet.<namespace>.<job>.weights.only.<worker>.<...> state: the same, for versions that only this worker gets
rollfleet.<namespace>.<job>.leases.<worker>             state: the worker's incarnation, by compare and set
rollfleet.<namespace>.<job>.learners.<rank>             state: the learner's session, by compare and set
rollfleet.<namespace>.<job>.workers.<worker>            state: the worker's heartbeat
rollfleet.<namespace>.<job>.learner                     state: the learner's heartbeat
rollfleet.<namespace>.<job>.evaluations.<worker>        no stream: an evaluation worker's newest result
rollfleet.<namespace>.<job>.calls.<worker>              no stream: the learner's call of a method on the worker
rollfleet.<namespace>.<job>.answers.<worker>            no stream: the worker's answer to it
```

Namespace and job are DNS labels: neither can contain a dot, a wildcard or an underscore, so that every name is
unambiguous.
"""

import re
from dataclasses import dataclass
from typing import Self

from rollfleet_api.metadata import DNS_LABEL_PATTERN, MAX_LABEL_LENGTH

ROOT = "rollfleet"
OFFER = ".offer"
LEARNER = "learner"
WEIGHT_SLOTS = 2  # a reader of version v is not disturbed while v + 1 is written


@dataclass(frozen=True, slots=True, kw_only=True)
class Subjects:
    """The subjects and the stream of one job.

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
    def state_stream(self) -> str:
        """Name of the stream that keeps the last message of each state subject."""
        return f"{ROOT}_{self.namespace}_{self.job}_state"

    @property
    def spec(self) -> str:
        """The job itself."""
        return f"{self.prefix}.spec"

    @property
    def control(self) -> str:
        """The learner's orders."""
        return f"{self.prefix}.control"

    @property
    def weights(self) -> str:
        """Wildcard of all versions of the weights."""
        return f"{self.prefix}.weights.>"

    def weights_of(self, worker: int | None, version: int | None = None, chunk: int | str = "*") -> str:
        """Return the subject of a version's chunk, or a wildcard; `worker` is None: of versions for all workers."""
        only = "" if worker is None else f"only.{worker}."
        slot = "*" if version is None else version % WEIGHT_SLOTS
        return f"{self.prefix}.weights.{only}{slot}.{chunk}"

    @property
    def learner(self) -> str:
        """The learner's heartbeat."""
        return f"{self.prefix}.learner"

    @property
    def workers(self) -> str:
        """Wildcard of the workers' heartbeats."""
        return f"{self.prefix}.workers.*"

    @property
    def leases(self) -> str:
        """Wildcard of the workers' leases."""
        return f"{self.prefix}.leases.*"

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

    @property
    def learner_leases(self) -> str:
        """Wildcard of the learner's leases."""
        return f"{self.prefix}.learners.*"

    def learner_lease(self, rank: str) -> str:
        """Return the subject of the lease of a learner's rank, by the rank's name."""
        return f"{self.prefix}.learners.{rank}"

    def lease(self, worker: int) -> str:
        """Return the subject of a worker's lease."""
        return f"{self.prefix}.leases.{worker}"

    def worker(self, worker: int) -> str:
        """Return the subject of a worker's heartbeat."""
        return f"{self.prefix}.workers.{worker}"

    def taken(self, worker: int) -> str:
        """Return the subject of the learner's receipts for a worker's batches."""
        return f"{self.prefix}.taken.{worker}"

    @property
    def state_info(self) -> str:
        """The request to JetStream about the state stream: whether it exists."""
        return f"$JS.API.STREAM.INFO.{self.state_stream}"

    @property
    def state_get(self) -> str:
        """The request to JetStream for a message of the state, which it answers as JSON."""
        return f"$JS.API.STREAM.MSG.GET.{self.state_stream}"

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

    @property
    def state_subjects(self) -> list[str]:
        """Subjects that the state stream keeps."""
        return [self.spec, self.control, self.weights, self.leases, self.learner_leases, self.workers, self.learner]
