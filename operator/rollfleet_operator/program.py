"""The running operator: tasks that reconcile jobs from a queue, and watches that fill it. kopf starts and stops it."""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final

import kopf

from rollfleet_api.job import KIND
from rollfleet_operator.api import Api, without_credentials
from rollfleet_operator.cache import WATCHED, Cache
from rollfleet_operator.errors import ApiError
from rollfleet_operator.installation_key import KEY_BYTES
from rollfleet_operator.installation_secret import installation_key
from rollfleet_operator.leadership import Leadership
from rollfleet_operator.metrics import Metrics
from rollfleet_operator.nats_access import NatsAccess
from rollfleet_operator.nats_port import JobKey, NatsPort
from rollfleet_operator.reconcile import Reconciler
from rollfleet_operator.reconciling import Reconciling
from rollfleet_operator.server import probes
from rollfleet_operator.settings import Settings
from rollfleet_operator.ui.guard import ReviewGuard
from rollfleet_operator.ui.logs import PodLogs
from rollfleet_operator.ui.shown_jobs import ShownJobs
from rollfleet_operator.watch import Watch
from rollfleet_operator.work_queue import WorkQueue
from rollfleet_ui.server import page, served

log = logging.getLogger(__name__)

PODS_S: Final = 0.2
"""Seconds between a pod's change and its job's reconciliation: a job that starts has thousands of changes."""

CANCEL_AGAIN_S: Final = 1.0
NOT_READY_S: Final = 5.0
"""Seconds between looks at all jobs until they are listed."""


class Operator:
    """The tasks of the operator, and their shared state. kopf calls `start` and `stop` in its event loop.

    Args:
        connect: Returns the API server's address and credentials.
        open_nats: Returns the connections to NATS. It must return even if NATS is away, and connect later by itself.
        access: The way to the NATS of jobs; None: as the settings say, with the key in `settings.key_secret`.

    Attributes:
        port: The port of health and metrics.
    """

    def __init__(
        self,
        settings: Settings,
        connect: Callable[[], kopf.ConnectionInfo],
        open_nats: Callable[[NatsAccess], NatsPort],
        access: NatsAccess | None = None,
    ) -> None:
        self._access = access
        self.settings, self.connect, self._open_nats = settings, connect, open_nats
        self.cache, self.queue, self.watches = Cache(), WorkQueue[JobKey](), list[Watch]()
        self.metrics = Metrics(
            self.cache, self.queue, self.watches, lambda: self._nats.dropped_messages if self._nats else 0
        )
        self.port = settings.port
        self._tasks: list[asyncio.Task[None]] = []
        self._leadership: Leadership | None = None
        self._api: Api | None = None
        self._nats: NatsPort | None = None
        self._http = AsyncExitStack()

    async def start(self) -> None:
        """Start the tasks, which wait for servers that cannot be reached yet. An operator of several waits to lead."""
        health = probes(self.metrics, alive=self.alive, ready=self.ready)
        self.port = await self._http.enter_async_context(served(health, port=self.settings.port, host=None))
        if self.settings.lease:
            where, _, name = self.settings.lease.partition("/")
            self._leadership = Leadership(Api(self.connect), where, name, self.settings.pod)
            await self._leadership.acquire()
        self._api = Api(self.connect, self._verify)
        access = self._access or await self._access_of_settings(self._api)
        self._nats = self._open_nats(access)
        jobs = None
        if self.settings.ui_port is not None:
            viewers = await self._http.enter_async_context(Api(lambda: without_credentials(self.connect())))
            jobs = ShownJobs(self.cache, PodLogs(self.cache, viewers))
            shown = served(page(jobs, ReviewGuard(viewers)), port=self.settings.ui_port, host=None)
            await self._http.enter_async_context(shown)
        reconciler = Reconciler(self._api, self.cache, self._nats, access, self.settings, page=jobs)
        reconciling = Reconciling(reconciler.reconcile, self.queue, self.metrics, self._verify)
        for namespace in self.settings.namespaces or (None,):
            self.watches += [Watch(self._api, self.cache, kind, namespace, self._changed) for kind in WATCHED]
        loops = [self._keep_resyncing(), *(watch.follow() for watch in self.watches)]
        loops += [reconciling.run() for _ in range(self.settings.workers)]
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def stop(self) -> None:
        """Stop. Reconciliations in progress are cancelled: the next operator's first ones repeat them."""
        # Again: `asyncio.wait_for` of Python 3.11 loses a cancellation if what it waits for ends just then.
        while pending := [task for task in self._tasks if not task.done()]:
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.queue.close()
        await self._http.aclose()
        if self._nats:
            await self._nats.close()
        if self._api:
            await self._api.close()
        if self._leadership:  # when nothing writes any more
            await self._leadership.release()

    def alive(self) -> bool:
        """Return whether all tasks run, or another operator leads."""
        stopped = self._leadership is not None and self._leadership.stopped
        return not stopped and not any(task.done() for task in self._tasks)

    def ready(self) -> bool:
        """Return whether all jobs are listed, except those of namespaces that refuse it, or another operator leads."""
        if self._leadership and not self._leadership.leads:
            return self._leadership.answered
        refused = {watch.namespace for watch in self.watches if watch.refused}
        listed = [watch.listed for watch in self.watches if watch.namespace not in refused]
        return bool(listed) and all(listed)

    def _verify(self) -> None:
        if self._leadership:
            self._leadership.verify()

    async def _access_of_settings(self, api: Api) -> NatsAccess:
        settings, problem = self.settings, ""
        while True:
            try:
                key = await installation_key(api, settings.key_secret, entropy=os.urandom(KEY_BYTES))
                if settings.nats_url and settings.nats_external:
                    return NatsAccess.on(settings.nats_url, settings.nats_external, key)
                return NatsAccess(key=key, tls=settings.nats_tls)
            except (ApiError, OSError) as error:  # the Secret, or a mounted file, may still come
                if problem != str(error):
                    problem = str(error)
                    log.warning("the access to NATS: %s; retrying", problem)
            await asyncio.sleep(NOT_READY_S)

    async def _keep_resyncing(self) -> None:
        while True:
            try:
                for key in filter(self._is_listed, self.cache.jobs()):
                    self.queue.add(key)
            except Exception:
                log.exception("looking at all jobs failed: error in the operator")
            await asyncio.sleep(self.settings.resync_s if self.ready() else NOT_READY_S)

    def _changed(self, kind: str, key: JobKey) -> None:
        if self._is_listed(key):
            if kind == "Pod":
                self.queue.add_later(key, PODS_S)
            else:
                self.queue.add(key, edited=kind == KIND)

    def _is_listed(self, key: JobKey) -> bool:
        """Return whether the job's namespace is listed: elsewhere, jobs are unknown and not deleted."""
        listed = [watch.listed for watch in self.watches if watch.namespace in (None, key.namespace)]
        return bool(listed) and all(listed)


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: Operator, **_: Any) -> None:
    """Configure kopf, and start. The operator watches objects itself (see `watch`)."""
    settings.posting.enabled = False  # the operator writes its own events
    settings.scanning.disabled = True  # kopf watches nothing
    await memo.start()


@kopf.on.login()
def log_in(memo: Operator, **_: Any) -> kopf.ConnectionInfo:
    """Return the API server's address and credentials."""
    return memo.connect()


@kopf.on.cleanup()
async def stop(memo: Operator, **_: Any) -> None:
    """Stop."""
    await memo.stop()
