"""Writes of jobs' statuses and events: a status once a reconciliation at most, its events only after it."""

import logging
from collections.abc import Callable
from typing import Final

from rollfleet_api.job import API_VERSION, KIND, CollectorJob, CollectorJobStatus
from rollfleet_api.state.status import is_transition, not_reconciled, ours
from rollfleet_operator.api import Api
from rollfleet_operator.cache import Cache
from rollfleet_operator.errors import ApiError
from rollfleet_operator.events import Event, event, events_between
from rollfleet_operator.job_memory import JobMemory
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.nats_port import JobKey

log = logging.getLogger(__name__)

WAITS_S: Final = 30.0
"""The least seconds between writes of a status in which only the time spent waiting, and its sentence, have changed."""


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
        now_s, metadata, transition = self._clock(), job.metadata, is_transition(job.status, now)
        if job.status is not None:
            known = ours(job.status)
            alike = now == known.model_copy(update={"waits": now.waits, "bottleneck": now.bottleneck})
            if now == known or (alike and now_s - memory.written_s < WAITS_S):
                return None
        key, uid = JobKey(metadata.namespace, metadata.name), str(metadata.uid)
        if (wait_s := await self._put(key, uid, now, memory, at_once=transition)) is not None:
            return wait_s
        for announcement in memory.throttle.admit(events_between(job.status, now), now_s):
            await self._announce(job, announcement)
        return 0.0 if transition else None

    async def _announce(self, job: CollectorJob, announcement: Event) -> None:
        try:
            await self._api.create(event(job, announcement, self._clock()))
        except ApiError as error:
            log.warning("%s: event %s was not written: %s", job.key, announcement.reason, error)

    async def _put(
        self, key: JobKey, uid: str, now: CollectorJobStatus, memory: JobMemory, *, at_once: bool
    ) -> float | None:
        """Write a status, unless another job has taken the name; return the seconds until it is due, if it is not."""
        now_s, held = self._clock(), self._cache.job(key)
        due_s = memory.written_s + self._interval_s - now_s
        if due_s > 0 and not at_once:
            return due_s
        if held is None or held["metadata"]["uid"] != uid:
            raise ApiError(409, "Conflict", f"{KIND} {key.name} has been replaced")
        fields = now.model_dump(mode="json", by_alias=True, exclude_none=True)
        # The API server stores 0.0 as 0, and would see a difference between them at the next apply of the job.
        whole = {key: int(value) for key, value in fields.items() if isinstance(value, float) and value.is_integer()}
        manifest = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            # The API server does not check the UID here; it checks the version.
            "metadata": {**key._asdict(), "resourceVersion": held["metadata"]["resourceVersion"]},
            "status": fields | whole,
        }
        self._cache.put(await self._api.apply(manifest, "status"))
        memory.written_s = now_s
        return None

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
        key = JobKey(metadata["namespace"], metadata["name"])
        return await self._put(key, metadata["uid"], now, memory, at_once=False)
