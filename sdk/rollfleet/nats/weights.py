"""A worker's weights: the newest complete version, from what is broadcast, or fetched where something was missed."""

import asyncio
import logging
import threading

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from rollfleet.errors import RollfleetError, WeightMismatch, WireError
from rollfleet.nats.link import RETRY_WAIT_S, Link, insist
from rollfleet.nats.state import read_bytes, read_state
from rollfleet.schemes import Layout
from rollfleet.transports.worker_side import Weights
from rollfleet.wire.buffer_pool import BufferPool
from rollfleet.wire.weight_chunks import MAX_PENDING, WeightAssembler
from rollfleet_api.messages import Manifest, MessageInvalid, unpack

log = logging.getLogger(__name__)


class NatsWeightsInbox:
    """Follows a job's weights. Latest wins: a version that was overtaken while it came is forgotten.

    Args:
        link: The worker's connection.
        worker: Index of the worker: some versions are for it alone.
        layout: Of the worker's own policy.
        changed: Notified when a newer version is complete, or one came that does not fit.
    """

    def __init__(self, link: Link, worker: int, layout: Layout, changed: threading.Condition) -> None:
        self._link, self._layout, self._changed = link, layout, changed
        self._places = (link.subjects.weights_of(None), link.subjects.weights_of(worker))
        # Memory is used again once the version in it was overtaken, by another that came, and is not being loaded.
        self._assembler = WeightAssembler(layout.total_bytes, BufferPool(MAX_PENDING).take)
        self._manifests: asyncio.Queue[Manifest] = asyncio.Queue()
        self._newest: Weights | None = None
        self._misfit: RollfleetError | None = None
        self._finished = (0, 0)  # session and version

    def newest(self) -> Weights | None:
        """The newest complete version; None: none has come yet.

        Raises:
            WeightMismatch: A version came that does not fit the policy here.
        """
        if self._misfit:
            raise self._misfit
        return self._newest

    async def start(self) -> None:
        """Subscribe, and fetch what was published before."""
        for place in self._places:
            await self._link.client.subscribe(
                place.all, cb=self._on_message, pending_bytes_limit=0, pending_msgs_limit=0
            )
        self._link.begin(self._finish_manifests())
        self._link.on_reconnect(self.catch_up)
        await self.catch_up()

    async def catch_up(self) -> None:
        """Look for a newer version in the state stream."""
        for place in self._places:
            try:
                if manifest := await read_state(self._link, place.manifest, Manifest):
                    self._manifests.put_nowait(manifest)
            except MessageInvalid as error:
                log.warning("a manifest that is stored is passed over: %s", error)

    async def _on_message(self, message: Msg) -> None:
        try:
            if message.subject.endswith(".manifest"):
                self._manifests.put_nowait(unpack(Manifest, message.data))
            else:
                self._assembler.add(message.data)
        except (WireError, MessageInvalid) as error:
            log.warning("a message of weights is passed over: %s", error)

    async def _finish_manifests(self) -> None:
        while True:
            manifest = await self._manifests.get()
            while not self._manifests.empty():  # one that was asked for may come after a newer one that was broadcast
                manifest = max(manifest, self._manifests.get_nowait(), key=lambda each: (each.session, each.version))
            if (manifest.session, manifest.version) <= self._finished:
                continue
            try:
                self._layout.check(manifest.parameters, theirs="the learner")
                for index in self._assembler.missing(manifest):
                    await self._fetch(manifest, index)
                data = self._assembler.finish(manifest)
            except WeightMismatch as error:
                self._misfit = error
            except (WireError, NatsError, TimeoutError, OSError) as error:
                # Overtaken while it was fetched, or NATS is away. Whichever is newest then is the one to have.
                log.debug("weights %d: %r; trying again", manifest.version, error)
                await asyncio.sleep(RETRY_WAIT_S)
                self._link.begin(insist(self.catch_up))
                continue
            else:
                self._finished = (manifest.session, manifest.version)
                self._newest = Weights(version=manifest.version, data=data)
            with self._changed:
                self._changed.notify_all()

    async def _fetch(self, manifest: Manifest, index: int) -> None:
        for place in self._places:  # a chunk tells its version: one of another place is passed over
            data = await read_bytes(self._link, place.chunk(manifest.version, index))
            if data is not None:
                self._assembler.add(data)
