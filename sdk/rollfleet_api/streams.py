"""A job's two JetStream streams and a learner's consumers, as NATS's own API takes them (durations in nanoseconds).

The batches stream is a work queue that refuses what does not fit: the refusal is the backpressure. Besides `maxBytes`
it holds at most `maxBatchesAhead` messages a subject, and chunk `i` of every batch of worker `w` has one subject: so a
worker may be that many batches ahead of the learner, by the server's own count, whoever restarts. The state stream
keeps the last message of each subject, for whoever joins late.
"""

from typing import NotRequired, TypedDict

from rollfleet_api.job import CollectorJob, Storage, WhenFull
from rollfleet_api.ranks import Rank
from rollfleet_api.subjects import Subjects

SECOND_NS = 1_000_000_000
DUPLICATE_WINDOW_NS = 120 * SECOND_NS
ACK_WAIT_NS = 30 * SECOND_NS
OWNER = "rollfleet.dev/learner"  # in the metadata of a learner's consumer


class StreamConfiguration(TypedDict):
    """What both of our streams say; the fields of NATS's own stream configuration."""

    name: str
    subjects: list[str]
    storage: str
    retention: str
    discard: str
    discard_new_per_subject: bool
    max_bytes: int
    max_msgs_per_subject: int
    duplicate_window: int
    allow_direct: bool
    num_replicas: int


class ConsumerConfiguration(TypedDict):
    """A learner's consumer; the fields of NATS's own consumer configuration."""

    durable_name: str
    filter_subjects: NotRequired[list[str]]
    ack_policy: str
    ack_wait: int
    max_ack_pending: int
    max_waiting: int
    metadata: dict[str, str]


def batches_stream(job: CollectorJob) -> StreamConfiguration:
    """The work queue of a job."""
    subjects, delivery = subjects_of(job), job.spec.delivery
    block = delivery.when_full is WhenFull.BLOCK
    return StreamConfiguration(
        name=subjects.batches_stream,
        subjects=subjects.batch_subjects,
        storage=_storage(delivery.storage),
        retention="workqueue",
        discard="new" if block else "old",
        discard_new_per_subject=block,
        max_bytes=delivery.limit_bytes,
        max_msgs_per_subject=delivery.max_batches_ahead,
        duplicate_window=DUPLICATE_WINDOW_NS,
        allow_direct=False,
        num_replicas=delivery.replicas,
    )


def state_stream(job: CollectorJob) -> StreamConfiguration:
    """The stream that keeps the last word on everything else."""
    subjects = subjects_of(job)
    return StreamConfiguration(
        name=subjects.state_stream,
        subjects=subjects.state_subjects,
        storage=_storage(job.spec.delivery.storage),
        retention="limits",
        discard="old",
        discard_new_per_subject=False,
        max_bytes=-1,
        max_msgs_per_subject=1,
        duplicate_window=DUPLICATE_WINDOW_NS,
        allow_direct=True,
        num_replicas=job.spec.delivery.replicas,
    )


_NO_ROOM = (10002, 10023, 10028, 10047)  # JetStream's error codes: of the account or the server, in memory or on disk
_TOO_FEW_SERVERS = (10005, 10074)


def what_to_write(job: CollectorJob, error_code: int) -> str:
    """What to change where NATS has refused one of the streams, as the end of a message; empty: nothing is known.

    Args:
        job: The job.
        error_code: JetStream's.
    """
    delivery = job.spec.delivery
    if error_code in _TOO_FEW_SERVERS and delivery.replicas > 1:
        return (
            f"; `delivery.replicas: {delivery.replicas}` needs a NATS cluster with so many servers that have room: "
            "write less there, or add servers"
        )
    if error_code in _NO_ROOM:
        return (
            f"; the job keeps up to `delivery.maxBytes: {delivery.max_bytes}` in "
            f"`delivery.storage: {delivery.storage}`: write less there, or give NATS more (`max_file_store`, "
            "`max_memory_store`, or the account's limits)"
        )
    return ""


def learner_consumer(subjects: Subjects, rank: Rank, owner: str, *, workers: int) -> ConsumerConfiguration:
    """The consumer that a learner makes anew when it connects: what was not acknowledged comes again.

    Args:
        subjects: Of the job.
        rank: Which of the learner's processes makes it. Consumers of a work queue must have nothing in common.
        owner: Who makes it, unlike everybody else: so that a learner sees whether it is still its own.
        workers: From how many workers batches may come, where there is more than one rank.
    """
    consumer = ConsumerConfiguration(
        durable_name=rank.consumer,
        ack_policy="explicit",
        ack_wait=ACK_WAIT_NS,
        max_ack_pending=-1,
        max_waiting=16,
        metadata={OWNER: owner},
    )
    if filters := rank.filters(subjects, workers):
        consumer["filter_subjects"] = filters
    return consumer


def subjects_of(job: CollectorJob) -> Subjects:
    """The subjects of a job."""
    return Subjects(namespace=job.metadata.namespace, job=job.metadata.name)


def _storage(storage: Storage) -> str:
    return {Storage.FILE: "file", Storage.MEMORY: "memory"}[storage]
