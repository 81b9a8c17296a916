"""A job's two JetStream streams and a learner's consumers, as NATS's own API takes them (durations in nanoseconds).

The batches stream is a work queue that refuses messages that do not fit: the refusal is the backpressure. Besides
`maxBytes` it holds at most `maxBatchesAhead` messages a subject. Chunk `i` of every batch of worker `w` has one
subject, so the server itself counts how many batches a worker is ahead of the learner, whichever process restarts. The
state stream keeps the last message of each subject, for processes that join late.

Both are bounded in bytes, in messages and in remembered message ids, because the memory of NATS is shared: no worker's
credentials may fill it. At a bound NATS refuses new messages, and keeps those that it has.

`provisioning` and `deprovisioning` plan the requests that create, update and delete the streams. They do no I/O: the
SDK and the operator each send the requests with their own client, and hand the replies back.
"""

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

from rollfleet_api.jetstream import EXPECTED_SEQUENCE, NO_CAPACITY, NOT_FOUND, TOO_FEW_SERVERS, JetStreamCode
from rollfleet_api.job import CollectorJob, Storage
from rollfleet_api.metadata import Metadata
from rollfleet_api.subjects import Subjects

SECOND_NS = 1_000_000_000
LEAST_DUPLICATE_WINDOW_NS = SECOND_NS // 10
"""NATS keeps each message id, of up to 64 KB, for this long and no shorter. The learner knows repeated batches by their
identity."""

LEAST_CHUNK_BYTES = 1 << 16
"""Pieces of a long message are larger, except for its last one: a server's largest message is not smaller."""

LARGEST_CHUNK_BYTES = (1 << 20) + (1 << 12)
"""The largest message of a batch, with its headers."""

SPARE_MESSAGES = 1024
LEAST_BATCH_BYTES = 1024
ACK_WAIT_NS = 30 * SECOND_NS
OWNER = "rollfleet.dev/learner"  # in the metadata of a learner's consumer
API = "$JS.API."  # the subjects of JetStream's API begin with it


Configuration: TypeAlias = dict[str, Any]
"""The configuration of a stream or a consumer, with the fields of NATS's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request to NATS."""

    subject: str
    data: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The server's reply to a request.

    Attributes:
        data: Its payload: JSON, or a stored message.
        error_code: JetStream's error code; 0: the request was accepted.
        description: JetStream's description of the error.
        status: The error's HTTP-like code; 503: JetStream is starting up.
    """

    data: bytes
    error_code: int = 0
    description: str = ""
    status: int = 0

    @classmethod
    def parse(cls, request: Request, data: bytes) -> Self:
        """Read a reply. A stored message (`DIRECT.GET`) is not JetStream's JSON and is kept as it is."""
        answer: Any = None if request.subject.startswith(f"{API}DIRECT.GET.") else json.loads(data)
        error = answer.get("error") if isinstance(answer, dict) else None
        if not isinstance(error, dict):
            return cls(data=data)
        return cls(
            data=data,
            error_code=int(error.get("err_code") or -1),
            description=str(error.get("description") or "no reason given"),
            status=int(error.get("code") or 0),
        )


class RequestRefused(Exception):
    """NATS refused a request of a plan.

    Attributes:
        subject: The subject of the request, without the prefix of JetStream's API.
        error_code: JetStream's error code.
        description: The server's reason, and how to fix it where that is known.
    """

    def __init__(self, request: Request, reply: Reply, advice: str = "") -> None:
        self.subject = request.subject.removeprefix(API)
        self.error_code, self.description = reply.error_code, f"{reply.description}{advice}"
        super().__init__(f"NATS refused {self.subject}: {self.description} (error {self.error_code})")


Plan: TypeAlias = Generator[Request, Reply, None]
"""Requests in their order; each wants its reply before the next one is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The bytes that NATS reserves for a job's streams."""

    batches: int
    state: int


def provisioning(job: CollectorJob, kept: Mapping[str, bytes], *, space: Space | None = None) -> Plan:
    """Plan the requests that create a job's streams or update them, and publish the job.

    Args:
        job: The job.
        kept: Messages of the job's state by subject. They are stored again where NATS has lost its state. The job
            itself is published last: processes that join wait for it, and then find everything else.
        space: The bytes to reserve; None: `maxBytes`, and no bound of the state, on a server of this job alone.

    Raises:
        RequestRefused: NATS refused a stream or a message.
    """
    subjects = subjects_of(job)
    created = yield from _update_or_create(job, state_stream(job, space.state if space else None))
    read_spec = Request(subject=f"{API}DIRECT.GET.{subjects.state_stream}.{subjects.spec}")
    stored = b"" if created else (yield read_spec).data
    if not stored:  # the state is new, or was not restored to its end
        for subject, data in kept.items():
            yield from _store_if_missing(subject, data)
    spec = json.dumps(published(job).dump()).encode()
    if stored != spec:  # else subscribers would take it for a change
        yield from _ask(Request(subject=subjects.spec, data=spec))


