"""The jobs on NATS: published, published again when NATS may have lost them, and left when their servers go."""

from dataclasses import replace
from math import inf

from rollfleet_api.job import CollectorJob
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.job_memory import OnNats
from rollfleet_operator.nats_port import JobKey, NatsPort


async def refresh(
    nats: NatsPort, job: CollectorJob, memory: OnNats, now_s: float, *, serves: bool
) -> NatsUnavailable | None:
    """Publish a job that NATS may lack, and read its heartbeats into `memory`.

    `serves`: whether the job needs NATS, and its server runs.

    Returns:
        The error of NATS, which stops nothing else.
    """
    since_s, memory.heartbeats = memory.heartbeats.since_s, replace(memory.heartbeats, since_s=inf)
    try:
        if not serves:
            memory.published, key = None, JobKey(job.metadata.namespace, job.metadata.name)
            await (nats.remove(key) if job.has_ended else nats.disconnect(key))
            return None
        if not job.has_ended and memory.published != job.metadata.generation:
            memory.published = None
            await nats.publish(job)
            memory.published = job.metadata.generation
        memory.heartbeats = replace(await nats.heartbeats(job), since_s=min(since_s, now_s))
    except NatsUnavailable as error:
        memory.published = None  # it may come back without its data
        return error
    return None
