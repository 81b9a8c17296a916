"""A job's JetStream stream, as NATS's own API takes it (durations in nanoseconds).

It keeps the last message of each subject, for processes that join late: the spec, control, leases, heartbeats, weights.
Batches are not stored. The stream is in the memory of one server. If it is lost, those who wrote its messages store
them again.

`provisioning` and `deprovisioning` plan the requests that create, update and delete the stream. They do no I/O: the
SDK and the operator each send the requests with their own client, and hand the replies back.
"""

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

from rollfleet_api.jetstream import EXPECTED_SEQUENCE, NO_CAPACITY, JetStreamCode
from rollfleet_api.job import CollectorJob
from rollfleet_api.metadata import Metadata
from rollfleet_api.placement import NatsSpec
from rollfleet_api.subjects import Subjects

LEAST_DUPLICATE_WINDOW_NS = 100_000_000
"""NATS keeps each message id, of up to 64 KB, for this long and no shorter."""

API = "$JS.API."  # the subjects of JetStream's API begin with it


Configuration: TypeAlias = dict[str, Any]
"""The configuration of a stream, with the fields of NATS's own."""


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


_TOO_LITTLE = (
    "; the server has no memory left for the job's state: give it more (on a cluster `spec.nats.resources.limits`)"
)

Plan: TypeAlias = Generator[Request, Reply, None]
"""Requests in their order; each wants its reply before the next one is known."""


def provisioning(job: CollectorJob, kept: Mapping[str, bytes]) -> Plan:
    """Plan the requests that create a job's stream or update it, and publish the job.

    The stream of an earlier job of the same name (another `metadata.uid`) is made anew, empty.

    Args:
        job: The job.
        kept: Messages of the job's state by subject. They are stored again where NATS has lost its state. The job
            itself is published last: processes that join wait for it, and then find everything else.

    Raises:
        RequestRefused: NATS refused the stream or a message.
    """
    subjects = subjects_of(job)
    created = yield from _update_or_create(state_stream(job))
    read_spec = Request(subject=f"{API}DIRECT.GET.{subjects.state_stream}.{subjects.spec}")
    stored = b"" if created else (yield read_spec).data
    if stored and json.loads(stored).get("metadata", {}).get("uid") != job.metadata.uid:  # an earlier job of this name
        yield from deprovisioning(subjects)
        yield from _update_or_create(state_stream(job))
        stored = b""
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
    spec = job.spec.model_copy(update={"template": {}, "learner": None, "nats": NatsSpec()})
    return job.model_copy(update={"metadata": metadata, "spec": spec, "status": None})


def deprovisioning(subjects: Subjects) -> Plan:
    """Plan the request that deletes a job's stream and all its messages.

    Raises:
        RequestRefused: NATS refused it.
    """
    delete = Request(subject=f"{API}STREAM.DELETE.{subjects.state_stream}")
    yield from _ask(delete, accept=JetStreamCode.STREAM_NOT_FOUND)


def _ask(request: Request, *, accept: JetStreamCode | None = None) -> Plan:
    reply = yield request
    if reply.error_code and reply.error_code != accept:
        raise RequestRefused(request, reply)


def _update_or_create(stream: Configuration) -> Generator[Request, Reply, bool]:
    """Return whether the stream was created. One of an earlier version of Rollfleet gets this configuration."""
    update, create = (
        Request(subject=f"{API}STREAM.{verb}.{stream['name']}", data=json.dumps(stream).encode())
        for verb in ("UPDATE", "CREATE")
    )
    reply = yield update
    if missing := reply.error_code == JetStreamCode.STREAM_NOT_FOUND:
        reply = yield create
    if reply.error_code:
        full = reply.error_code in NO_CAPACITY
        raise RequestRefused(create if missing else update, reply, _TOO_LITTLE if full else "")
    return missing


def _store_if_missing(subject: str, data: bytes) -> Plan:
    """Leave an existing message alone: it is newer."""
    request = Request(subject=subject, data=data, headers={EXPECTED_SEQUENCE: "0"})
    yield from _ask(request, accept=JetStreamCode.WRONG_LAST_SEQUENCE)


def state_stream(job: CollectorJob) -> Configuration:
    """The stream that keeps the last message of each subject. It has no bound but the server's memory."""
    subjects = subjects_of(job)
    return {
        "name": subjects.state_stream,
        "subjects": subjects.state_subjects,
        "storage": "memory",
        "max_msgs_per_subject": 1,
        "duplicate_window": LEAST_DUPLICATE_WINDOW_NS,
        "allow_direct": True,
    }


def subjects_of(job: CollectorJob) -> Subjects:
    """The subjects of a job."""
    return Subjects(namespace=job.metadata.namespace, job=job.metadata.name)
