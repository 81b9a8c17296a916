"""Writes of jobs' statuses and events: a status once a reconciliation at most, its events only after it."""

import logging
from collections.abc import Callable
from typing import Final

from rollfleet_api.job import API_VERSION, KIND, CollectorJob, CollectorJobStatus
from rollfleet_operator.api import Api
from rollfleet_operator.cache import Cache
from rollfleet_operator.errors import ApiError
from rollfleet_operator.events import Event, event, events_between
from rollfleet_operator.job_memory import JobMemory
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.nats_port import JobKey
from rollfleet_operator.status import is_transition, not_reconciled, ours

log = logging.getLogger(__name__)

WAITS_S: Final = 30.0
"""The least seconds between writes of a status in which only the time spent waiting has changed."""


class StatusWriter:
    """The writer of all jobs' statuses and events.

    `cache` gets the written jobs. At least `interval_s` pass between writes of a status without changed conditions.
    `clock` returns seconds since the epoch.
    """

    def __init__(self, api: Api, cache: Cache, interval_s: float, clock: Callable[[], float]) -> None:
        self._api, self._cache, self._interval_s, self._clock = api, cache, interval_s, clock

    async def write(self, job: CollectorJob, now: CollectorJobStatus, memory: JobMemory) -> float | None:
        """Write the status if it has changed and is due.

        Returns:
            Seconds until the next reconciliation: until the write is due, or 0 after a changed condition, which may
            lead to more changes; None: no need of one.
        """
        now_s = self._clock()
        if job.status is not None:
            known = ours(job.status)
            alike = now == known.model_copy(update={"waits": now.waits})
            if now == known or (alike and now_s - memory.written_s < WAITS_S):
                return None
        due_s = memory.written_s + self._interval_s - now_s
        if due_s > 0 and not is_transition(job.status, now):
            return due_s
        await self._put_status(job.metadata.namespace, job.metadata.name, str(job.metadata.uid), now)
        memory.written_s = now_s
        for announcement in memory.throttle.admit(events_between(job.status, now), now_s):
            await self._announce(job, announcement)
        return 0.0 if is_transition(job.status, now) else None

    async def _announce(self, job: CollectorJob, announcement: Event) -> None:
        try:
            await self._api.create(event(job, announcement, self._clock()))
        except ApiError as error:
            log.warning("%s: event %s was not written: %s", job.key, announcement.reason, error)

    async def _put_status(self, namespace: str, name: str, uid: str, now: CollectorJobStatus) -> None:
        """Write a status, unless another job has taken the name."""
        held = self._cache.job(JobKey(namespace, name))
        if held is None or held["metadata"]["uid"] != uid:
            raise ApiError(409, "Conflict", f"{KIND} {name} has been replaced")
        fields = now.model_dump(mode="json", by_alias=True, exclude_none=True)
        # The API server stores 0.0 as 0, and would see a difference between them at the next apply of the job.
        whole = {key: int(value) for key, value in fields.items() if isinstance(value, float) and value.is_integer()}
        manifest = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            # The API server does not check the UID here; it checks the version.
            "metadata": {"namespace": namespace, "name": name, "resourceVersion": held["metadata"]["resourceVersion"]},
            "status": fields | whole,
        }
        self._cache.put(await self._api.apply(manifest, "status"))

    async def report(self, manifest: Manifest, reason: str, message: str, memory: JobMemory) -> float | None:
        """Write into the status why a job cannot be reconciled, and change nothing else.

        It was stored before the API server had a rule, or the operator has a defect.

        Returns:
            Seconds until the write is due; None: nothing to write.
        """
        now_s, metadata = self._clock(), manifest["metadata"]
        now = not_reconciled(manifest.get("status") or {}, metadata.get("generation"), reason, message, now_s)
        if now is None:
            return None
        due_s = memory.written_s + self._interval_s - now_s
        if due_s > 0:
            return due_s
        await self._put_status(metadata["namespace"], metadata["name"], metadata["uid"], now)
        memory.written_s = now_s
        return None
