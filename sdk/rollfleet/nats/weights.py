"""A worker's weights: the newest complete version, from broadcast messages or, if some were missed, from storage."""

import asyncio
import logging
import threading
from collections.abc import Callable

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from rollfleet.errors import RollfleetError, WeightMismatch, WireError
from rollfleet.nats.link import Link, unpack_or_skip
from rollfleet.nats.polling import RETRY_WAIT_S, insist
from rollfleet.nats.state import read_bytes, read_state
from rollfleet.schemes import Layout
from rollfleet.transports.worker_side import Weights
from rollfleet.wire.buffer_pool import BufferPool
from rollfleet.wire.weight_chunks import MAX_PENDING, WeightAssembler
from rollfleet_api.messages import Manifest

log = logging.getLogger(__name__)


class NatsWeightsInbox:
    """Follows a job's weights. The newest version wins: one that was overtaken on its way is dropped.

    Args:
        link: The worker's connection.
        worker: Index of the worker: some versions are for it alone. None: only versions for all workers.
        layout: The layout of the worker's policy.
        changed: Notified when a newer version is complete, or when one does not fit.
        wanted: Returns whether a version is followed; others are passed over.
    """

    def __init__(
        self,
        link: Link,
        worker: int | None,
        layout: Layout,
        changed: threading.Condition,
        *,
        wanted: Callable[[int], bool] = lambda version: True,
    ) -> None:
        self._link, self._layout, self._changed, self._wanted = link, layout, changed, wanted
        self._subjects = [link.subjects.weights_of(each) for each in dict.fromkeys((None, worker))]
        # The pool lends a version's memory again once a newer version has replaced it and it is not being loaded.
        self._assembler = WeightAssembler(layout.total_bytes, BufferPool(MAX_PENDING).take)
        self._manifests: asyncio.Queue[Manifest] = asyncio.Queue()
        self._newest: Weights | None = None
        self._mismatch: RollfleetError | None = None

    def newest(self) -> Weights | None:
        """Return the newest complete version; None: none has come yet.

        Raises:
            WeightMismatch: The newest version does not fit this policy.
        """
        if self._mismatch:
            raise self._mismatch
        return self._newest

    async def start(self) -> None:
        """Subscribe, and fetch the newest stored version."""
        for subjects in self._subjects:
            await self._link.client.subscribe(
                subjects.all, cb=self._on_message, pending_bytes_limit=0, pending_msgs_limit=0
            )
        self._link.begin(self._finish_manifests())
        self._link.on_reconnect(self.catch_up)
        await insist(self.catch_up)

    async def catch_up(self) -> None:
        """Look for a newer version in the state stream."""
        for subjects in self._subjects:
            self._note(await read_state(self._link, subjects.manifest, Manifest))

    async def _on_message(self, message: Msg) -> None:
        if message.subject.endswith(".manifest"):
            self._note(unpack_or_skip(Manifest, message.data, message.subject))
            return
        try:
            self._assembler.add(message.data)
        except WireError as error:
            log.warning("skipped an invalid chunk of weights: %s", error)

    def _note(self, manifest: Manifest | None) -> None:
        if manifest and self._wanted(manifest.version):
            self._manifests.put_nowait(manifest)

    async def _finish_manifests(self) -> None:
        while True:
            manifest = await self._manifests.get()
            while not self._manifests.empty():  # a fetched one may come after a newer broadcast one
                manifest = max(manifest, self._manifests.get_nowait(), key=lambda each: each.version)
            if self._newest and manifest.version <= self._newest.version:
                continue
            try:
                self._layout.check(manifest.parameters)
                for index in self._assembler.missing(manifest):
                    await self._fetch(manifest, index)
                data = self._assembler.finish(manifest)
            except WeightMismatch as error:
                self._mismatch = error
            except (WireError, NatsError, TimeoutError, OSError) as error:
                # Overtaken while it was fetched, or NATS is away: fetch the version that is newest then.
                log.debug("weights %d: %r; trying again", manifest.version, error)
                await asyncio.sleep(RETRY_WAIT_S)
                self._link.begin(insist(self.catch_up))
                continue
            else:
                self._newest = Weights(version=manifest.version, data=data, flags=manifest.flags)
            with self._changed:
                self._changed.notify_all()

    async def _fetch(self, manifest: Manifest, index: int) -> None:
        for subjects in self._subjects:  # a chunk names its version: the assembler ignores one of another version
            data = await read_bytes(self._link, subjects.chunk(manifest.version, index))
            if data is not None:
                self._assembler.add(data)