def published(job: CollectorJob) -> CollectorJob:
    """Return the part of a job that its processes read from NATS.

    It has no pod templates: workers run other code than the learner, and must not see the variables of its container.
    """
    known = {"name", "namespace", "uid", "generation"}
    metadata = Metadata.model_validate(job.metadata.model_dump(include=known), by_name=True)
    spec = job.spec.model_copy(update={"template": {}, "learner": None})
    return job.model_copy(update={"metadata": metadata, "spec": spec, "status": None})


def deprovisioning(subjects: Subjects) -> Plan:
    """Plan the requests that delete a job's streams and all their messages.

    The state goes first: a learner that loses its consumer looks for the state, to tell a deleted job from a successor.

    Raises:
        RequestRefused: NATS refused one of them.
    """
    yield from _ask(Request(subject=f"{API}STREAM.DELETE.{subjects.state_stream}"), accept=NOT_FOUND)


def _ask(request: Request, *, accept: tuple[int, ...] = (), advice: Mapping[int, str] | None = None) -> Plan:
    reply = yield request
    if reply.error_code and reply.error_code not in accept:
        raise RequestRefused(request, reply, (advice or {}).get(reply.error_code, ""))


def _update_or_create(job: CollectorJob, stream: Configuration) -> Generator[Request, Reply, bool]:
    """Return whether the stream was created. In this order: creating an existing stream would reserve space twice."""
    data, advice = json.dumps(stream).encode(), _advice(job)
    update = Request(subject=f"{API}STREAM.UPDATE.{stream['name']}", data=data)
    reply = yield update
    if reply.error_code == JetStreamCode.STREAM_NOT_FOUND:
        yield from _ask(Request(subject=f"{API}STREAM.CREATE.{stream['name']}", data=data), advice=advice)
        return True
    if reply.error_code:
        raise RequestRefused(update, reply, advice.get(reply.error_code, ""))
    return False


def _store_if_missing(subject: str, data: bytes) -> Plan:
    """Leave an existing message alone: it is newer."""
    request = Request(subject=subject, data=data, headers={EXPECTED_SEQUENCE: "0"})
    yield from _ask(request, accept=(JetStreamCode.WRONG_LAST_SEQUENCE,))


def _advice(job: CollectorJob) -> dict[int, str]:
    """How to fix a job whose stream NATS refused: the end of an error's text, by error code."""
    delivery = job.spec.delivery
    too_large = (
        f"; the job stores up to `delivery.maxBytes: {delivery.max_bytes}` in `delivery.storage: {delivery.storage}`: "
        "lower it, or give NATS more (`max_file_store`, `max_memory_store`, or the account's limits)"
    )
    advice: dict[int, str] = dict.fromkeys(NO_CAPACITY, too_large)
    if delivery.replicas > 1:
        too_few = (
            f"; `delivery.replicas: {delivery.replicas}` needs a NATS cluster of that many servers with free space: "
            "lower it, or add servers"
        )
        advice |= dict.fromkeys(TOO_FEW_SERVERS, too_few)
    return advice


def state_stream(job: CollectorJob, state_bytes: int | None = None) -> Configuration:
    """The stream that keeps the last message of each other subject, in at most `state_bytes`."""
    subjects = subjects_of(job)
    # Of each worker: lease, heartbeat, and two small versions for it alone, with their manifest. The rest is weights.
    most = -1 if state_bytes is None else 5 * job.spec.workers + state_bytes // LEAST_CHUNK_BYTES + SPARE_MESSAGES
    return {
        "name": subjects.state_stream,
        "subjects": subjects.state_subjects,
        "storage": _storage(job.spec.delivery.storage),
        "retention": "limits",
        "discard": "new",  # a message on a known subject replaces the one before, at the bounds too
        "discard_new_per_subject": False,
        "max_bytes": -1 if state_bytes is None else state_bytes,
        "max_msgs": most,
        "max_msgs_per_subject": 1,
        "max_msg_size": -1,  # pieces of weights are as large as the server allows
        "duplicate_window": LEAST_DUPLICATE_WINDOW_NS,
        "allow_direct": True,
        "num_replicas": job.spec.delivery.replicas,
    }


def subjects_of(job: CollectorJob) -> Subjects:
    """The subjects of a job."""
    return Subjects(namespace=job.metadata.namespace, job=job.metadata.name)


def _storage(storage: Storage) -> str:
    return {Storage.FILE: "file", Storage.MEMORY: "memory"}[storage]
