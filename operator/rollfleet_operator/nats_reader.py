"""Reads a job's heartbeats from NATS, and leaves NATS when the job's server goes."""

from dataclasses import replace
from math import inf

from rollfleet_api.job import CollectorJob
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.job_memory import JobMemory
from rollfleet_operator.nats_port import JobKey, NatsPort


async def read_heartbeats(
    nats: NatsPort, job: CollectorJob, memory: JobMemory, now_s: float, *, serves: bool
) -> NatsUnavailable | None:
    """Read a job's heartbeats into `memory`, which keeps the last ones while NATS is away.

    `serves`: whether the job needs NATS, and its server runs.

    Returns:
        The error of NATS, which stops nothing else.
    """
    since_s, memory.heartbeats = memory.heartbeats.since_s, replace(memory.heartbeats, since_s=inf)
    key = JobKey(job.metadata.namespace, job.metadata.name)
    try:
        if serves:
            memory.heartbeats = replace(await nats.heartbeats(job), since_s=min(since_s, now_s))
        else:
            await (nats.remove(key) if job.has_ended else nats.disconnect(key))
    except NatsUnavailable as error:
        return error
    return None
