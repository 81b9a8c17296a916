"""The job as its processes know it: what its owner sends them, and mounts into their pods."""

import json
from typing import Final

from rollfleet_api.env_servers import EnvServersSpec
from rollfleet_api.job import CollectorJob
from rollfleet_api.metadata import Metadata
from rollfleet_api.placement import NatsSpec
from rollfleet_api.status import BatchesStatus, CollectorJobStatus, ConditionType
from rollfleet_api.subjects import Subjects

DELETED: Final = b""
"""What the owner of a deleted job sends in its place."""

_ENDS: Final = (ConditionType.COMPLETE, ConditionType.FAILED)


def published(job: CollectorJob, *, counts: bool = False) -> CollectorJob:
    """Return the part of a job that its processes read.

    It has no pod templates: workers run other code than the learner, and must not see the variables of its container.

    Args:
        job: The job.
        counts: Whether the status is kept as far as a new learner continues it, or sees that the job has ended.
    """
    known = {"name", "namespace", "uid", "generation"}
    metadata = Metadata.model_validate(job.metadata.model_dump(include=known), by_name=True)
    servers = job.spec.env.servers and EnvServersSpec(replicas=job.spec.env.servers.replicas)
    env = job.spec.env.model_copy(update={"servers": servers})
    spec = job.spec.model_copy(update={"env": env, "template": {}, "learner": None, "nats": NatsSpec()})
    status = job.status if counts else None
    if status:
        status = CollectorJobStatus(
            frames=status.frames,
            published_version=status.published_version,
            batches=BatchesStatus(delivered=status.batches.delivered),
            next_incarnation=status.next_incarnation,
            env_version=status.env_version,
            conditions=[each for each in status.conditions if each.type in _ENDS],
        )
    return job.model_copy(update={"metadata": metadata, "spec": spec, "status": status})


def published_bytes(job: CollectorJob, *, counts: bool = False) -> bytes:
    """Return the same as its message, and as the content of its file."""
    return json.dumps(published(job, counts=counts).dump()).encode()


def subjects_of(job: CollectorJob) -> Subjects:
    """The subjects of a job."""
    return Subjects(namespace=job.metadata.namespace, job=job.metadata.name, uid=job.metadata.uid or "")
