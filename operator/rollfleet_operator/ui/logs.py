"""The logs of pods, read from the API server with the viewer's own token: the operator has no right to read logs."""

import asyncio
from typing import Final

from rollfleet_operator.api import Api
from rollfleet_operator.cache import Cache
from rollfleet_operator.errors import ApiError
from rollfleet_operator.nats_port import JobKey
from rollfleet_ui.source import Viewer

AT_ONCE: Final = 8
"""The most logs that are read at a time: each may take a megabyte of memory."""


class PodLogs:
    """A reader of logs. `api` needs no credentials, as that of `ReviewGuard`."""

    def __init__(self, cache: Cache, api: Api) -> None:
        self._cache, self._api, self._limit = cache, api, asyncio.Semaphore(AT_ONCE)

    async def read(self, key: str, process: str, *, previous: bool, tail: int, viewer: Viewer) -> str:
        """Return the last lines of a pod's log, read with the viewer's rights; see `rollfleet_ui.source.Source`."""
        job = JobKey(*key.split("/"))
        found = [pod for pod in self._cache.pods(job) if pod.process == process]
        pods = sorted(found, key=lambda pod: (pod.created_s, pod.name))
        if len(pods) < 1 + previous:
            raise LookupError(f"{process} has no {'earlier ' if previous else ''}pod with a log")
        pod = pods[-2 if previous else -1]
        try:
            async with self._limit:
                container = pod.failed_init or pod.container
                return await self._api.log(job.namespace, pod.name, viewer.token or "", container=container, tail=tail)
        except ApiError as error:
            if error.status in (401, 403):
                raise PermissionError(f"you may not read the log of Pod {job.namespace}/{pod.name}: {error}") from error
            if error.status in (400, 404):  # 400: its container has not started
                raise LookupError(f"there is no log of {process}: {error}") from error
            raise OSError(str(error)) from error
