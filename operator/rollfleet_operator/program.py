"""The running operator: workers that take jobs from a queue, and the loops that fill it. kopf brings the watches."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Final, Self

import kopf

from rollfleet_api.job import KIND
from rollfleet_operator import names
from rollfleet_operator.api import Api
from rollfleet_operator.cache import Cache
from rollfleet_operator.errors import OperatorError
from rollfleet_operator.kinds import WATCHED
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.metrics import Metrics
from rollfleet_operator.nats_port import JobKey, NatsPort
from rollfleet_operator.reconcile import Reconciler, ReconcileResult
from rollfleet_operator.server import Server
from rollfleet_operator.settings import Settings
from rollfleet_operator.work_queue import WorkQueue

log = logging.getLogger(__name__)

CANARY: Final = JobKey("", "")
"""Goes through the queue like a job, so that a probe sees whether jobs get through, also where there are none."""

CANARY_INTERVAL_S: Final = 5.0
STUCK_S: Final = 60.0


class Operator:
    """All that runs, and what it shares. `start` and `stop` are called by kopf, in its event loop.

    Args:
        settings: What it was told.
        connect: How it gets in to the API server.
        open_wire: Connects to NATS. It must return although NATS is away, and mend that by itself.
    """

    def __init__(
        self, settings: Settings, connect: Callable[[], kopf.ConnectionInfo], open_wire: Callable[[], NatsPort]
    ) -> None:
        self.settings, self.connect, self._open_wire = settings, connect, open_wire
        self.cache: Cache = Cache()
        self.queue: WorkQueue[JobKey] = WorkQueue()
        self.metrics = Metrics(self.cache, self.queue)
        self.server = Server(self.settings.port, self.metrics, self.alive, lambda: self._listed)
        self._tasks: list[asyncio.Task[None]] = []
        self._listed = False
        self._progress_s = time.monotonic()
        self._api: Api | None = None
        self._wire: NatsPort | None = None

    def __copy__(self) -> Self:
        """Itself: kopf gives each object's handlers a copy of what it was given, made when it first saw the object.

        A copy would never learn that the first list is over, and would pass on nothing of that object for ever.
        """
        return self

    async def start(self) -> None:
        """Begin. Returns at once; what cannot be reached yet is waited for in the background."""
        self._api, self._wire = Api(self.connect), self._open_wire()
        reconciler = Reconciler(self._api, self.cache, self._wire, self.settings)
        await self.server.start()
        self._tasks = [asyncio.create_task(self._keep_listing(self._api, reconciler))]
        self._tasks += [asyncio.create_task(self._keep_sending_canaries())]
        self._tasks += [asyncio.create_task(self._keep_looking(reconciler)) for _ in range(self.settings.workers)]

    async def stop(self) -> None:
        """End. A look that is under way is cut short: the next operator's first look makes up for it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.queue.close()
        await self.server.stop()
        if self._wire:
            await self._wire.close()
        if self._api:
            await self._api.close()

    def seen(self, kind: str, manifest: Manifest, *, gone: bool) -> None:
        """A watch told of an object."""
        manifest = {**manifest, "kind": kind, "metadata": {**manifest["metadata"]}}
        key = self.cache.remove(manifest) if gone else self.cache.put(manifest)
        if key is not None and self._listed:
            self.queue.add(key)

    def alive(self) -> bool:
        """Whether what is put into the queue comes out of it."""
        return time.monotonic() - self._progress_s < STUCK_S

    async def _keep_looking(self, reconciler: Reconciler) -> None:
        while True:
            key = await self.queue.take()
            if key == CANARY:
                self.queue.done(key)
            else:
                await self._look(reconciler, key)
            self._progress_s = time.monotonic()

    async def _look(self, reconciler: Reconciler, key: JobKey) -> None:
        with self.metrics.timed() as outcome:
            try:
                look = await reconciler.reconcile(key)
            except OperatorError as error:
                look = ReconcileResult(problem=error)
            except Exception:
                outcome.failed()
                log.exception("%s/%s: a mistake of the operator's; again in %.1f s", *key, self.queue.failed(key))
                return
            if look.problem is None:
                self.queue.done(key, look.again_s)
                return
            outcome.failed()
            log.warning("%s/%s: %s; again in %.1f s", *key, look.problem, self.queue.failed(key))
            if look.again_s is not None:
                self.queue.add_later(key, look.again_s)

    async def _keep_sending_canaries(self) -> None:
        while True:
            self.queue.add(CANARY)
            await asyncio.sleep(CANARY_INTERVAL_S)

    async def _keep_listing(self, api: Api, reconciler: Reconciler) -> None:
        doubted_s = -math.inf
        while True:
            try:
                await self._list(api)
                if time.monotonic() - doubted_s >= self.settings.doubt_s:
                    reconciler.doubt()
                    doubted_s = time.monotonic()
                self._listed = True
                for key in self.cache.jobs():
                    self.queue.add(key)
                for key in await reconciler.orphans():
                    self.queue.add(key)
            except OperatorError as error:
                log.warning("could not look at everything: %s", error)
            except Exception:
                log.exception("could not look at everything: a mistake of the operator's")
            await asyncio.sleep(self.settings.resync_s if self._listed else CANARY_INTERVAL_S)

    async def _list(self, api: Api) -> None:
        for kind in (KIND, *WATCHED):
            labels = "" if kind == KIND else names.SELECTOR
            for namespace in self.settings.namespaces or (None,):
                listing = await api.list(kind, namespace, labels=labels)
                for key in self.cache.replace(kind, listing.items, listing.resource_version, namespace):
                    if self._listed:  # before, a look would take what was not listed yet for not there
                        self.queue.add(key)
